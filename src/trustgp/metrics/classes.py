"""Scores of probabilities [n, C] against class numbers, int64, [n], or against labels 0 and 1, [n, C].

Every row is scored. A row whose probabilities are not finite has an infinite negative log likelihood, and
costs as much as a confident mistake in the other scores; none is dropped.
"""

import torch
from torch import Tensor

BINS = 15  # of the calibration error, of equal width, as in Guo et al. 2017
SUM_TOLERANCE = 1e-3  # of probabilities, in half precision


def class_nll(probabilities: Tensor, labels: Tensor) -> Tensor:
    r"""Negative log likelihood of the labels, in nats, shape [n], float64: :math:`-\log p_{iy_i}`."""
    p = _checked(probabilities, labels)
    cost = -p.gather(1, labels[:, None]).squeeze(1).log()
    return torch.where(torch.isfinite(p).all(dim=1), cost, torch.inf)


def brier(probabilities: Tensor, labels: Tensor) -> Tensor:
    r"""Brier score of each row, shape [n], float64, from 0 to 2: :math:`\sum_c (p_{ic} - [c = y_i])^2`."""
    p = _checked(probabilities, labels)
    cost = p.square().sum(dim=1) - 2 * p.gather(1, labels[:, None]).squeeze(1) + 1
    return torch.where(torch.isfinite(p).all(dim=1), cost, 2.0)


def expected_calibration_error(probabilities: Tensor, labels: Tensor, *, bins: int = BINS) -> Tensor:
    r"""Mean gap between the probability of the predicted class and the accuracy, a float64 scalar.

    .. math:: \sum_b \tfrac{n_b}{n} | \mathrm{accuracy}_b - \mathrm{confidence}_b |

    over the bins of `reliability_curve`; 15 are what most papers report.
    """
    number, confidence, share = reliability_curve(probabilities, labels, bins=bins)
    return (number * torch.where(number > 0, (share - confidence).abs(), 0.0)).sum() / number.sum()


def reliability_curve(probabilities: Tensor, labels: Tensor, *, bins: int = BINS) -> tuple[Tensor, ...]:
    """Number of rows, mean confidence and accuracy in each bin of confidence, each [bins], float64.

    Bins have equal width on [0, 1], open below and closed above. All three are 0 in empty bins.
    """
    p = _checked(probabilities, labels)
    if bins < 1:
        raise ValueError(f"bins={bins}; at least one is needed.")
    whole = torch.isfinite(p).all(dim=1)
    confidence, predicted = p.max(dim=1)
    # a row without an answer: confident, and wrong
    confidence, right = torch.where(whole, confidence, 1.0), (predicted == labels) & whole
    return binned(confidence, right.double(), bins=bins)


def binned(confidence: Tensor, right: Tensor, *, bins: int) -> tuple[Tensor, ...]:
    """Number of rows, mean confidence and mean of `right` in each bin, from float64 values [n] each."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    place = torch.bucketize(confidence, edges[1:-1], right=False)
    number = torch.bincount(place, minlength=bins).double()
    sums = (torch.bincount(place, weights=w, minlength=bins) for w in (confidence, right))
    mean, share = (total / number.clamp_min(1.0) for total in sums)
    return number, mean, share


def label_nll(probabilities: Tensor, targets: Tensor) -> Tensor:
    r"""Negative log likelihood of each label, in nats, shape [n, C], float64: :math:`-\log p` or
    :math:`-\log(1 - p)`; infinite where the probability is not finite."""
    p = probabilities.double()
    right = torch.where(targets > 0, p, 1.0 - p)
    return torch.where(torch.isfinite(p), -right.log(), torch.inf)


def label_calibration_error(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Mean gap between probabilities and the share of labels that are present, over 15 bins of equal width
    that pool all rows and labels, a float64 scalar."""
    number, mean, share = label_reliability(probabilities, targets)
    return (number * (share - mean).abs()).sum() / number.sum()


def label_reliability(probabilities: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """Number of labels, their mean probability and the share that is present, in each of 15 bins, [15]."""
    p, there = probabilities.double().flatten(), (targets > 0).double().flatten()
    finite = torch.isfinite(p)  # without an answer: certain, and wrong
    return binned(torch.where(finite, p, 1.0), torch.where(finite, there, 0.0), bins=BINS)


def entropy(probabilities: Tensor) -> Tensor:
    r"""Entropy of each row, in nats, shape [n], float64: :math:`-\sum_c p_c \log p_c`."""
    return torch.special.entr(probabilities.double()).sum(dim=1)


def _checked(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Probabilities in float64, after checks; rows that are not finite are allowed."""
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or len(labels) == 0:
        shapes = f"probabilities have shape {tuple(probabilities.shape)} and labels {tuple(labels.shape)}"
        raise ValueError(f"{shapes}; [n, C] and [n] are needed, with at least one row.")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"labels are {labels.dtype}; class numbers (int64) are needed.")
    last = probabilities.shape[1] - 1
    if int(labels.min()) < 0 or int(labels.max()) > last:
        raise ValueError(f"labels lie in {int(labels.min())}..{int(labels.max())}; 0..{last} are allowed.")
    p = probabilities.double()
    finite = p[torch.isfinite(p).all(dim=1)]
    if bool((finite < 0).any()) or bool(((finite.sum(dim=1) - 1).abs() > SUM_TOLERANCE).any()):
        raise ValueError("probabilities must lie in 0..1 and add up to 1 in every row; are these logits?")
    return p
