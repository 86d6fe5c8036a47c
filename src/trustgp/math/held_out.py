"""Held-out rows for calibrations, and their moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from typing_extensions import Self

from ..data.split import in_proportion
from .quantiles import NUM_MEASURES

BLOCKS, MIN_BLOCK_ROWS = (4, 8, 16, 32, 64), 4  # of consecutive rows whose means are compared


@dataclass(frozen=True)
class HeldOutRows:
    """Tensors with the same number of entries."""

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name).cpu() for part in parts]) for name in names})

    def subset(self, which: Tensor) -> Self:
        """The entries where a mask is True, or at these positions."""
        return type(self)(**{name: value[which] for name, value in vars(self).items()})

    def sample(self, count: int) -> Self:
        """At most `count` entries, drawn at random with a fixed seed."""
        if len(self) <= count:
            return self
        return self.subset(torch.randperm(len(self), generator=torch.Generator().manual_seed(0))[:count])

    def counted(self, weights: Tensor | None) -> Self:
        """Rows in proportion to their weights [n], each with all its entries; see `in_proportion`."""
        if weights is None:
            return self
        each = len(self) // len(weights)
        return self.subset((in_proportion(weights)[:, None] * each + torch.arange(each)).flatten())

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))


@dataclass(frozen=True)
class CalibrationRows(HeldOutRows):
    """Held-out rows, one entry per row and output, each of shape [L]."""

    residual: Tensor  # y - f(x)
    residual_mean: Tensor  # m(x)
    epistemic: Tensor  # before calibration
    noise: Tensor  # sigma^2, before calibration
    novelty: Tensor  # nu(x)
    log_kappa: Tensor  # of the row's expert
    output: Tensor  # which output the entry belongs to, int64
    witness_mean: Tensor  # of y - f(x)
    witness_precision: Tensor  # 0: there is no witness
    log_leverage: Tensor  # of the posterior of all rows, over that of typical rows; 0: there is none
    log_noise: Tensor  # of the rows nearby; 0: there is no witness
    log_stated: Tensor  # log of the variance that the network states; 0: it states none
    target: Tensor  # y
    measures: Tensor  # of novelty [L, K]

    @classmethod
    def of(cls, outputs: Tensor, *, residual: Tensor, **values: Tensor) -> CalibrationRows:
        """Entries from residuals [n, B] of the outputs [B], and values that broadcast to that shape; missing
        values are 0. Novelty measures are per row [n, K]."""
        measures = values.pop("measures", residual.new_zeros(len(residual), NUM_MEASURES))
        entries = dict.fromkeys((field.name for field in fields(cls)), residual.new_zeros(()))
        entries |= {"residual": residual, "output": outputs.to(residual.device), **values}
        flat = {name: value.expand(residual.shape).flatten() for name, value in entries.items()}
        return cls(**flat | {"measures": measures.repeat_interleave(residual.shape[1], dim=0)})


def independent_share(rows: CalibrationRows, num_outputs: int) -> float:
    """Share of held-out rows that are independent observations of the scale: variance of the means of
    squared residuals over blocks of consecutive rows, expected of independent rows over observed."""
    n = len(rows) // num_outputs
    squared = (rows.residual.square() / constant_noise(rows, num_outputs)[rows.output]).double()
    mean = squared[: n * num_outputs].reshape(n, num_outputs).mean(dim=1)
    shares = [1.0]
    for blocks in (count for count in BLOCKS if n >= MIN_BLOCK_ROWS * count):
        means = torch.stack([block.mean() for block in mean.tensor_split(blocks)])
        shares.append(float(mean.var() / means.var().clamp_min(1e-300)) * blocks / n)
    return max(min(shares), 1.0 / max(n, 1))


def mean_by_output(rows: CalibrationRows, values: Tensor, num_outputs: int) -> Tensor:
    """Mean of values [L] of each output, shape [C]; 0 without rows."""
    total = torch.zeros(num_outputs, dtype=torch.float64).index_add(0, rows.output, values.double())
    return total / torch.bincount(rows.output, minlength=num_outputs).clamp_min(1)


def constant_noise(rows: CalibrationRows, num_outputs: int) -> Tensor:
    """Mean squared residual of each output, shape [C]; mean E where that is 0, and 1 without rows."""
    squared, expected = (
        mean_by_output(rows, values, num_outputs)
        for values in (rows.residual.square(), rows.epistemic + rows.noise)
    )
    return torch.where(squared > 0, squared, torch.where(expected > 0, expected, 1.0))
