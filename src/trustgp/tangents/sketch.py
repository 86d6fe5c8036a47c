r"""Tangent features as sketches of gradient rows: any network, and `dim` numbers a row however large it is.

Random-sign bucket sums, unbiased for the kernel, and never with a table as long as the gradients are.

An entry (i, j) of a parameter, seen as a matrix [o, i], goes to the bucket
:math:`b = h_1(i) + h_2(j) + o_k \bmod D` with the sign :math:`s_1(i) s_2(j) e_k`, where k counts the mixed
outputs. All of h, s, o and e are random and independent from parameter to parameter, so

.. math:: S(J)_b = \sum_k e_k \sum_{(i,j) \to b} s_1(i) s_2(j) J_{kij}, \qquad
          E[S(J) \cdot S(J')] = \sum_k J_k \cdot J'_k .

A sum of outer products keeps this form (TensorSketch; Pham and Pagh, KDD 2013): with the bucket sums
:math:`u_t = \sum_{k,i} e_k s_1(i) g_{kti}` and :math:`v_t = \sum_j s_2(j) a_{tj}` the sketch of
:math:`\sum_t g_t a_t^\top` is the circular convolution :math:`\sum_t u_t * v_t`, a product of spectra.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import at_once, working_set
from ..data.trees import Inputs
from .base import Tangents
from .jacobian.accumulators import products
from .jacobian.per_sample import Gradients
from .network import Choice, TangentNetwork
from .rows import GradientMap

LEAST_DIM = 16  # fewer numbers say nothing about a kernel
WORKSPACE = 64 * 2**20  # bytes of spectra that are made at a time
ENTRIES = 2**20  # of a parameter, whose buckets are written down at a time
# What a spectrum of D numbers costs, over D log2 D, and an entry's bucket sum, in multiply-adds of a product.
SPECTRUM, BUCKET = 17, 32


@dataclass(frozen=True)
class Sketch(Tangents):
    """Random-sign bucket sums of the gradient rows: unbiased for the kernel, its error falls as 1/sqrt(dim).

    Args:
        dim: Numbers a row.
        parameters: "all", "last", or names of parameters.
        seed: Of the buckets and signs; the same seed gives the same sketch on any device.
    """

    dim: int = 4096
    parameters: Choice = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.dim, int) or self.dim < LEAST_DIM:
            raise ValueError(f"dim={self.dim}; a whole number of at least {LEAST_DIM} is needed.")

    def bind(self, network: TangentNetwork, mix: Tensor, sample: Inputs, targets: Tensor) -> SketchMap:
        gradients = Gradients(network, mix)
        return SketchMap(gradients, self, working_bytes=gradients.plan(sample).row_bytes)

    def restore(self, network: TangentNetwork, state: dict[str, Tensor]) -> SketchMap:
        return SketchMap(Gradients(network, state["mix"]), self, int(state["working_bytes"]))


class SketchMap(GradientMap):
    """Makes sketches, a few rows at a time; all mixed outputs go into one row of `dim` numbers."""

    def __init__(self, gradients: Gradients, sketch: Sketch, working_bytes: int) -> None:
        super().__init__(gradients)
        self.sketch = sketch
        self._working_bytes = working_bytes
        self._tables: dict[torch.device, Tables] = {}

    def collector(self, n: int) -> CountSketch:
        return CountSketch(self.tables, n, self.network.dtype, self.network.device)

    def chunk_memory(self) -> int:
        return 2 * working_set(self.network.device)

    def num_columns(self, *, expert: bool) -> int:
        return self.sketch.dim

    def working_bytes(self) -> int:
        return self._working_bytes

    def state(self) -> dict[str, Tensor]:
        return {"mix": self.mix, "working_bytes": torch.tensor(self._working_bytes)}

    @property
    def tables(self) -> Tables:
        """Buckets and signs, drawn anew where the network has moved."""
        if self.network.device not in self._tables:
            drawn = Tables.draw(self.network, len(self.mix), self.sketch.dim, self.sketch.seed)
            self._tables = {self.network.device: drawn}
        return self._tables[self.network.device]


@dataclass(frozen=True)
class Buckets:
    """Buckets and signs along one side of a parameter, each of shape [m].

    A bucket is used a second time only when every one has been used, which lowers the variance.
    """

    place: Tensor
    sign: Tensor

    @classmethod
    def draw(cls, m: int, dim: int, generator: torch.Generator) -> Buckets:
        places = [torch.randperm(dim, generator=generator) for _ in range(math.ceil(m / dim))]
        signs = torch.randint(0, 2, (m,), generator=generator, dtype=torch.int8) * 2 - 1
        return cls(torch.cat(places)[:m], signs)

    def to(self, network: TangentNetwork) -> Buckets:
        """On the network's device, the signs in its precision."""
        return Buckets(self.place.to(network.device), self.sign.to(network.device, network.dtype))

    def __getitem__(self, index: Any) -> Buckets:
        return Buckets(self.place[index], self.sign[index])


@dataclass(frozen=True)
class Tables:
    """Every bucket and sign of a sketch."""

    dim: int  # D
    left: dict[str, Buckets]  # of each parameter, along its first dimension
    right: dict[str, Buckets]  # and along all others
    mixed: Buckets  # o_k and e_k

    @classmethod
    def draw(cls, network: TangentNetwork, mixed: int, dim: int, seed: int) -> Tables:
        """The same for the same seed, wherever the network is."""
        generator = torch.Generator().manual_seed(seed)
        left, right = {}, {}
        for name, value in network.parameters.items():
            first = value.shape[0] if value.ndim else 1
            left[name] = Buckets.draw(first, dim, generator).to(network)
            right[name] = Buckets.draw(value.numel() // first, dim, generator).to(network)
        return cls(dim, left, right, Buckets.draw(mixed, dim, generator).to(network))


class CountSketch:
    """Collects the sketches of gradient rows, [n, D]."""

    def __init__(self, tables: Tables, n: int, dtype: torch.dtype, device: torch.device) -> None:
        self._tables = tables
        self._mixed = tables.mixed
        self._sums = torch.zeros(n, tables.dim, dtype=dtype, device=device)
        self._spectra = torch.zeros(n, tables.dim // 2 + 1, dtype=dtype.to_complex(), device=device)

    def part(self, rows: slice, mixed: slice) -> CountSketch:
        part = copy.copy(self)
        part._mixed, part._sums, part._spectra = self._mixed[mixed], self._sums[rows], self._spectra[rows]
        return part

    def room(self, size: int) -> int:
        return min(size, self._spectrum())  # what is larger is not written out

    def rows(self) -> Tensor:
        """The sketches."""
        return self._sums + torch.fft.irfft(self._spectra, n=self._tables.dim)

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """By spectra where that is cheaper than writing the product out."""
        mixed, (groups, positions, wide), long = len(self._mixed.place), left.shape[2:], right.shape[4]
        written = mixed * groups * wide * long * (positions + BUCKET)
        if groups > 1 or written <= positions * self._spectrum():
            self.plain(name, products(left, right))
            return
        space = at_once(WORKSPACE, left.device)
        step = max(1, space // (6 * self._tables.dim * left.element_size()))  # positions of all rows
        per_row = min(positions, step)
        for rows in _slices(len(left), max(1, step // per_row)):
            for some in _slices(positions, per_row):
                self._spectra[rows] += self._convolved(name, left[rows, :, 0, some], right[rows, :, 0, some])

    def _spectrum(self) -> int:
        """What two spectra of a position cost, in multiply-adds of a product that is written out."""
        return int(SPECTRUM * self._tables.dim * math.log2(self._tables.dim))

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        lines = self._tables.left[name][index][:, None]  # [n, 1, t]
        place, sign = self._joined(lines, self._tables.right[name])
        self._sums.scatter_add_(1, place.flatten(1), (value * sign).flatten(1))

    def plain(self, name: str, value: Tensor) -> None:
        left, right = self._tables.left[name], self._tables.right[name]
        value = value.reshape(*value.shape[:2], len(left.place), len(right.place))
        for some in _slices(len(left.place), max(1, ENTRIES // (value.shape[1] * len(right.place)))):
            place, sign = self._joined(left[some], right)
            self._sums.index_add_(1, place.flatten(), (value[:, :, some] * sign).flatten(1))

    def _joined(self, left: Buckets, right: Buckets) -> tuple[Tensor, Tensor]:
        """Buckets and signs of every pair, shifted and turned for each mixed output, [..., K, o, i]."""
        mixed = self._mixed[:, None]
        place = (left.place + mixed.place)[..., None] + right.place
        return place % self._tables.dim, (left.sign * mixed.sign)[..., None] * right.sign

    def _convolved(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        """Spectrum of sum_t u_t * v_t, [n, D/2 + 1], from [n, K, t, o] and [n, K, t, i]."""
        by_left = right.shape[1] == 1  # which side carries the mixed outputs
        u = self._summed(left, self._tables.left[name], mixed=by_left)
        v = self._summed(right, self._tables.right[name], mixed=not by_left)
        return (torch.fft.rfft(u) * torch.fft.rfft(v)).sum(dim=1)

    def _summed(self, values: Tensor, buckets: Buckets, *, mixed: bool) -> Tensor:
        """Bucket sums over the K and m of [n, K, t, m], shape [n, t, D]."""
        place, sign = buckets.place, buckets.sign
        if mixed:
            place = (place + self._mixed.place[:, None]) % self._tables.dim
            sign = sign * self._mixed.sign[:, None]
        flat = values.transpose(1, 2).flatten(0, 1).flatten(1)  # [n * t, K * m]
        sums = bucket_sums(flat, place.flatten(), sign.flatten(), self._tables.dim, dense=values.is_cuda)
        return sums.unflatten(0, (len(values), values.shape[2]))


def bucket_sums(values: Tensor, place: Tensor, sign: Tensor, dim: int, *, dense: bool) -> Tensor:
    """Sums of the signed entries of each bucket, [n, D], from [n, m], and bucket and sign [m] of each column.

    The dense way is a product with a matrix of signs and zeros: more work, but on a GPU without threads that
    wait for each other, and in the same order every time.
    """
    if not dense:
        return values.new_zeros(len(values), dim).index_add_(1, place, values * sign)
    matrix = values.new_zeros(len(place), dim)
    matrix[torch.arange(len(place), device=place.device), place] = sign
    return values @ matrix


def _slices(total: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]
