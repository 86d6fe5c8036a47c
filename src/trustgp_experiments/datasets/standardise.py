"""How are rows scaled, by the statistics of the training rows alone?"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Standardiser:
    """Means and scales of the training rows, float64; results keep the dtype of what is given."""

    input_mean: Tensor  # [d]
    input_scale: Tensor  # [d]
    target_mean: Tensor  # [C]
    target_scale: Tensor  # [C]

    def inputs(self, x: Tensor) -> Tensor:
        """Standardised inputs, shape [n, d]."""
        return _apply(x, self.input_mean, self.input_scale)

    def targets(self, y: Tensor) -> Tensor:
        """Standardised targets, shape [n, C]."""
        return _apply(y, self.target_mean, self.target_scale)

    def restore_targets(self, y: Tensor) -> Tensor:
        """Standardised targets or means back in the units of the data, shape [n, C]."""
        mean, scale = self.target_mean.to(y.device), self.target_scale.to(y.device)
        return (y.double() * scale + mean).to(y.dtype)

    def restore_variances(self, variance: Tensor) -> Tensor:
        """Variances of standardised targets in the squared units of the data, shape [n, C]."""
        scale = self.target_scale.to(variance.device)
        return (variance.double() * scale.square()).to(variance.dtype)


def standardise(train_inputs: Tensor, train_targets: Tensor) -> Standardiser:
    """Measure the training rows; use the result on every other set too, another arm's included.

    A constant column gets the scale 1, so it becomes zero on the training rows.

    Args:
        train_inputs: Shape [n, d].
        train_targets: Shape [n, C].
    """
    if len(train_inputs) != len(train_targets) or len(train_inputs) < 2:
        raise ValueError(
            f"{len(train_inputs)} input rows and {len(train_targets)} target rows; "
            "pass the same number of each, at least 2."
        )
    return Standardiser(*_statistics(train_inputs), *_statistics(train_targets))


def _statistics(rows: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows.detach().double()
    mean, scale = rows.mean(0), rows.std(0, correction=0)
    # Rounding leaves a constant column a tiny spread; dividing by it would make noise of it.
    constant = scale <= 1e-10 * rows.abs().amax(0)
    return mean, torch.where(constant, torch.ones_like(scale), scale)


def _apply(rows: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return ((rows.double() - mean.to(rows.device)) / scale.to(rows.device)).to(rows.dtype)
