"""Layer factors that take half the memory: float16, with a scale for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from .factors import FactorFeatures

FARTHEST = 80  # exponent of a scale
TOP = 15  # the largest number of a tensor lies just below 2^15: float16 ends at 2^16


@dataclass(frozen=True)
class HalfFactors:
    r"""Factors of rows that a model holds; whatever asks for them gets them in float32, exactly.

    Each tensor is kept as :math:`a / 2^e` with e such that its largest entry lies just below 2^15: nothing
    overflows, entries down to 2^-29 of the largest keep 11 bits, and what is below 2^-40 of it is lost.

    Args:
        halves: Activations, signals and products, one after another, float16, each of shape [n, d].
        scales: 2^e of each, shape [number of halves], float64.
        layers: How many Linear layers there are.
    """

    halves: tuple[Tensor, ...]
    scales: Tensor
    layers: int

    @classmethod
    def pack(cls, features: FactorFeatures, scales: Tensor) -> Self:
        """Factors, rounded; see `half_scales`."""
        whole = features.activations + features.signals + features.products
        halves = tuple((t.double() / s).half() for t, s in zip(whole, scales, strict=True))
        return cls(halves, scales, len(features.activations))

    def whole(self) -> FactorFeatures:
        """As numbers to work with."""
        return FactorFeatures(self.activations, self.signals, self.products)

    @property
    def activations(self) -> tuple[Tensor, ...]:
        """Per Linear layer, [n, d]."""
        return self._between(0, self.layers)

    @property
    def signals(self) -> tuple[Tensor, ...]:
        """Per Linear layer, [n, K * d']."""
        return self._between(self.layers, 2 * self.layers)

    @property
    def products(self) -> tuple[Tensor, ...]:
        """Per normalisation layer, [n, d'']."""
        return self._between(2 * self.layers, len(self.halves))

    def __len__(self) -> int:
        return len(self.halves[0])

    def gram(self, other: FactorFeatures | HalfFactors) -> Tensor:
        mine = self.whole()
        return mine.gram(mine if other is self else other)  # pyright: ignore[reportArgumentType]

    def diag(self) -> Tensor:
        return self.whole().diag()

    def take(self, rows: Tensor) -> Self:
        return replace(self, halves=tuple(half[rows] for half in self.halves))

    def select(self, columns: Tensor) -> Self:
        self.whole().select(columns)
        return self

    def explicit(self) -> None:
        return None

    def tensors(self) -> dict[str, Tensor]:
        return self.whole().tensors()

    def stored(self) -> dict[str, Tensor]:
        halves = {f"half.{i}": half for i, half in enumerate(self.halves)}
        return halves | {"scales": self.scales, "layers": torch.tensor(self.layers)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        features = FactorFeatures.from_tensors(tensors)
        return cls.pack(features, half_scales([features]))

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        first = parts[0]
        halves = tuple(torch.cat(lot) for lot in zip(*(part.halves for part in parts), strict=True))
        return replace(first, halves=halves)

    def _between(self, start: int, end: int) -> tuple[Tensor, ...]:
        pairs = zip(self.halves[start:end], self.scales[start:end], strict=True)
        return tuple(half.float().mul_(scale.float()) for half, scale in pairs)


def half_scales(lots: Sequence[FactorFeatures]) -> Tensor:
    """2^e of each tensor, such that those of all lots fit into float16, shape [tensors], float64.

    Raises:
        ValueError: Where numbers are so large or small that float32 could not hold them again.
    """
    each = [features.activations + features.signals + features.products for features in lots]
    largest = torch.stack(
        [torch.stack([t.double().abs().amax() for t in same]).amax() for same in zip(*each, strict=True)]
    )
    exponents = torch.where(largest > 0, largest.log2().floor() + 1 - TOP, 0.0)
    if not bool((exponents.abs() <= FARTHEST).all()):
        raise ValueError(
            f"the largest gradients of a layer lie between {float(largest.min()):.0e} and "
            f"{float(largest.max()):.0e}; float16 serves 1e-20 to 1e20. Leave dtype out, or rescale."
        )
    return torch.exp2(exponents)


def half_packer(lots: Sequence[Any]) -> Callable[[Any], HalfFactors]:
    """Rounds factors to float16, with scales that serve all of these lots of them."""
    scales = half_scales(lots)
    return lambda features: HalfFactors.pack(features, scales)
