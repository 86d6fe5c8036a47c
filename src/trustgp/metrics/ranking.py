"""Scores with one number per row: how they rank losses, and separate foreign rows from familiar ones."""

import torch
from torch import Tensor


def same_shape(**tensors: Tensor) -> None:
    """Raise unless all shapes agree; broadcasting [n] against [n, 1] would score n^2 pairs."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        text = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"shapes differ: {text}; they must agree.")


def selective_risk(scores: Tensor, losses: Tensor) -> Tensor:
    r"""Mean loss of the k rows with the lowest scores, for k = 1 .. n: the sparsification curve.

    .. math:: R_k = \tfrac1k \sum_{i \le k} \ell_{(i)}, \qquad \text{AURC} = \tfrac1n \sum_k R_k

    Rows of equal score are averaged over random orders: with a constant score the curve is flat, at the mean
    loss, and no order of the rows in a file can improve it. Scores equal to the losses give the oracle's
    curve, which no other scores can undercut.

    Args:
        scores: How uncertain a row is, for example its std, shape [n].
        losses: Losses, not negative, for example squared errors, shape [n].

    Returns:
        R, shape [n], float64; its mean is the area under the risk-coverage curve.
    """
    same_shape(scores=scores, losses=losses)
    ordered, order = _scores(scores, "scores").sort(stable=True)
    sizes = ordered.unique_consecutive(return_counts=True)[1]
    expected = torch.segment_reduce(losses.double()[order], "mean", lengths=sizes).repeat_interleave(sizes)
    return expected.cumsum(0) / torch.arange(1, len(scores) + 1, dtype=torch.float64, device=scores.device)


def auroc(in_scores: Tensor, out_scores: Tensor) -> Tensor:
    r"""Area under the ROC curve of a novelty score, a float64 scalar; 0.5 is chance.

    .. math:: P(s_{out} > s_{in}) + \tfrac12 P(s_{out} = s_{in})

    Args:
        in_scores: Scores of familiar rows, shape [n].
        out_scores: Scores of foreign rows, which should be higher, shape [m].
    """
    familiar, foreign = _scores(in_scores, "in_scores"), _scores(out_scores, "out_scores")
    ordered = familiar.sort().values
    below = torch.searchsorted(ordered, foreign, right=False).double()
    not_above = torch.searchsorted(ordered, foreign, right=True).double()
    return (below + not_above).mean() / (2 * len(ordered))


def fpr95(in_scores: Tensor, out_scores: Tensor) -> Tensor:
    """False positive rate at 95 % true positives, a float64 scalar; 0 is best, 0.95 is chance.

    As in the literature on out-of-distribution detection (Hendrycks and Gimpel 2017, Liang et al. 2018), the
    familiar rows are the positives, and pass when their score is low. The rate is the share of foreign rows
    that pass, too, when the threshold lets 95 % of familiar rows pass. The arguments are those of `auroc`.
    """
    familiar, foreign = _scores(in_scores, "in_scores"), _scores(out_scores, "out_scores")
    needed = -(-95 * len(familiar) // 100)  # whole rows: 0.95 n in floats may round up past it
    return (foreign <= familiar.sort().values[needed - 1]).double().mean()


def _scores(scores: Tensor, name: str) -> Tensor:
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(f"{name} have shape {tuple(scores.shape)}; one score a row is needed, shape [n].")
    if bool(scores.isnan().any()):
        raise ValueError(f"{name} hold {int(scores.isnan().sum())} NaN; every row needs a score.")
    return scores.double().contiguous()  # a column of a matrix may come in
