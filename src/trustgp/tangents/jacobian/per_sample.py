"""Per-sample gradients: each parameter uses the fastest strategy that is exact on a few rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ...data.trees import Inputs, count, map_tensors, take
from ..network import TangentNetwork, signal_weights
from .accumulators import Collector, DenseAccumulator
from .layer_gradients import Layout, LayoutError, layout_of
from .layer_io import record, with_hidden
from .strategies import GradientPlan, layerwise, looped, mixed_at_once, vmapped

Layouts = dict[tuple, Layout | None]
_PROBLEMS = (LayoutError, RuntimeError, ValueError, TypeError, IndexError)
_PLANNING = threading.Lock()  # shared: an object with its own lock could not be pickled
OUTPUT_COPIES = 4  # of the largest layer output, in a backward pass
THREE_ROW_LIMIT = 2**22  # parameters above which two rows, not three, are checked


class Gradients:
    """Passes the gradients of mixed outputs to a collector, as planned on the first rows: those of `mix` and,
    with `top` = k > 1, the k - 1 differences between each row's largest output and the next ones."""

    def __init__(
        self, network: TangentNetwork, mix: Tensor, alike: Gradients | None = None, *, top: int = 1
    ) -> None:
        self.network, self.mix, self.top = network, mix, top
        self._device_mix = mix.to(device=network.device, dtype=network.dtype)
        self._plan: GradientPlan | None = alike and alike._plan  # shared with other mixed outputs

    @property
    def num_mixed(self) -> int:
        """Number K of signals per row, each of which takes a backward pass."""
        return len(self.mix) + self.top - 1

    def weights(self, outputs: Tensor) -> Tensor:
        """Weights [K, n, C] of the outputs [n, C] in each signal."""
        if self._device_mix.device != outputs.device:
            self._device_mix = self.mix.to(device=outputs.device, dtype=self.network.dtype)
        fixed = signal_weights(self._device_mix, outputs)
        if self.top == 1:
            return fixed
        order = outputs.topk(self.top, dim=1).indices.T[:, :, None]  # [k, n, 1]
        chosen = (order == torch.arange(outputs.shape[1], device=outputs.device)).to(outputs.dtype)
        return torch.cat([fixed, chosen[1:] - chosen[:1]])

    def plan(self, sample: Inputs) -> GradientPlan:
        """Strategy of each parameter; `sample` is used by the first call only."""
        if self._plan is None:
            with _PLANNING:
                self._plan = self._plan or find_plan(self.network, sample, self.num_mixed)
        return self._plan

    @property
    def slow_reason(self) -> str:
        """Reason why gradients or J theta are computed row by row, which is slow; empty if they are not."""
        if self._plan is not None and self._plan.looped:
            names = f"{len(self._plan.looped)} parameters, such as '{self._plan.looped[0]}',"
            return f"{self._plan.reason}. The gradients of {names} are computed row by row: exact, but slow."
        if not self.network.forward_mode:
            return "torch has no forward mode here. J theta is computed row by row: exact, but slow."
        return ""

    @property
    def separately_differentiated(self) -> str:
        """Names of the parameters that no layer covers; empty if there are none."""
        return "" if self._plan is None else ", ".join((*self._plan.vmapped, *self._plan.looped))

    def __call__(self, inputs: Inputs, into: Collector) -> Tensor | None:
        """Pass on all gradients of these rows, which must fit in memory: see `GradientPlan.row_bytes`. Return
        the outputs as `layerwise` does, or None unless there was one forward pass for all rows."""
        plan, network = self.plan(inputs), self.network
        one_by_one, outputs = plan.looped, None
        try:
            outputs = layerwise(network, plan, self.weights, inputs, into)
        except LayoutError:
            one_by_one = (*one_by_one, *plan.layerwise)
        if plan.vmapped:
            vmapped(network, plan.vmapped, self.weights, self.num_mixed, inputs, into)
        if one_by_one:
            looped(network, one_by_one, self.weights, inputs, into)
        return outputs

    def repeated(self, inputs: Inputs, into: Collector) -> tuple[bool, Tensor | None]:
        """Pass on all gradients by one backward pass, with each row repeated for its K signals: the collector
        has n * K rows and one mixed output. Return whether this was possible, and the outputs of a separate
        pass, which `top` > 1 needs; else None, since repeated rows may be rounded differently."""
        plan, n, outputs = self.plan(inputs), count(inputs), None
        if plan.vmapped or plan.looped:
            return False, None
        if self.top > 1:
            with torch.no_grad():
                outputs = self.network.float32_matrix(inputs)
            weights = self.weights(outputs).transpose(0, 1).flatten(0, 1)
        else:
            weights = self.mix.to(device=self.network.device, dtype=self.network.dtype).repeat(n, 1)
        try:
            rows = map_tensors(lambda leaf: leaf.repeat_interleave(self.num_mixed, dim=0), inputs)
            result = layerwise(self.network, plan, lambda _: weights[None], rows, into)
        except LayoutError:
            return False, None
        if outputs is not None:
            hidden = result[:: self.num_mixed, outputs.shape[1] :]
            outputs = with_hidden(outputs, hidden if hidden.shape[1] else None)
        return True, outputs


def find_plan(network: TangentNetwork, sample: Inputs, num_mixed: int) -> GradientPlan:
    """Fastest strategy for each parameter whose gradients equal those of a plain loop on a few rows;
    `num_mixed`, K, only affects the memory of a row."""
    few = take(sample, torch.arange(3 if network.num_parameters <= THREE_ROW_LIMIT else 2) % count(sample))
    generator, outputs = torch.Generator().manual_seed(0), network.matrix(few).shape[1]
    mix = torch.randn(1, outputs, generator=generator, dtype=torch.float64).to(network.device, network.dtype)
    with full_precision():  # else a GPU's rounding may look like an error
        probe = _Probe(network, few, mix, _exact(network, few, mix), num_mixed)
        probe.check_forward_mode()
        return probe.complete(probe.layerwise_plan())


@contextmanager
def full_precision() -> Iterator[None]:
    """Within this block cuDNN convolves float32 as float32, not as TF32, which has 10 bits."""
    try:
        before = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # torch refuses the old setting where the new one was used
        yield
        return
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _exact(network: TangentNetwork, few: Inputs, mix: Tensor) -> DenseAccumulator:
    """Gradients by a plain loop; fused operations without a gradient (RNNs on a GPU) are decomposed."""
    problem, recurrent = None, any(isinstance(m, nn.RNNBase) for m in network.float32_module.modules())
    for unfuse in (True,) if recurrent and network.device.type == "cuda" else (False, True):
        network.unfuse_backward = unfuse
        gradients = DenseAccumulator(network, count(few), 1)
        try:
            looped(network, network.names, mix, few, gradients)
            return gradients
        except RuntimeError as error:
            problem = problem or error
    advice = "Choose parameters behind the operation that stops it: parameters='last', or names."
    raise ValueError(f"the network cannot be differentiated ({_first_line(problem)}). {advice}") from problem


@dataclass(frozen=True)
class _Probe:
    """A few rows with exact gradients, against which strategies are checked."""

    network: TangentNetwork
    few: Inputs  # the rows
    mix: Tensor  # one mixed output, [1, C]
    exact: DenseAccumulator  # its gradients by a plain loop
    num_mixed: int  # K of the fit

    def check_forward_mode(self) -> None:
        """Turn forward mode off if its J theta differs from that of the gradients."""
        theta, rows = self.network.parameters, self.exact.rows()
        flat = torch.cat([value.flatten() for value in theta.values()])
        error = self.network.directional(self.few, theta) @ self.mix[0] - rows @ flat
        tolerance = 1e-6 if flat.dtype == torch.float64 else 1e-3
        if bool((error.abs() > tolerance * rows.norm() * flat.norm()).any()):
            self.network.forward_mode = False

    def layerwise_plan(self) -> GradientPlan:
        """Plan with the layers whose gradients follow from inputs and signals."""
        with suppress(*_PROBLEMS):
            layouts, unhandled, row_bytes = self._layouts()
            with_rows: Layouts = {key: layout for key, layout in layouts.items() if layout is not None}
            for tried in (layouts, with_rows):  # not every network allows shared tensors to be repeated
                with suppress(*_PROBLEMS):
                    return replace(self._checked(tried, unhandled), row_bytes=row_bytes)
        return GradientPlan({}, frozenset())

    def complete(self, plan: GradientPlan) -> GradientPlan:
        """Plan with the other parameters added: by torch.func if that is exact, else row by row."""
        network = self.network
        others = tuple(name for name in network.names if name not in plan.layerwise)
        if not others:
            return plan
        gradients, right = DenseAccumulator(network, count(self.few), 1), ()
        try:
            vmapped(network, others, self.mix, 1, self.few, gradients)
            right = tuple(self.exact.agreeing(gradients, others))
            reason = "torch.func differentiates this network wrongly for many rows at a time"
        except Exception as error:  # of any kind: it may come from the user's code
            problem = _first_line(error)
            reason = f"torch.func cannot differentiate this network for many rows at a time ({problem})"
        left = tuple(name for name in others if name not in right)
        numbers = sum(value.numel() for name, value in network.parameters.items() if name in right)
        size = numbers * network.dtype.itemsize * min(self.num_mixed, mixed_at_once(network, right))
        row_bytes = plan.row_bytes + 2 * size  # the gradients, and their stack
        return replace(plan, vmapped=right, looped=left, row_bytes=row_bytes, reason=reason if left else "")

    def _layouts(self) -> tuple[Layouts, frozenset[str], int]:
        """Layout of each layer's calls, parameters that are used outside of layers, and bytes of a row."""
        shapes_of: list[dict[tuple, list[tuple[int, ...]]]] = []
        sizes, unhandled = [], []
        for rows in (2, 3):
            few = take(self.few, torch.arange(rows) % count(self.few))
            saved: dict[int, Tensor] = {}  # by address, unique while the tensors exist

            def keep(tensor: Tensor, saved: dict[int, Tensor] = saved) -> Tensor:
                detached = tensor.detach()  # torch keeps the hooks: a graph here would never be freed
                saved[tensor.untyped_storage().data_ptr()] = detached
                return detached

            with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
                _, recorder = record(self.network, few)
            shapes_of.append({})
            for one, probe in zip(recorder.calls, recorder.probes, strict=True):
                shapes_of[-1].setdefault(one.key, []).extend((tuple(one.input.shape), tuple(probe.shape)))
            largest = max((probe.numel() for probe in recorder.probes), default=0)
            kept = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
            sizes.append(OUTPUT_COPIES * largest * self.network.dtype.itemsize + kept)
            unhandled += recorder.unhandled
        layouts: Layouts = {}
        for key, shapes in shapes_of[0].items():
            if len(shapes) == len(shapes_of[1].get(key, ())):
                with suppress(LayoutError):
                    layouts[key] = layout_of(shapes, shapes_of[1][key])
        return layouts, frozenset(unhandled), max(1, sizes[1] - sizes[0])

    def _checked(self, layouts: Layouts, unhandled: frozenset[str]) -> GradientPlan:
        """Plan with the layers whose gradients are right, with the rows varying slowest or fastest."""
        names = frozenset(name for key in layouts for name in key[1:]) - unhandled - {None}
        tried, right = dict(layouts), frozenset[str]()
        for inner in (False, True):
            wrong = [key for key in tried if not right >= (names & set(key[1:]))]
            tried |= {key: Layout(old.axis, inner) for key, old in tried.items() if key in wrong and old}
            gradients = DenseAccumulator(self.network, count(self.few), 1)
            layerwise(self.network, GradientPlan(tried, names), self.mix, self.few, gradients)
            right = frozenset(self.exact.agreeing(gradients, names))
            if right == names:
                break
        return GradientPlan(tried, right)


def _first_line(error: Exception | None) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
