"""The user's network, seen as a function of the parameters we chose."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap
from torch.overrides import TorchFunctionMode

from ..data.chunking import FULL, evenly, gpu_share, map_chunks, most_rows, rows_at_once, working_set
from ..data.trees import Inputs, copied, count, leaves, map_tensors, take, to_device
from .decompose import PLAIN, Unfused
from .modules import check_kind, check_mode, clone_module, tensors_in

Choice = str | Sequence[str]
"""Which parameters count: "all" (those that require a gradient), "last" (the last layer), or names."""

# torch keeps the levels of forward-mode differentiation per process, not per thread.
_FORWARD_MODE = threading.Lock()
HALF = (torch.float16, torch.bfloat16)
ROUNDING, LOOSE = 1e3, 0.05  # of outputs that should be equal: in eps of their dtype, and at most
FEW = 8  # rows that are looked at beside each other
COPIES = 8  # of the largest activation, that stand side by side in a forward-mode pass


class TangentNetwork:
    """A private copy of a trained network, with its output as [n, C] and its chosen parameters.

    The copy shares nothing with the user's network, and none of its parameters requires a gradient:
    every derivative is asked for explicitly.
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self.module = module
        self.names = tuple(names)
        self.half = any(value.dtype in HALF for value in module.parameters())
        self.forward_mode = True  # until it is found to fail
        self.apart = False  # whether fused operations must be taken apart in an ordinary backward pass, too
        self.vmap_backward = True  # until it is found to fail
        self._twin: nn.Module | None = None
        self._row_bytes: int | None = None
        self._chosen: tuple[nn.Module | None, dict[str, nn.Parameter]] = (None, {})
        self._first = next(module.parameters(), torch.empty(0))  # wherever the module moves, it moves too
        self._forward_clone: tuple[Any, torch.device, nn.Module] | None = None  # and where it was made

    @property
    def twin(self) -> nn.Module:
        """What derivatives are taken of: the module, or a float32 copy of one in half precision."""
        if not self.half:
            return self.module
        if self._twin is None or next(self._twin.parameters()).device != self.device:
            with torch.inference_mode(False):
                self._twin = clone_module(self.module)._apply(_raised)
        return self._twin

    def ready(self, inputs: Inputs) -> Inputs:
        """`inputs` on the device, and in the precision of the twin."""
        inputs = to_device(inputs, self.device)
        return map_tensors(_raised, inputs) if self.half else inputs

    @property
    def chosen(self) -> dict[str, nn.Parameter]:
        """The chosen parameters themselves, by name."""
        twin = self.twin
        if self._chosen[0] is not twin:  # to look for them takes as long as a layer
            every = dict(twin.named_parameters())
            self._chosen = twin, {name: every[name] for name in self.names}
        return self._chosen[1]

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The chosen parameters theta, by name."""
        return {name: value.detach() for name, value in self.chosen.items()}

    @property
    def num_parameters(self) -> int:
        """P."""
        return sum(value.numel() for value in self.parameters.values())

    @property
    def device(self) -> torch.device:
        return self._first.device

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.chosen.values())).dtype

    def matrix(self, inputs: Inputs) -> Tensor:
        """f(x) as the user's network gives it, shape [n, C]."""
        return as_matrix(call(self.module, copied(to_device(inputs, self.device))))

    def twin_matrix(self, inputs: Inputs) -> Tensor:
        """f(x) as the twin gives it, shape [n, C]."""
        return as_matrix(call(self.twin, copied(self.ready(inputs))))

    def pass_rows(self, inputs: Inputs) -> int:
        """How many rows like these may go through the network at a time."""
        if self._row_bytes is None:
            with torch.no_grad(), _Largest() as seen:
                call(self.twin, copied(self.ready(take(inputs, torch.tensor([0])))))
            self._row_bytes = COPIES * max(1, seen.bytes)
        most = min(most_rows(self.device), rows_at_once(inputs, self.device))
        room = working_set(self.device) // self._row_bytes
        if self.device.type == "cuda":  # of what takes much always as many: cuDNN plans each shape anew
            room = min(gpu_share(self.device) // self._row_bytes, max(FULL, 2**30 // self._row_bytes))
        return max(1, min(most, room))

    @torch.inference_mode(False)
    def directional(self, inputs: Inputs, direction: dict[str, Tensor]) -> Tensor:
        """J(x) times a direction in parameter space, by forward-mode differentiation, shape [n, C].

        Where torch has no forward mode for an operation, by gradients row after row.
        """
        rows, size = torch.arange(count(inputs)), self.pass_rows(inputs)
        if self.forward_mode:
            try:
                return torch.cat(map_chunks(lambda i: self._forward(take(inputs, i), direction), rows, size))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # NotImplementedError is one
                self.forward_mode = False
        return torch.cat([self._reverse(take(inputs, index), direction) for index in rows.split(size)])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_forward_clone": None}  # it does not travel

    def _forward(self, inputs: Inputs, direction: dict[str, Tensor]) -> Tensor:
        inputs, theta = copied(self.ready(inputs)), self.parameters
        with _FORWARD_MODE, Unfused(PLAIN):
            if self._forward_clone is None or self._forward_clone[:2] != (self.twin, self.device):
                self._forward_clone = self.twin, self.device, self.clone()  # as dear as a pass, so only once
            module = self._forward_clone[2]
            return jvp(lambda p: as_matrix(call_with(module, p, inputs)), (theta,), (direction,))[1]

    @torch.enable_grad()
    def _reverse(self, inputs: Inputs, direction: dict[str, Tensor]) -> Tensor:
        rows, flat = [], torch.cat([value.flatten() for value in direction.values()])
        for index in range(count(inputs)):
            outputs, parameters = self.traced(take(inputs, torch.tensor([index])), self.names)
            lots = (gradients_of(value, list(parameters.values())) for value in outputs[0])
            rows.append(torch.stack([torch.cat([g.flatten() for g in lot]) @ flat for lot in lots]))
        return torch.stack(rows)

    def traced(self, inputs: Inputs, names: Sequence[str]) -> tuple[Tensor, dict[str, nn.Parameter]]:
        """f(x) [n, C] with a graph that leads to fresh copies of the named parameters, and these copies."""
        fresh = {k: nn.Parameter(v.clone()) for k, v in self.parameters.items() if k in set(names)}
        module, every = self.clone(), dict(self.twin.named_parameters())
        # for good: a checkpointed part of the network is run again in the backward pass
        instead = {id(every[name]): value for name, value in fresh.items()}
        for part in module.modules():
            for name, value in list(part.named_parameters(recurse=False, remove_duplicate=False)):
                if id(value) in instead:
                    setattr(part, name, instead[id(value)])
        with torch.enable_grad(), Unfused(PLAIN if self.apart else {}):
            outputs = as_matrix(call(module, copied(self.ready(inputs))))
        return outputs, fresh

    def mixed_gradients(
        self, outputs: Tensor, tensors: Sequence[Tensor], mix: Tensor, *, at_once: bool
    ) -> list[Tensor]:
        """Gradients of the outputs [n, C], mixed by [K, C]: [K, ...] for each tensor; at once if it works."""

        def back(weights: Tensor) -> tuple[Tensor, ...]:
            return gradients_of(outputs, tensors, weights.expand_as(outputs))

        if at_once and len(mix) > 1 and self.vmap_backward:
            try:
                return list(vmap(back)(mix))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # vmap does not know some operation of this network
                self.vmap_backward = False
        lots = zip(*(back(row) for row in mix), strict=True)
        return [lot[0][None] if len(mix) == 1 else torch.stack(lot) for lot in lots]

    def clone(self) -> nn.Module:
        """The twin's module tree anew, around the same tensors.

        `functional_call` swaps the tensors of the module it is given; with a tree of its own each thread
        may do so at the same time.
        """
        clone = clone_module(self.twin, [*self.twin.parameters(), *self.twin.buffers()])
        for part in clone.modules():
            if isinstance(part, nn.RNNBase):
                # on a GPU it would lay out its weights anew and ask for their addresses, which tensors
                # inside torch.func do not have
                part.flatten_parameters = lambda: None
        return clone


class _Largest(TorchFunctionMode):
    """Notes the bytes of the largest tensor that an operation gives."""

    bytes = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.bytes = max([self.bytes, *(one.numel() * one.element_size() for one in tensors_in(result))])
        return result


def gradients_of(
    value: Tensor, tensors: Sequence[Tensor], weights: Tensor | None = None, *, keep: bool = True
) -> tuple[Tensor, ...]:
    """Gradients of a number, or of the weighted sum of a tensor, with zeros where it depends on none.

    The graph is kept, unless it is said that it need not be.
    """
    if not value.requires_grad:
        return tuple(torch.zeros_like(tensor) for tensor in tensors)
    return torch.autograd.grad(value, list(tensors), weights, retain_graph=keep, materialize_grads=True)


def _raised(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor


def call(module: nn.Module, inputs: Inputs) -> Tensor:
    """`module(inputs)`; a tuple is unpacked into arguments, a dict into named ones."""
    arguments, named = _arguments(inputs)
    return module(*arguments, **named)


def call_with(module: nn.Module, parameters: dict[str, Tensor], inputs: Inputs) -> Tensor:
    """`module(inputs)` with some of its parameters replaced."""
    return functional_call(module, parameters, *_arguments(inputs))


def _arguments(inputs: Inputs) -> tuple[tuple, dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {}


def as_matrix(outputs: Any) -> Tensor:
    """Network outputs [n] or [n, C] as [n, C]."""
    if not isinstance(outputs, Tensor) or outputs.ndim not in (1, 2):
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"the network returned {found}; a tensor of shape [n] or [n, C] is needed. "
            "Pass output=, a function that selects it from what the network returns."
        )
    return outputs if outputs.ndim == 2 else outputs[:, None]


def choose_parameters(module: nn.Module, choice: Choice) -> list[str]:
    """Names of the parameters that `choice` stands for, in the order of the network."""
    every = dict(module.named_parameters())
    trainable = [name for name, value in every.items() if value.requires_grad]
    if not trainable:
        raise ValueError(
            "the network has no trainable parameters; the error bar comes from their gradients. "
            "Call requires_grad_(True) on the parameters that were trained."
        )
    if isinstance(choice, str):
        layer = trainable[-1].rpartition(".")[0]
        last = [name for name in trainable if name.rpartition(".")[0] == layer]
        if choice not in ("all", "last"):
            raise ValueError(f'parameters="{choice}"; allowed are "all", "last", or a list of names.')
        chosen = trainable if choice == "all" else last
    else:
        unknown = sorted(set(choice) - set(every))
        if unknown or not choice:
            raise ValueError(f"parameters {unknown} are not in the network; it has {list(every)}.")
        chosen = [name for name in every if name in set(choice)]
    unfit = [name for name in chosen if every[name].is_complex()]
    if unfit:
        raise ValueError(
            f"parameter '{unfit[0]}' is complex, and the kernel is one of real gradients; hold it as two "
            "real numbers (torch.view_as_complex in forward), or choose others: parameters='last', or names."
        )
    return chosen


def prepare(network: nn.Module, choice: Choice, device: torch.device | None) -> TangentNetwork:
    """A private copy of `network` on `device`, with the parameters that `choice` stands for."""
    names = choose_parameters(network, choice)
    module = clone_module(network).requires_grad_(False)
    module = module.to(device) if device is not None else module
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()  # a copy's weights lie apart, which is slow on a GPU
    return TangentNetwork(module, names)


def check_network(network: nn.Module, inputs: Inputs) -> Tensor:
    """Its outputs [n] or [n, C] on a few rows; raises where its error bar would be meaningless."""
    check_kind(network)
    check_mode(network)
    n = count(inputs)
    inputs = to_device(inputs, next(network.parameters(), torch.empty(0)).device)
    with torch.no_grad():
        outputs = probe(network, inputs, "training")
        if as_matrix(outputs).shape[0] != n:
            raise ValueError(
                f"the network gave {outputs.shape[0]} outputs for {n} rows; one a row is needed."
            )
        if not bool(torch.isfinite(outputs).all()):
            return outputs  # counted over all rows, and refused, before any expert work
        _check_row_independence(network, inputs)
    return outputs


@torch.no_grad()
def probe(network: nn.Module, inputs: Inputs, name: str) -> Any:
    """What the network returns for a few rows; a ValueError says what they are like where it cannot."""
    place = next(network.parameters(), torch.empty(0))
    inputs = to_device(inputs, place.device)
    try:
        return call(network, copied(inputs))
    except Exception as error:
        tensors = leaves(inputs)
        said = ", ".join(f"{tuple(x.shape)} {x.dtype} on {x.device}" for x in tensors)
        advice = "Check the shape, dtype and device of the inputs."
        if any(x.is_floating_point() and x.dtype != place.dtype for x in tensors):
            advice = f"The network is {place.dtype}: pass inputs.to({place.dtype})."
        elif any(x.ndim == 1 for x in tensors):
            advice = (
                "Rows are the first dimension: n numbers are inputs[:, None], a single row is inputs[None]."
            )
        raise ValueError(
            f"the network cannot be called on {count(inputs)} of the {name} rows ({said}): {error}. {advice}"
        ) from error


def _check_row_independence(network: nn.Module, inputs: Inputs) -> None:
    """The same rows must give the same again; the first and the last must not care what stands beside them.

    Of batches of one shape a GPU takes one algorithm: no more than rounding may differ where only the other
    rows have changed. How many there are chooses another, as in TF32, which differs from the third digit on.
    """
    seen = TangentNetwork(network, ())  # half precision would hide it
    inputs = seen.ready(take(inputs, evenly(count(inputs), FEW)))

    def outputs_at(rows: Tensor) -> Tensor:
        return as_matrix(call(seen.twin, take(inputs, rows)))

    every = torch.arange(count(inputs))
    outputs = outputs_at(every)
    size = outputs.abs().max().clamp_min(torch.finfo(outputs.dtype).tiny)
    strict = min(ROUNDING * torch.finfo(outputs.dtype).eps, LOOSE)

    def alike(found: Tensor, expected: Tensor, tolerance: float) -> bool:
        return bool(((found - expected).abs() <= tolerance * size).all())

    if not alike(outputs_at(every), outputs, strict):
        raise ValueError(
            "the network gives other outputs when called again on the same rows; it must be "
            "deterministic: call network.eval() and switch sampling off."
        )
    for row in {0, len(every) - 1}:
        among_copies, alone = torch.full_like(every, row), every[row : row + 1]
        if not (
            alike(outputs_at(among_copies)[row], outputs[row], strict)
            and alike(outputs_at(alone)[0], outputs[row], LOOSE)
        ):
            flat = any(leaf.ndim == 1 and leaf.is_floating_point() for leaf in leaves(inputs))
            hint = " Inputs are 1-D, one number a row: if they are a single row, pass inputs[None]."
            raise ValueError(
                "the network's output for a row depends on the other rows of the batch (a batch statistic, "
                "or attention across rows?); each row must be treated alone: call network.eval()."
                + (hint if flat else "")
            )
