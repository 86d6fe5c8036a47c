r"""Probabilities of classes whose logits are Gaussian: an average of softmax over fixed draws.

.. math:: p = \frac{1}{S} \sum_s \mathrm{softmax}\big( (z + e_s) / T \big), \qquad e_s \sim N(0, V)

Only differences of logits matter. V is known for the k leading classes of a row, as the covariance D of
:math:`e_j - e_1`, j = 2 .. k; all other classes have one noise in common, whose variance v is the mean of the
leading ones about their mean. So the average has k + 1 terms however many classes there are.
"""

import torch
from torch import Tensor

NUM_DRAWS = 64
_DRAWS: dict[tuple, Tensor] = {}  # by dimension, precision and device
_UNIT_NOISE: dict[tuple, Tensor] = {}  # see `_unit_noise`


def normal_draws(dim: int, like: Tensor | None = None) -> Tensor:
    """Quasi-random normal numbers [S, dim], float64 or `like` a tensor, the same in every call: Sobol points
    and their negatives, with mean 0 and covariance I up to rounding."""
    key = (dim, torch.float64, torch.device("cpu")) if like is None else (dim, like.dtype, like.device)
    if type(like) not in (Tensor, type(None)):  # part of a trace: not cached
        return normal_draws(dim).to(like)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if key not in _DRAWS and like is not None:
        _DRAWS[key] = normal_draws(dim).to(like)
    if key in _DRAWS:
        return _DRAWS[key]
    points = torch.quasirandom.SobolEngine(dim).draw(NUM_DRAWS // 2 + 1, dtype=torch.float64)[1:]
    draws = torch.special.ndtri(points)
    draws = torch.cat([draws, -draws])
    factor = torch.linalg.cholesky(draws.T @ draws / len(draws))
    _DRAWS[key] = torch.linalg.solve_triangular(factor, draws.T, upper=False).T.contiguous()
    return _DRAWS[key]


def with_others(covariance: Tensor) -> Tensor:
    r"""Covariance [n, k, k] of :math:`e_j - e_1` for the k leading classes and of the other classes' common
    noise less e_1, from the covariance D [n, k - 1, k - 1] of the former:

    .. math:: \begin{pmatrix} D & D 1 / k \\ 1^\top D / k & v (1 + 1 / k) + 1^\top D 1 / k^2 \end{pmatrix},
        \qquad v = \frac{\mathrm{tr} D - 1^\top D 1 / k}{k - 1}

    where the leading classes' common noise has the variance v / k, as if all were independent.
    """
    k = covariance.shape[1] + 1
    sums = covariance.sum(dim=2, keepdim=True)  # [n, k - 1, 1]
    total = sums.sum(dim=1, keepdim=True)
    eye = torch.eye(k - 1, dtype=covariance.dtype, device=covariance.device)
    trace = (covariance * eye).sum(dim=(1, 2), keepdim=True)
    corner = (trace - total / k) * ((1.0 + 1.0 / k) / (k - 1)) + total / k**2
    upper, lower = torch.cat([covariance, sums / k], dim=2), torch.cat([sums.mT / k, corner], dim=2)
    return torch.cat([upper, lower], dim=1)


def square_root(matrices: Tensor) -> Tensor:
    """L with L L^T = A for semidefinite A [n, d, d], lower triangular. Export formats have no Cholesky
    factorisation, and that of torch fails for singular matrices."""
    left, columns, d = matrices, [], matrices.shape[1]
    for place in range(d):
        pivot = left[:, 0, 0].clamp_min(0.0)[:, None]
        positive = pivot > torch.finfo(matrices.dtype).eps * matrices[:, place, place][:, None]
        column = torch.where(positive, left[:, :, 0] / torch.where(positive, pivot, 1.0).sqrt(), 0.0)
        columns.append(torch.nn.functional.pad(column, (place, 0)))
        left = (left - column[:, :, None] * column[:, None])[:, 1:, 1:]
    return torch.stack(columns, dim=2)


def log_probabilities(logits: Tensor, covariance: Tensor) -> Tensor:
    """Log probabilities [n, C] of classes, C >= 2, from logits [n, C] over T and the covariance D
    [n, k - 1, k - 1] over T^2."""
    classes, k = logits.shape[1], covariance.shape[1] + 1
    largest, order = logits.topk(min(k + 1, classes), dim=1)
    if classes == k:
        return logits.scatter(1, order, _mean_log_softmax(largest, covariance, others=False))
    order, largest, next_one = order[:, :k], largest[:, :k], largest[:, k:]
    masked = logits.scatter(1, order, torch.full_like(largest, -torch.inf)).log_softmax(dim=1)
    joint = next_one - masked.amax(dim=1, keepdim=True)  # log of the other classes' sum
    logs = _mean_log_softmax(torch.cat([largest, joint], dim=1), covariance, others=True)
    return (masked + logs[:, k:]).scatter(1, order, logs[:, :k])


def _mean_log_softmax(logits: Tensor, covariance: Tensor, *, others: bool) -> Tensor:
    """Logarithm of the mean softmax over the draws [n, g]; all logits but the first have noise."""
    single, tiny = covariance.shape[1] == 1, torch.finfo(logits.dtype).tiny
    # with one variance, all noise is a multiple of one table: fewer operations, each of which delays a GPU
    noise = _unit_noise(logits, others) if single else _noise(covariance, others).to(logits)
    noise = noise * covariance.clamp_min(tiny).sqrt() if single else noise
    return (logits[:, None] + noise).softmax(dim=2).mean(dim=1).clamp_min(tiny).log()


def _noise(covariance: Tensor, others: bool) -> Tensor:
    """Draws of the noise of all logits [n, S, g]."""
    root = square_root(with_others(covariance) if others else covariance)
    return torch.nn.functional.pad(normal_draws(root.shape[1], root) @ root.mT, (1, 0))


def _unit_noise(logits: Tensor, others: bool) -> Tensor:
    """Draws of the noise for a single variance of 1 [1, S, g], cached for each device and precision."""
    key = others, logits.dtype, logits.device
    if key in _UNIT_NOISE:
        return _UNIT_NOISE[key]
    with torch.inference_mode(False):
        noise = _noise(torch.ones(1, 1, 1, dtype=torch.float64, device="cpu"), others).to(logits)
    if type(noise) is Tensor:  # and not part of a trace
        _UNIT_NOISE[key] = noise
    return noise
