"""Predictions and true boxes made by hand."""

import torch
from torch import Tensor

from trustgp import Prediction
from trustgp.detection import BoxTargets


def make(
    mean: Tensor, variance: Tensor, excess: Tensor | None = None, *, novelty: Tensor | None = None, **more
) -> Prediction:
    zeros, n = torch.zeros_like(mean), len(mean)
    excess, novelty = (zeros if excess is None else excess), (torch.zeros(n) if novelty is None else novelty)
    expert, valid = torch.zeros(n, dtype=torch.int64), torch.isfinite(mean).reshape(n, -1).all(1)
    return Prediction(mean, variance, zeros, excess, novelty, expert, valid, **more)


def there(boxes: list, labels: list[int]) -> BoxTargets:
    return BoxTargets(torch.tensor(boxes).reshape(-1, 4).double(), torch.tensor(labels).long())


def calibration_error(p: Tensor, labels: Tensor, bins: int) -> float:
    """Over bins of the largest probability, its gap to the share of right ones, weighted by their rows."""
    (sure, predicted), total = p.double().max(dim=1), 0.0
    for k in range(bins):
        inside = (sure > k / bins) & (sure <= (k + 1) / bins)
        total += abs(float(((predicted == labels).double() - sure)[inside].sum()))
    return total / len(p)
