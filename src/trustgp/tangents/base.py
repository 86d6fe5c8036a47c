"""What every representation of the tangent features offers: one small interface."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from ..data.chunking import working_set
from ..data.tensor_file import Reader
from ..data.trees import Inputs
from .network import Choice, TangentNetwork, choose_parameters

# Of a Gram matrix, the fewest rows of a block, and most blocks: few leave much work above the diagonal, small
# ones are slow.
BLOCK, MOST = 160, 8


class KernelRows(Protocol):
    """Some rows: whatever it takes to evaluate the kernel between them."""

    def __len__(self) -> int: ...

    def gram(self, other: Self) -> Tensor:
        """k(x, x') / s in float64, shape [len(self), len(other)]."""
        ...

    def diag(self) -> Tensor:
        """k(x, x) / s in float64, shape [len(self)]."""
        ...

    def take(self, rows: Tensor) -> Self:
        """The features of `rows`, by index."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The state, by name; each tensor has the rows as its first dimension."""
        ...

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Several lots of rows, one after another."""
        ...


class Features(KernelRows, Protocol):
    """Tangent features of some rows."""

    def select(self, columns: Tensor) -> Self:
        """Only the given feature columns; an empty index keeps all of them."""
        ...

    def explicit(self) -> Tensor | None:
        """The feature rows as a matrix [n, d] when there is one, else None."""
        return None

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        """The features whose `tensors()` these are."""
        ...


class TangentMap(ABC):
    """Makes features from inputs, for one network and one way to mix its outputs.

    A representation says how features are made and what they take; what follows for those without columns
    of their own is said here.
    """

    kind: ClassVar[type[Any]]  # the class of the features it makes, a `Features`

    def __init__(self, network: TangentNetwork, mix: Tensor, gradients: Any = None) -> None:
        self.network = network
        self.mix = mix
        self.gradients = gradients  # `per_sample.Gradients`, of which features are made; None: of none

    @property
    def slow_reason(self) -> str:
        """Why it is slow, where rows must be differentiated one after another; else empty."""
        return "" if self.gradients is None else self.gradients.slow_reason

    @property
    def apart(self) -> str:
        """Which parameters no layer tells of, and take a pass of their own; empty where there are none."""
        return "" if self.gradients is None else self.gradients.apart

    def __call__(self, inputs: Inputs) -> Any:
        """Features of a chunk of rows."""
        return self.roughly(inputs)[0]

    @abstractmethod
    def with_outputs(self, inputs: Inputs) -> tuple[Any, Tensor | None]:
        """The same, and the outputs [n, C] of the forward pass that gave them; None: there was not one."""

    def roughly(self, inputs: Inputs) -> tuple[Any, Tensor | None]:
        """The same, where outputs need not be the network's own to the bit."""
        return self.with_outputs(inputs)

    def rest(self) -> None:  # noqa: B027 - most keep none
        """Let go of memory that is kept to make many features fast."""

    def columns(self, inputs: Inputs) -> Tensor:
        """The feature columns an expert on these rows keeps; empty: all of them."""
        return torch.empty(0, dtype=torch.int64)

    def diag_per_output(self, features: Any) -> Tensor | None:
        """What each mixed output adds to `features.diag()`, float64, [n, K]; None: it is not told apart."""
        return None

    def direction(self, columns: Tensor) -> dict[str, Tensor]:
        """theta, by name, with zeros where neither the network nor the expert keeps a column."""
        return self.network.parameters

    @abstractmethod
    def row_bytes(self) -> int:
        """Memory of one row's features."""

    def num_columns(self, *, expert: bool) -> int | None:
        """Columns d of explicit features, of an expert or before its choice; None if not explicit."""
        return None

    @abstractmethod
    def working_bytes(self) -> int:
        """Memory needed per row while its features are made."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The tensors from which `Tangents.restore` makes this map again."""


def chunk_bytes(tangents: TangentMap) -> int:
    """Bytes of a chunk of rows on the way; on a CPU 64 MiB, or sixteen rows of large activations."""
    row = tangents.working_bytes()
    most = working_set(tangents.network.device, row)
    return most if tangents.network.device.type == "cuda" else max(64 * 2**20, min(most, 16 * row))


class Tangents(ABC):
    """A user's choice of representation: settings only, in a frozen dataclass."""

    parameters: Choice

    @property
    def wants_targets(self) -> bool:
        """Whether `bind` looks at the targets."""
        return False

    def choose(self, network: nn.Module) -> list[str]:
        """The chosen parameters' names; raises where this representation cannot serve them."""
        return choose_parameters(network, self.parameters)

    @abstractmethod
    def bind(self, network: TangentNetwork, mix: Tensor, sample: Inputs, targets: Tensor) -> TangentMap:
        """The map for one network and mix, probed on a few sample rows."""

    @abstractmethod
    def restore(self, network: TangentNetwork, state: dict[str, Tensor]) -> TangentMap:
        """The map whose `state()` this is."""

    def read_tensor(self, reader: Reader, name: str, full: str, network: TangentNetwork) -> Tensor:
        """What a map's `state()` has under this name, from a file, where it has the `full` name; checked. The
        mix is known. A representation with tensors of another kind than these reads them itself."""
        if name.startswith(("left.", "right.")):  # a projection
            value = reader.take(full, network.dtype, None, None)
            reader.require(0 not in value.shape and torch.isfinite(value), full, "projects nothing")
            return value
        if name in ("row_bytes", "working_bytes"):  # a size
            value = reader.take(full, torch.int64)
            reader.require(value >= 1, full, f"is {int(value)}; a row takes memory")
            before = reader.recast.get(network.dtype, network.dtype)
            return value * network.dtype.itemsize // before.itemsize
        value, last = reader.take(full, torch.int64, None), network.num_parameters - 1
        known = len(value) > 0 and (value >= 0) & (value <= last)  # places in the chosen parameters' vector
        reader.require(known, full, f"names parameters beyond 0..{last}")
        return value

    def settings(self) -> dict:
        """Plain values: the arguments that make this object again."""
        choice = self.parameters if isinstance(self.parameters, str) else list(self.parameters)
        return {**vars(self), "parameters": choice}


def output_mixes(
    outputs: str, num_outputs: int, generator: torch.Generator, *, contrast: bool = False
) -> list[tuple[Tensor, Tensor]]:
    r"""How the outputs enter the kernel: pairs of (mix W [K, C], outputs served [B]).

    .. math:: k(x, x') = s \sum_k \Big(\sum_c W_{kc} J_c(x)\Big) \cdot \Big(\sum_c W_{kc} J_c(x')\Big)

    One pair is one kernel with its own gate and experts. `shared`: W = I / sqrt(C); `separate`: a unit
    row per output; `pseudo`: one row of random signs over sqrt(C), a unit vector that slights no output.
    With `contrast` outputs count up to a constant that is common to all of a row, as logits do: every row of
    W adds up to 0, and as many signs are positive as negative, or one more.
    """
    every = torch.arange(num_outputs)
    if contrast and num_outputs > 1:
        found = output_mixes(outputs, num_outputs, generator)
        if outputs == "pseudo":
            signs = torch.ones(1, num_outputs, dtype=torch.float64)
            signs[0, torch.randperm(num_outputs, generator=generator)[: num_outputs // 2]] = -1.0
            found = [(signs, every)]
        centred = [(mix - mix.mean(dim=1, keepdim=True), served) for mix, served in found]
        return [(mix / mix.norm(), served) for mix, served in centred]
    if outputs == "shared":
        return [(torch.eye(num_outputs, dtype=torch.float64) / num_outputs**0.5, every)]
    if outputs == "separate":
        return [(row[None], every[c : c + 1]) for c, row in enumerate(torch.eye(num_outputs).double())]
    if outputs == "pseudo":
        signs = torch.randint(0, 2, (1, num_outputs), generator=generator).double() * 2 - 1
        return [(signs / num_outputs**0.5, every)]
    raise ValueError(f'outputs="{outputs}"; allowed are "shared", "separate" and "pseudo".')


def leading_signs(energy: Tensor) -> Tensor:
    r"""Signs s of outputs, s_1 = 1, about the largest :math:`s^\top E s` for a matrix E [C, C], shape [C].

    With :math:`E_{cc'} = \sum_x J_c(x) \cdot J_{c'}(x)` the combination of all outputs, none slighted, whose
    gradient is longest: outputs that move together must not cancel.
    """
    signs = torch.where(torch.linalg.eigh(energy)[1][:, -1] < 0, -1.0, 1.0).to(energy)
    for _ in range(len(signs)):  # while a single flip is better
        gain = energy.diagonal() - signs * (energy @ signs)
        best = int(gain.argmax())
        if float(gain[best]) <= 1e-12 * float(energy.trace()):
            break
        signs[best] *= -1.0
    return signs * signs[0]


def gram_blocks(rows: int, columns: int, *, same: bool, least: int = BLOCK) -> list[tuple[slice, slice]]:
    """The blocks to compute: all at once, or, of rows with the `same` rows, those up to the diagonal, of at
    least so many rows."""
    if not same or rows <= BLOCK:
        return [(slice(0, rows), slice(0, columns))]
    edges = [*range(0, rows, max(least, math.ceil(rows / MOST))), rows]
    return [(slice(a, b), slice(0, b)) for a, b in pairwise(edges)]


def mirrored(matrix: Tensor, blocks: list[tuple[slice, slice]]) -> Tensor:
    """A matrix whose `gram_blocks` are known, made whole where it lies: shape [n, n]."""
    for rows, _ in blocks:
        corner = matrix[rows, rows]
        corner.copy_(torch.tril(corner) + torch.tril(corner, -1).T)
        matrix[: rows.start, rows] = matrix[rows, : rows.start].T
    return matrix
