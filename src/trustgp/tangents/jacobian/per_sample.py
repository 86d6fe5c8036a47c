"""Gradients row by row, each parameter's in the fastest way that was found to be exact."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ...data.trees import Inputs, count, take
from ..network import TangentNetwork
from .accumulators import Collector, DenseAccumulator
from .layer_gradients import Layout, LayoutError, layout_of
from .layer_io import record
from .strategies import GradientPlan, layerwise, looped, mixed_at_once, vmapped

Layouts = dict[tuple, Layout | None]
_PROBLEMS = (LayoutError, RuntimeError, ValueError, TypeError, IndexError)
_PLANNING = threading.Lock()  # for all: one of its own would not travel to another process
COPIES = 4  # of the largest output, that stand side by side in a backward pass
MANY = 2**22  # parameters above which two rows, not three, are compared with plain gradients


class Gradients:
    """Hands the gradients of the mixed outputs to a collector, as planned on the first rows it sees."""

    def __init__(self, network: TangentNetwork, mix: Tensor) -> None:
        self.network = network
        self.mix = mix
        self._near = mix.to(device=network.device, dtype=network.dtype)
        self._plan: GradientPlan | None = None

    def plan(self, sample: Inputs) -> GradientPlan:
        """How it is done; `sample` is looked at the first time only."""
        if self._plan is None:
            with _PLANNING:
                self._plan = self._plan or find_plan(self.network, sample, len(self.mix))
        return self._plan

    @property
    def slow_reason(self) -> str:
        """Which parameters take a backward pass for each row, and why; empty where none is known to."""
        if self._plan is not None and self._plan.looped:
            first, *more = self._plan.looped
            others = f" and {len(more)} more" if more else ""
            return (
                f"{self._plan.reason}. The gradients of '{first}'{others} are made one row after another: "
                "exact, but slow."
            )
        if not self.network.forward_mode:
            return "torch has no forward mode here. J theta is made one row after another: exact, but slow."
        return ""

    @property
    def apart(self) -> str:
        """Which parameters are not reached through a layer, for the log; empty where all are."""
        names = [] if self._plan is None else [*self._plan.vmapped, *self._plan.looped]
        return f"not seen in a layer, and differentiated apart: {', '.join(names)}" if names else ""

    def __call__(self, inputs: Inputs, into: Collector) -> Tensor | None:
        """All gradients of these rows, which together must fit in memory: see `GradientPlan.row_bytes`.

        The outputs [n, C] come back, where one forward pass served all rows.
        """
        plan, network = self.plan(inputs), self.network
        if self._near.device != network.device:
            self._near = self.mix.to(device=network.device, dtype=network.dtype)
        mix, rest, outputs = self._near, plan.looped, None
        try:
            outputs = layerwise(network, plan, mix, inputs, into)
        except LayoutError:
            rest = (*rest, *plan.layerwise)
        if plan.vmapped:
            vmapped(network, plan.vmapped, mix, inputs, into)
        if rest:
            looped(network, rest, mix, inputs, into)
        return outputs


def find_plan(network: TangentNetwork, sample: Inputs, num_mixed: int) -> GradientPlan:
    """The fastest way for each parameter whose gradients on a few rows are those of a plain loop.

    `num_mixed` is K, for what a row will take.
    """
    few = take(sample, torch.arange(3 if network.num_parameters <= MANY else 2) % count(sample))
    outputs = network.matrix(few).shape[1]
    mix = torch.randn(1, outputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mix = mix.to(device=network.device, dtype=network.dtype)
    with full_precision():  # else a GPU rounds so much that a right way may look wrong
        probe = _Probe(network, few, mix, _exact(network, few, mix), num_mixed)
        probe.check_forward_mode()
        return probe.with_the_rest(probe.layerwise_plan())


@contextmanager
def full_precision() -> Iterator[None]:
    """Within this block cuDNN convolves float32 as float32, not as TF32, which has 10 bits."""
    try:
        before = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # torch was told by its newer settings, and will not hear of the older one
        yield
        return
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _exact(network: TangentNetwork, few: Inputs, mix: Tensor) -> DenseAccumulator:
    """Gradients by a plain loop; what is fused and has none, as recurrent layers on a GPU, is taken apart."""
    recurrent = any(isinstance(part, nn.RNNBase) for part in network.twin.modules())
    problem = None
    for apart in (True,) if recurrent and network.device.type == "cuda" else (False, True):
        network.apart = apart
        found = DenseAccumulator(network, count(few), 1)
        try:
            looped(network, network.names, mix, few, found)
            return found
        except RuntimeError as error:
            problem = problem or error
    raise ValueError(
        f"the network cannot be differentiated ({_first_line(problem)}); the error bar comes from its "
        "gradients. Choose parameters behind the operation that stops them: parameters='last', or names."
    ) from problem


@dataclass(frozen=True)
class _Probe:
    """A few rows whose gradients are known: what else gives the same?"""

    network: TangentNetwork
    few: Inputs  # the rows
    mix: Tensor  # one mixed output, [1, C]
    exact: DenseAccumulator  # its gradients by a plain loop
    num_mixed: int  # K in earnest

    def check_forward_mode(self) -> None:
        """J theta forward must be J theta from the gradients; else it is made from gradients."""
        theta, rows = self.network.parameters, self.exact.rows()
        flat = torch.cat([value.flatten() for value in theta.values()])
        error = self.network.directional(self.few, theta) @ self.mix[0] - rows @ flat
        tolerance = 1e-6 if flat.dtype == torch.float64 else 1e-3
        if bool((error.abs() > tolerance * rows.norm() * flat.norm()).any()):
            self.network.forward_mode = False

    def layerwise_plan(self) -> GradientPlan:
        """The layers whose gradients follow from what goes in and comes back."""
        with suppress(*_PROBLEMS):
            layouts, unhandled, row_bytes = self._layouts()
            with_rows: Layouts = {key: layout for key, layout in layouts.items() if layout is not None}
            for some in (layouts, with_rows):  # not every network bears what all rows share once for each row
                with suppress(*_PROBLEMS):
                    return replace(self._checked(some, unhandled), row_bytes=row_bytes)
        return GradientPlan({}, frozenset())

    def with_the_rest(self, plan: GradientPlan) -> GradientPlan:
        """The other parameters: by torch.func if that is right, else one row after another."""
        network = self.network
        rest = tuple(name for name in network.names if name not in plan.layerwise)
        if not rest:
            return plan
        found, right = DenseAccumulator(network, count(self.few), 1), ()
        try:
            vmapped(network, rest, self.mix, self.few, found)
            right = tuple(self.exact.agreeing(found, rest))
            reason = "torch.func differentiates this network wrongly for many rows at a time"
        except Exception as error:  # of any kind: it may come from anywhere in the user's network
            why = _first_line(error)
            reason = f"torch.func cannot differentiate this network for many rows at a time ({why})"
        left = tuple(name for name in rest if name not in right)
        numbers = sum(value.numel() for name, value in network.parameters.items() if name in right)
        size = numbers * network.dtype.itemsize * min(self.num_mixed, mixed_at_once(network, right))
        row_bytes = plan.row_bytes + 2 * size  # the gradients twice: as they come, and stacked
        reason = reason if left else ""
        return replace(plan, vmapped=right, looped=left, row_bytes=row_bytes, reason=reason)

    def _layouts(self) -> tuple[Layouts, frozenset[str], int]:
        """Where the rows are in each layer's calls, which parameters act elsewhere, and a row's bytes."""
        seen: list[dict[tuple, list[tuple[int, ...]]]] = []
        sizes, unhandled = [], []
        for rows in (2, 3):
            few = take(self.few, torch.arange(rows) % count(self.few))
            saved = _Saved()
            with torch.enable_grad(), saved:
                _, recorder = record(self.network, few)
            seen.append({})
            for one, probe in zip(recorder.calls, recorder.probes, strict=True):
                seen[-1].setdefault(one.key, []).extend((tuple(one.input.shape), tuple(probe.shape)))
            largest = max((probe.numel() for probe in recorder.probes), default=0)
            sizes.append(COPIES * largest * self.network.dtype.itemsize + saved.bytes)
            unhandled += recorder.unhandled
        layouts: Layouts = {}
        for key, shapes in seen[0].items():
            if len(shapes) == len(seen[1].get(key, ())):
                with suppress(LayoutError):
                    layouts[key] = layout_of(shapes, seen[1][key])
        return layouts, frozenset(unhandled), max(1, sizes[1] - sizes[0])

    def _checked(self, layouts: Layouts, unhandled: frozenset[str]) -> GradientPlan:
        """Those of the layers whose gradients are right, with the rows running slower or faster."""
        names = frozenset(name for key in layouts for name in key[1:]) - unhandled - {None}
        tried: Layouts = dict(layouts)
        right: frozenset[str] = frozenset()
        for inner in (False, True):
            wrong = [key for key in tried if not right >= (names & set(key[1:]))]
            tried |= {key: Layout(old.axis, inner) for key, old in tried.items() if key in wrong and old}
            found = DenseAccumulator(self.network, count(self.few), 1)
            layerwise(self.network, GradientPlan(tried, names), self.mix, self.few, found)
            right = frozenset(self.exact.agreeing(found, names))
            if right == names:
                break
        return GradientPlan(tried, right)


class _Saved(saved_tensors_hooks):
    """Counts the bytes that a forward pass keeps for a backward one."""

    def __init__(self) -> None:
        self._seen: dict[int, Tensor] = {}  # held, so that no address comes twice
        super().__init__(self._keep, lambda tensor: tensor)

    def _keep(self, tensor: Tensor) -> Tensor:
        alone = tensor.detach()  # torch holds on to these hooks: with what made it, it would never go
        self._seen[tensor.untyped_storage().data_ptr()] = alone
        return alone

    @property
    def bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self._seen.values())


def _first_line(error: Exception | None) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
