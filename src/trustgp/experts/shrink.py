"""What is left of a compressed model, and how rows that stay are chosen; each kind shrinks itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..math.low_rank import selection_noise
from ..math.posterior import variance_reduction_rows
from ..tangents.base import KernelRows
from ..tangents.factors import HalfFactors, half_scales

PROBED = 8  # rows of the kernel that are made to see whether it can be read off the factor
SAME = 1e-9  # of the kernel's mean diagonal


@dataclass(frozen=True)
class Sizes:
    """What is left of a model; None: all."""

    rows: int | None = None  # of an expert, at most
    rank: int | None = None  # directions of an expert, at most
    half: bool = False  # whether features and bases are kept in float16, roots in float32
    gate: int | None = None  # rows of a gate, at most
    witness: int | None = None  # directions of a cell of the witness, at most; 0: the witness is left out

    def __str__(self) -> str:
        limits = {field.name: getattr(self, field.name) for field in fields(self)}
        words = [f"{name}={value}" for name, value in limits.items() if name != "half" and value is not None]
        return ", ".join([*words, *(["float16"] if self.half else [])]) or "as it is"

    def packer(self, lots: Sequence[Any]) -> Callable[[Any], Any]:
        """What stores features of rows, given all that are to be stored alike."""
        if not (self.half and lots):
            return lambda features: features
        scales = half_scales(lots)
        return lambda features: HalfFactors.pack(features, scales)


def noiseless_gram(rows: KernelRows, noisy: Tensor) -> Tensor:
    """K of some rows, shape [m, m]: K + N less N where that is diagonal, else made again."""
    diag, some = rows.diag(), torch.arange(min(PROBED, len(noisy)), device=noisy.device)
    gram = noisy.clone()
    gram.diagonal().copy_(diag)
    probe = rows.take(some).gram(rows)
    if bool(((probe - gram[some]).abs() <= SAME * diag.mean()).all()):
        return gram
    return rows.gram(rows)


def chosen_rows(gram: Tensor, most: int | None) -> Tensor:
    """At most so many rows, those that tell most given those before, in ascending order: own rows first."""
    if most is None or most >= len(gram):
        return torch.arange(len(gram), device=gram.device)
    return variance_reduction_rows(gram, most, selection_noise(gram)).sort().values
