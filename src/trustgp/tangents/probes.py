r"""A fingerprint of a network's function on a few rows, to detect other networks with the same weights.

The outputs f(x) [k, C] of k stored rows, and one product of their Jacobian with weights w [k, C],

.. math:: g = \sum_i w_i^\top J(x_i), \qquad p_t = g_t^\top v_t, \qquad \ell_t = |g_t|,

with two numbers for each tensor t of the chosen parameters; v is a fixed random vector, so that a relative
change :math:`\epsilon` of g changes p by about :math:`\epsilon \ell`. All is computed in float64, where
rounding on another device is a billion times below the tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.frames import precision_of
from ..data.rows import Rows
from ..data.tensor_file import ArtifactError, Reader
from ..data.trees import Inputs, kinds, leaves, map_tensors, rebuilt, structure
from .jacobian.per_sample import full_precision
from .modules import clone_module
from .network import HALF, TangentNetwork, gradients_of

ROWS = 3
MAX_NUMBERS = 2**16  # stored per row of a tensor of reals; a longer row repeats its start
MAX_ROW = 2**28  # numbers of a row, beyond which there are no probes
MAX_PARAMETERS = 2**27  # for a copy in float64
EXACT_TOLERANCE, OWN_TOLERANCE = 1e-4, 1e-2  # in float64 (a layer may still use float32), and otherwise
MAX_ROUNDED_EPS = 50  # allowed if weights were rounded to another precision
MIN_SPREAD = 0.2  # of the largest output, where all outputs are about equal
MIN_LENGTH = 1e-2  # of a gradient, relative to the longest
PERIOD = 4093  # of v
PREFIX = "probes."
STORED = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)


@dataclass(frozen=True)
class Probes:
    """A few rows, and the fitted network's outputs and gradients on them."""

    inputs: Inputs  # k rows, on the CPU
    dtype: torch.dtype  # of the network
    exact: bool  # whether it was run in float64
    outputs: Tensor  # f(x), float64 [k, C]
    product: Tensor  # p, float64 [T]; empty: there are no gradients
    lengths: Tensor  # l, float64 [T]

    @classmethod
    def of(cls, network: TangentNetwork, rows: Rows) -> Probes | None:
        """Probes of a network on rows of the training data; None where it cannot be run on them."""
        if max(leaf.numel() for leaf in leaves(rows.first)) > MAX_ROW:
            return None
        # on the CPU, with their stored part repeated to the full length
        few = map_tensors(lambda leaf: leaf.detach().cpu(), rows.take(evenly(len(rows), ROWS)))
        return cls.on(network, map_tensors(lambda leaf: _repeated(_beginning(leaf), leaf.shape[1:]), few))

    @classmethod
    def on(cls, network: TangentNetwork, inputs: Inputs) -> Probes | None:
        """Probes of a network on given rows; None if it cannot be run on them, or values are not finite."""
        exact = sum(value.numel() for value in network.module.parameters()) <= MAX_PARAMETERS
        try:
            exact, *values = _observed(network, inputs, exact=exact)
        except (RuntimeError, TypeError, ValueError):  # a later check reports it
            return None
        finite = all(bool(torch.isfinite(value).all()) for value in values)
        return cls(inputs, precision_of(network.module), exact, *values) if finite else None

    def difference(self, network: TangentNetwork) -> str:
        """Description of how another network differs from the fitted one; empty if by rounding only."""
        now, where = precision_of(network.module), f"on {len(self.outputs)} rows stored by the fit"
        try:
            exact, outputs, slopes, _ = _observed(network, self.as_taken(now), self.exact, self.outputs)
        except Exception as error:  # of any kind: it may come from the user's code
            return f"{where} it cannot be run ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        if outputs.shape != self.outputs.shape or slopes.shape != self.product.shape:
            shapes = [tuple(value.shape) for value in (outputs, slopes, self.outputs, self.product)]
            return f"{where} its outputs and gradients are {shapes[:2]}, not {shapes[2:]}"
        allowed = EXACT_TOLERANCE if exact and self.exact else OWN_TOLERANCE
        if now != self.dtype:  # the weights of one of them may have been rounded
            allowed = max(allowed, *(MAX_ROUNDED_EPS * torch.finfo(one).eps for one in (now, self.dtype)))
        off = _largest((outputs - self.outputs).abs() / spread(self.outputs))
        if not off[0] <= allowed:
            return f"{where} its outputs are off by {off[0]:.1e} of their spread; {allowed:.1e} is allowed"
        if not len(slopes):
            return ""
        off = _largest((slopes - self.product).abs() / _at_least(self.lengths, MIN_LENGTH))
        if off[0] <= allowed:
            return ""
        off_by = f"is off by {off[0]:.1e} of its length; {allowed:.1e} is allowed"
        return f"{where} its outputs are the same, but the gradient for '{network.names[off[1]]}' {off_by}"

    def as_taken(self, dtype: torch.dtype) -> Inputs:
        """Rows, with tensors of the fitted network's dtype converted to `dtype`."""
        return map_tensors(lambda leaf: leaf.to(dtype) if leaf.dtype == self.dtype else leaf, self.inputs)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a file; `text` has the other values."""
        table = {name: getattr(self, name) for name in ("outputs", "product", "lengths")}
        for number, leaf in enumerate(leaves(self.inputs)):
            table[f"shape.{number}"] = torch.tensor(leaf.shape[1:], dtype=torch.int64)
            flat = _beginning(leaf)  # complex numbers are stored as pairs, integers as int64
            flat = torch.view_as_real(flat).double().flatten(1) if flat.is_complex() else flat
            table[f"input.{number}"] = flat if flat.dtype in STORED else flat.long()
        return {PREFIX + name: value.contiguous() for name, value in table.items()}

    def text(self) -> dict[str, Any]:
        """Plain values: the nesting and dtypes of the inputs, and the other fields."""
        names = (kind.partition("[")[0] for kind in kinds(self.inputs))
        dtype = str(self.dtype).removeprefix("torch.")
        return {"inputs": rebuilt(self.inputs, names), "dtype": dtype, "exact": self.exact}

    @classmethod
    def read(cls, reader: Reader, text: Any, nesting: str, names: tuple[str, ...], where: str) -> Probes:
        """The validated probes of a file; `nesting` is the structure of the inputs."""
        try:
            like, dtype, exact = text["inputs"], _type(text["dtype"]), text["exact"]
            types = [_type(name) for name in leaves(like, str)]
            sane = structure(like) == nesting and dtype.is_floating_point and exact in (True, False)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"{where}: the description of its probes is damaged ({error!r}).") from error
        if not sane:
            raise ArtifactError(f"{where}: the description of its probes is inconsistent.")
        outputs = reader.take(f"{PREFIX}outputs", torch.float64, None, None)
        reader.require(0 not in outputs.shape, f"{PREFIX}outputs", "is empty")
        slopes = reader.take(f"{PREFIX}product", torch.float64, None)
        reader.require(len(slopes) in (0, len(names)), f"{PREFIX}product", f"is not of {len(names)} tensors")
        lengths = reader.positive(f"{PREFIX}lengths", len(slopes), zero=True)
        tensors = [_read_leaf(reader, k, kind, len(outputs)) for k, kind in enumerate(types)]
        return cls(rebuilt(like, iter(tensors)), dtype, exact, outputs, slopes, lengths)


def spread(outputs: Tensor) -> Tensor:
    """Range [C] of each output [k, C], or a part of its size if all its values are about equal."""
    span = outputs.amax(0) - outputs.amin(0)
    return _at_least(torch.maximum(span, MIN_SPREAD * outputs.abs().amax(0)), 1e-6)


@torch.inference_mode(False)
def _observed(
    network: TangentNetwork, inputs: Inputs, exact: bool, reference: Tensor | None = None
) -> tuple[bool, Tensor, Tensor, Tensor]:
    """Whether the network ran in float64, then f(x), p and l. The weights w are signs divided by the spread
    of the outputs, or of the reference outputs; p and l are empty where there is no gradient."""
    doubled = lambda leaf: leaf.double() if leaf.is_floating_point() else leaf  # noqa: E731
    for precise, unfuse in product((True, False) if exact else (False,), (False, True)):
        module = clone_module(network.module).double() if precise else network.module
        one = TangentNetwork(module, network.names, network.stated)
        one.unfuse_backward = unfuse
        try:
            with full_precision():
                rows = map_tensors(doubled, inputs) if precise else inputs
                outputs, fresh = one.traced(rows, one.names)
                typical = outputs.detach().cpu().double() if reference is None else reference
                typical = typical[:, : outputs.shape[1]]
                draws = torch.randint(0, 2, typical.shape, generator=torch.Generator().manual_seed(1))
                weights = (draws * 2.0 - 1.0).double() / spread(typical)
                parts = gradients_of(outputs, list(fresh.values()), weights.to(outputs), keep=False)
            p, lengths = _summary(parts)
            return precise, torch.cat([outputs.detach().cpu().double(), *_others(one, rows)], 1), p, lengths
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError):  # without float64, or without gradients
            continue
    with torch.no_grad(), full_precision():
        outputs = network.float32_matrix(inputs).cpu().double()  # or its error
    return False, outputs, outputs.new_zeros(0), outputs.new_zeros(0)


@torch.no_grad()
def _others(network: TangentNetwork, inputs: Inputs) -> list[Tensor]:
    """Outputs besides those of the differentiated network, [k, C] each: of an ensemble, and log variances."""
    others = [] if network.differentiated is network.module else [network.matrix(inputs)]
    others += [network.log_variance(inputs)] if network.stated else []
    return [other.cpu().double() for other in others]


def _summary(gradients: Sequence[Tensor]) -> Tensor:
    """Numbers p and l for each tensor's gradient, [2, T]."""
    v = torch.randn(PERIOD, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(gradients[0])
    pairs = []
    for flat in (gradient.detach().flatten() for gradient in gradients):
        whole = len(flat) // PERIOD * PERIOD
        p = (flat[:whole].reshape(-1, PERIOD) @ v).sum() + flat[whole:] @ v[: len(flat) - whole]
        pairs.append(torch.stack([p, torch.linalg.vector_norm(flat)]))
    return torch.stack(pairs, dim=1).cpu().double()


def _at_least(values: Tensor, share: float) -> Tensor:
    """Values, clamped to a share of the largest; ones where all are 0."""
    largest = values.max() if len(values) else values.new_zeros(())
    return values.clamp_min(share * float(largest)) if float(largest) > 0 else torch.ones_like(values)


def _largest(off: Tensor) -> tuple[float, int]:
    """The largest entry (infinite for NaN), and its index in the last dimension."""
    worst = off.nan_to_num(torch.inf).reshape(-1, off.shape[-1]).amax(0)
    return float(worst.max()), int(worst.argmax())


def _beginning(leaf: Tensor) -> Tensor:
    """Stored part [k, m] of each row of a tensor; all of it for integers, which may be identifiers."""
    return leaf.reshape(len(leaf), -1)[:, : MAX_NUMBERS if leaf.is_floating_point() else None]


def _repeated(flat: Tensor, shape: torch.Size | list[int]) -> Tensor:
    size = torch.Size(shape).numel()
    times = -(-size // flat.shape[1]) if flat.shape[1] else 1
    return flat.repeat(1, times)[:, :size].reshape(len(flat), *shape)


def _read_leaf(reader: Reader, number: int, kind: torch.dtype, count: int) -> Tensor:
    """One tensor of the inputs, [count, ...]."""
    name, numbers = f"{PREFIX}shape.{number}", f"{PREFIX}input.{number}"
    shape = reader.take(name, torch.int64, None)
    reader.require((shape >= 0) & (shape <= MAX_ROW), name, "is not a shape")
    size = torch.Size(shape.tolist()).numel()
    reader.require(size <= MAX_ROW, name, "is too large")
    kept = min(size, MAX_NUMBERS) if kind.is_floating_point else size
    stored = torch.float64 if kind.is_complex else kind if kind in STORED else torch.int64
    flat = reader.take(numbers, stored, count, 2 * kept if kind.is_complex else kept)
    if kind.is_complex:
        flat = torch.view_as_complex(flat.unflatten(1, (-1, 2)))
    return _repeated(flat.to(kind), shape.tolist())


def gradient_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the gradients of a network in this precision."""
    return torch.float32 if dtype in HALF else dtype


def _type(name: Any) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is not a dtype")
    return dtype
