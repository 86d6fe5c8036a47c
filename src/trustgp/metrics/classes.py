"""Scores of probabilities [n, C] against labels, int64, [n].

Every row is scored. A row whose probabilities are not finite costs infinitely much in likelihood, and as much
as a confident mistake in the others; none is dropped.
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


def accuracy(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Share of rows whose most probable class is the true one, a float64 scalar.

    Anything that ranks the classes may replace the probabilities, such as logits.
    """
    _check_shapes(probabilities, labels)
    right = probabilities.argmax(dim=1) == labels
    return (right & torch.isfinite(probabilities).all(dim=1)).double().mean()


def expected_calibration_error(probabilities: Tensor, labels: Tensor, *, bins: int = BINS) -> Tensor:
    r"""How far the probability of the predicted class is from the share of right ones, a float64 scalar.

    .. math:: \sum_b \tfrac{n_b}{n} | \mathrm{accuracy}_b - \mathrm{confidence}_b |

    over the bins of `reliability_curve`; 15 are what most papers report.
    """
    number, confidence, share = reliability_curve(probabilities, labels, bins=bins)
    return (number * torch.where(number > 0, (share - confidence).abs(), 0.0)).sum() / number.sum()


def reliability_curve(probabilities: Tensor, labels: Tensor, *, bins: int = BINS) -> tuple[Tensor, ...]:
    """Rows, mean confidence and share of right ones in each bin of confidence, each [bins], float64.

    Bins have equal width on [0, 1], each without its lower and with its upper end. Empty ones hold 0 three
    times.
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
    """The same from the confidence and whether it is right, 0 or 1, float64, shape [n] each."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    place = torch.bucketize(confidence, edges[1:-1], right=False)
    number = torch.bincount(place, minlength=bins).double()
    sums = (torch.bincount(place, weights=w, minlength=bins) for w in (confidence, right))
    mean, share = (total / number.clamp_min(1.0) for total in sums)
    return number, mean, share


def entropy(probabilities: Tensor) -> Tensor:
    r"""Entropy of each row, in nats, shape [n], float64: :math:`-\sum_c p_c \log p_c`."""
    return torch.special.entr(probabilities.double()).sum(dim=1)


def _checked(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The probabilities in float64, after checks; rows that are not finite are allowed."""
    _check_shapes(probabilities, labels)
    p = probabilities.double()
    finite = p[torch.isfinite(p).all(dim=1)]
    if bool((finite < 0).any()) or bool(((finite.sum(dim=1) - 1).abs() > SUM_TOLERANCE).any()):
        raise ValueError("probabilities must lie in 0..1 and add up to 1 in every row; are these logits?")
    return p


def _check_shapes(probabilities: Tensor, labels: Tensor) -> None:
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or len(labels) == 0:
        shapes = f"probabilities have shape {tuple(probabilities.shape)} and labels {tuple(labels.shape)}"
        raise ValueError(f"{shapes}; [n, C] and [n] are needed, with at least one row.")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"labels are {labels.dtype}; class numbers (int64) are needed.")
    last = probabilities.shape[1] - 1
    if int(labels.min()) < 0 or int(labels.max()) > last:
        raise ValueError(f"labels lie in {int(labels.min())}..{int(labels.max())}; 0..{last} are allowed.")
