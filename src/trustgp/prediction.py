"""What a user gets back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prediction:
    r"""A prediction and its error bar; every tensor has the shape of the network's output unless noted.

    Args:
        mean: The network's own output, to the bit; or, for `corrected`, that plus the residual mean.
        epistemic: Variance for want of data: it grows away from the training rows.
        aleatoric: Variance of the noise in the targets.
        excess: Squared residual mean: how far the network itself is thought to be off here.
        novelty: Epistemic over prior variance, in [0, 1], shape [n]: 0 on the training rows, 1 far away.
        expert: Which expert answered, shape [n], or [n, C] with separate outputs.
        valid: False for rows with NaN or infinite inputs or outputs (their variance is infinite), shape [n].
    """

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    excess: Tensor
    novelty: Tensor
    expert: Tensor
    valid: Tensor
    _corrected: Prediction | None = field(default=None, repr=False)
    _plain: Prediction | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def variance(self) -> Tensor:
        """Second moment of the target about `mean`: epistemic + aleatoric + excess."""
        return self.epistemic + self.aleatoric + self.excess

    @property
    def std(self) -> Tensor:
        """Square root of the variance."""
        return self.variance.sqrt()

    @property
    def corrected(self) -> Prediction:
        """The distribution about the corrected mean: network output plus residual mean."""
        return self if self._corrected is None else self._corrected

    @property
    def plain(self) -> Prediction:
        """The paper's variance: evidence only, no leave-out scale, no excess."""
        return self if self._plain is None else self._plain

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central Gaussian interval of the given level."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"level={level}; it must lie strictly between 0 and 1, for example 0.95.")
        width = math.sqrt(2.0) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
        return self.mean - width * self.std, self.mean + width * self.std

    @staticmethod
    def cat(parts: Sequence[Prediction]) -> Prediction:
        """Predictions for several lots of rows, one after another."""
        names = ("mean", "epistemic", "aleatoric", "excess", "novelty", "expert", "valid")
        tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}

        def join(name: str) -> Prediction | None:
            inner = [getattr(part, name) for part in parts]
            return Prediction.cat(inner) if inner[0] is not None else None

        return Prediction(**tensors, _corrected=join("_corrected"), _plain=join("_plain"))
