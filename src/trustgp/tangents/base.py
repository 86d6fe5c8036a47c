"""The interface of every representation of the tangent features."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..data.chunking import working_set
from ..data.tensor_file import Reader
from ..data.trees import Inputs
from .network import Choice, TangentNetwork, choose_parameters

MIN_BLOCK_ROWS, MAX_BLOCKS = 160, 8  # blocks of a Gram matrix: small ones are slow, few waste its symmetry
Blocks = list[tuple[slice, slice]]


class KernelRows(Protocol):
    """Rows of data with all that the kernel between them needs."""

    def __len__(self) -> int: ...
    def gram(self, other: Self) -> Tensor: ...  # k(x, x') / s in float64, shape [len(self), len(other)]
    def diag(self) -> Tensor: ...  # k(x, x) / s in float64, shape [len(self)]
    def take(self, rows: Tensor) -> Self: ...  # the features of `rows`, by index
    def tensors(self) -> dict[str, Tensor]: ...  # the state by name; rows are the first dimension of each
    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self: ...  # the rows of all parts, concatenated


class Features(KernelRows, Protocol):
    """Tangent features of rows of data."""

    def select(self, columns: Tensor) -> Self: ...  # only these feature columns; an empty index keeps all

    def scaled(self, factors: Tensor) -> Self: ...  # each row's features times a number [n]

    def explicit(self) -> Tensor | None:
        """The feature matrix [n, d], or None where features are implicit."""
        return None

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self: ...  # the inverse of `tensors()`


class TangentMap(ABC):
    """Computes features for one network and one mix of its outputs; defaults suit implicit features."""

    kind: ClassVar[type[Any]]  # the class of the features it makes, a `Features`

    def __init__(self, network: TangentNetwork, mix: Tensor, gradients: Any = None) -> None:
        self.network, self.mix = network, mix
        self.gradients = gradients  # `per_sample.Gradients`, or None where features need none

    @property
    def slow_reason(self) -> str:
        """Reason why rows are differentiated one by one, which is slow; empty if they are not."""
        return "" if self.gradients is None else self.gradients.slow_reason

    @property
    def separately_differentiated(self) -> str:
        """Names of parameters that no layer covers and that need passes of their own; empty if none."""
        return "" if self.gradients is None else self.gradients.separately_differentiated

    def __call__(self, inputs: Inputs) -> Any:
        """Features of a chunk of rows."""
        return self.features_and_outputs(inputs)[0]

    @abstractmethod
    def with_outputs(self, inputs: Inputs) -> tuple[Any, Tensor | None]:
        """Features, and the outputs [n, C] of the same forward pass, or None if it took several passes."""

    def features_and_outputs(self, inputs: Inputs) -> tuple[Any, Tensor | None]:
        """Features, and outputs [n, C] up to rounding; None if that pass does not give the network's own."""
        features, outputs = self.with_outputs(inputs)
        return features, outputs if self.network.one_pass else None

    def release_buffers(self) -> None:  # noqa: B027 - most have none
        """Release memory that is kept to speed up repeated calls."""

    def columns(self, inputs: Inputs) -> Tensor:
        """Indices of the feature columns that an expert on these rows keeps; empty: all columns."""
        return torch.empty(0, dtype=torch.int64)

    def diag_per_output(self, features: Any) -> Tensor | None:
        """Share of each mixed output in `features.diag()`, float64 [n, K]; None if unknown."""
        return None

    def direction(self, columns: Tensor) -> dict[str, Tensor]:
        """Parameters theta by name, with zeros for entries that this map or the expert's `columns` drop."""
        return self.network.parameters

    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes of one row's features."""

    def num_columns(self, *, expert: bool) -> int | None:
        """Number d of explicit feature columns, of one `expert` or before its selection; None if implicit."""
        return None

    @abstractmethod
    def working_bytes(self) -> int:
        """Bytes needed per row while its features are computed."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The tensors from which `Tangents.restore` rebuilds this map."""


def chunk_bytes(tangents: TangentMap) -> int:
    """Bytes of working memory for a chunk of rows; on a CPU 64 MiB, or up to 16 rows if these are large."""
    row = tangents.working_bytes()
    limit = working_set(tangents.network.device, row)
    return limit if tangents.network.device.type == "cuda" else max(64 * 2**20, min(limit, 16 * row))


class Tangents(ABC):
    """A user's choice of representation: settings only, in a frozen dataclass."""

    parameters: Choice

    @property
    def wants_targets(self) -> bool:
        """Whether `bind` uses the targets."""
        return False

    def choose(self, network: nn.Module) -> list[str]:
        """Names of the chosen parameters; raises ValueError if this representation does not support them."""
        return choose_parameters(network, self.parameters)

    @abstractmethod
    def bind(self, network: TangentNetwork, mix: Tensor, sample: Inputs, targets: Tensor) -> TangentMap:
        """Map for one network and mix, probed on a few sample rows."""

    @abstractmethod
    def restore(self, network: TangentNetwork, state: dict[str, Tensor]) -> TangentMap:
        """Rebuild a map from its `state()`."""

    def read_tensor(self, reader: Reader, name: str, full: str, network: TangentNetwork) -> Tensor:
        """Validated tensor `name` of a map's `state()`, which the file stores under the name `full`."""
        if name.startswith(("left.", "right.")):  # a projection
            value = reader.take(full, network.dtype, None, None)
            reader.require(0 not in value.shape and torch.isfinite(value), full, "projects nothing")
            return value
        if name in ("row_bytes", "working_bytes"):  # a size
            value = reader.take(full, torch.int64)
            reader.require(value >= 1, full, f"is {int(value)}; at least 1 byte is needed")
            return value * network.dtype.itemsize // reader.recast.get(network.dtype, network.dtype).itemsize
        value, last = reader.take(full, torch.int64, None), network.num_parameters - 1
        valid = len(value) > 0 and (value >= 0) & (value <= last)  # indices of the flat parameter vector
        reader.require(valid, full, f"has parameter indices beyond 0..{last}")
        return value

    def settings(self) -> dict:
        """The arguments of this object, as plain values."""
        choice = self.parameters if isinstance(self.parameters, str) else list(self.parameters)
        return {**vars(self), "parameters": choice}


def output_mixes(
    outputs: str, num_outputs: int, generator: torch.Generator, *, contrast: bool = False
) -> list[tuple[Tensor, Tensor]]:
    r"""How the outputs enter the kernel: pairs of (mix W [K, C], outputs served [B]).

    .. math:: k(x, x') = s \sum_k \Big(\sum_c W_{kc} J_c(x)\Big) \cdot \Big(\sum_c W_{kc} J_c(x')\Big)

    One pair is one kernel with its own gate and experts. `shared`: W = I / sqrt(C); `separate`: a unit
    row per output; `pseudo`: one row of random signs over sqrt(C), a unit vector with equal weights.
    With `contrast`, for logits, which matter up to a common constant, every row of W sums to 0; signs are
    balanced, with at most one more positive.
    """
    every = torch.arange(num_outputs)
    if contrast and num_outputs > 1:
        mixes = output_mixes(outputs, num_outputs, generator)
        if outputs == "pseudo":
            signs = torch.ones(1, num_outputs, dtype=torch.float64)
            signs[0, torch.randperm(num_outputs, generator=generator)[: num_outputs // 2]] = -1.0
            mixes = [(signs, every)]
        centred = [(mix - mix.mean(dim=1, keepdim=True), served) for mix, served in mixes]
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
    r"""Signs s [C] of outputs, s_1 = 1, that approximately maximise :math:`s^\top E s` for a matrix E [C, C].

    With :math:`E_{cc'} = \sum_x J_c(x) \cdot J_{c'}(x)` it maximises the gradient of the signed sum of
    outputs: outputs that move together must not cancel.
    """
    signs = torch.where(torch.linalg.eigh(energy)[1][:, -1] < 0, -1.0, 1.0).to(energy)
    for _ in range(len(signs)):  # while a single flip improves it
        gain = energy.diagonal() - signs * (energy @ signs)
        best = int(gain.argmax())
        if float(gain[best]) <= 1e-12 * float(energy.trace()):
            break
        signs[best] *= -1.0
    return signs * signs[0]


def gram_blocks(rows: int, columns: int, *, same: bool, min_rows: int = MIN_BLOCK_ROWS) -> Blocks:
    """Blocks of a Gram matrix to compute: all of it or, if both sides are the `same`, up to the diagonal."""
    if not same or rows <= MIN_BLOCK_ROWS:
        return [(slice(0, rows), slice(0, columns))]
    edges = [*range(0, rows, max(min_rows, math.ceil(rows / MAX_BLOCKS))), rows]
    return [(slice(a, b), slice(0, b)) for a, b in pairwise(edges)]


def mirrored(matrix: Tensor, blocks: Blocks) -> Tensor:
    """Complete a symmetric matrix [n, n] in place from its `gram_blocks`, and return it."""
    for rows, _ in blocks:
        corner = matrix[rows, rows]
        corner.copy_(torch.tril(corner) + torch.tril(corner, -1).T)
        matrix[: rows.start, rows] = matrix[rows, : rows.start].T
    return matrix
