"""What every representation of the tangent features offers: one small interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from ..data import CHUNK_ROWS, Inputs
from .network import TangentNetwork


class Features(Protocol):
    """Tangent features of some rows: whatever it takes to evaluate the kernel between them."""

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

    def select(self, columns: Tensor) -> Self:
        """Only the given feature columns; an empty index keeps all of them."""
        ...

    def explicit(self) -> Tensor | None:
        """The feature rows as a matrix [n, d] when there is one, else None."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The state, by name; each tensor has the rows as its first dimension."""
        ...

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        """The features whose `tensors()` these are."""
        ...

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """The features of several lots of rows, one after another."""
        ...


class TangentMap(Protocol):
    """Makes features from inputs, for one network and one way to mix its outputs."""

    network: TangentNetwork
    mix: Tensor

    @property
    def kind(self) -> type[Any]:
        """The class of the features it makes, a `Features`."""
        ...

    @property
    def slow(self) -> str:
        """Why it is slow, where rows must be differentiated one after another; else empty."""
        ...

    def __call__(self, inputs: Inputs) -> Features:
        """Features of a chunk of rows."""
        ...

    def seen(self, inputs: Inputs) -> tuple[Features, Tensor | None]:
        """The same, and the outputs [n, C] of the forward pass that gave them; None: there was not one."""
        ...

    def columns(self, inputs: Inputs) -> Tensor:
        """The feature columns an expert on these rows keeps; empty: all of them."""
        ...

    def parts(self, features: Any) -> Tensor | None:
        """What each mixed output adds to `features.diag()`, float64, [n, K]; None: they are not told apart.

        Args:
            features: Made by this map, an expert's columns selected or not.
        """
        ...

    def direction(self, columns: Tensor) -> dict[str, Tensor]:
        """theta, by name, with zeros where neither the network nor the expert keeps a column."""
        ...

    def row_bytes(self) -> int:
        """Memory of one row's features."""
        ...

    def width(self, *, expert: bool) -> int | None:
        """Columns d of explicit features, of an expert or before its choice; None if not explicit."""
        ...

    def working_bytes(self) -> int:
        """Memory needed per row while its features are made."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The tensors from which `Tangents.restore` makes this map again."""
        ...


def at_once(space: int, device: torch.device) -> int:
    """Bytes of one step of work where a CPU takes `space`: a GPU waits for each step, so its are larger."""
    return 4 * space if device.type == "cuda" else space


def working_set(device: torch.device) -> int:
    """Bytes that the rows of one chunk may take on the way, where a row takes much."""
    # a CPU convolves a handful of rows at a time nearly twice as fast as one: it packs its weights each time
    return 512 * 2**20 if device.type == "cuda" else 256 * 2**20


def chunk_bytes(tangents: TangentMap) -> int:
    """Bytes of a chunk of rows on the way; on a CPU 64 MiB, or sixteen rows of large activations."""
    most = working_set(tangents.network.device)
    if tangents.network.device.type == "cuda":
        return most
    return max(64 * 2**20, min(most, 16 * tangents.working_bytes()))


def most_rows(device: torch.device) -> int:
    """Rows of a chunk, at most: on a GPU a chunk costs as many kernels whatever its size."""
    return 16384 if device.type == "cuda" else CHUNK_ROWS


class Tangents(Protocol):
    """A user's choice of representation: settings only."""

    def choose(self, network: nn.Module) -> list[str]:
        """The chosen parameters' names; raises where this representation cannot serve them."""
        ...

    def bind(self, network: TangentNetwork, mix: Tensor, sample: Inputs, targets: Tensor) -> TangentMap:
        """The map for one network and mix, probed on a few sample rows."""
        ...

    def restore(self, network: TangentNetwork, state: dict[str, Tensor]) -> TangentMap:
        """The map whose `state()` this is."""
        ...

    def settings(self) -> dict:
        """Plain values: the arguments that make this object again."""
        ...


def output_mixes(
    outputs: str, num_outputs: int, generator: torch.Generator, *, contrast: bool = False
) -> list[tuple[Tensor, Tensor]]:
    r"""How the outputs enter the kernel: pairs of (mix W [K, C], outputs served [B]).

    .. math:: k(x, x') = s \sum_k \Big(\sum_c W_{kc} J_c(x)\Big) \cdot \Big(\sum_c W_{kc} J_c(x')\Big)

    One pair is one kernel with its own gate and experts. `shared`: W = I / sqrt(C); `separate`: a unit
    row per output; `pseudo`: one row of random signs over sqrt(C), a unit vector that slights no output.

    Args:
        outputs: "shared", "separate" or "pseudo".
        num_outputs: C.
        generator: Of the signs.
        contrast: Whether outputs count up to a constant that is common to all of a row, as logits do: every
            row of W then adds up to 0, and as many signs are positive as negative, or one more.
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
