r"""Hyperparameters by the profile marginal likelihood.

With the noise ratio tau fixed, the prior scale of each output has the closed form

.. math:: s_c = \tfrac1m \sum_i (u_i^\top t_c)^2 / (\lambda_i + \tau)
              = \tfrac1m t_c^\top (K + \tau I)^{-1} t_c,

so that minus the log marginal likelihood is, up to constants, the profile

.. math:: \tfrac12 \big( m \sum_c \log s_c + C \log\det(K + \tau I) \big).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .search import minimise_from_zero

# tau is searched between these multiples of the kernel's mean diagonal. Below the lower end the difference
# that gives the variance is lost in float64; above the upper end the kernel does not matter.
LOWEST, HIGHEST = 1e-8, 1e2
GRID, REFINE = 11, 9
MIN_THINNED_ROWS, THINNING = 512, 4  # from this number of rows on, the search begins on one row in four
MAX_BATCH_BYTES = 2**24  # of matrices that are factorised in one call
FIRST_STEP, TOLERANCE, MAX_PARABOLAS = 1.0, 0.02, 4  # of that search, in log tau
# Grids for a stationary kernel: lengths over the median distance, and noise ratios over its diagonal.
LENGTHS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.8)
RATIOS = (1e-8, 1e-6, 1e-4, 1e-2, 1e-1, 1.0, 10.0)
# Log length of each column: standard deviation of its prior about the common length, largest deviation (also
# of the common length from typical), and resolution; then initial tau, and steps of the search.
LENGTH_STD, MAX_LOG_LENGTH, RESOLUTION, INITIAL_TAU, MAX_STEPS = 2.0, 3.0, 1 / 16, 1e-2, 15


class FactorisationError(ValueError):
    """A Gram matrix that no allowed jitter makes positive definite.

    Examples:
        >>> try:
        ...     model = trustgp.fit(network, train, strict=True, progress=False)
        ... except trustgp.FactorisationError as error:
        ...     print(error)
    """


class Evidence(NamedTuple):
    """The maximum of the profile marginal likelihood."""

    tau: Tensor  # noise ratio sigma^2 / s, a scalar
    scale: Tensor  # prior scale s of each output [C]
    factor: Tensor  # lower Cholesky factor of K + (tau + jitter) I [m, m]
    jitter: Tensor  # added to the diagonal besides tau, a scalar; usually 0
    spectrum: tuple[Tensor, Tensor] | None  # eigenvalues [m] and eigenvectors [m, m] of K; None: many rows


def factorise(gram: Tensor, tau: float | Tensor) -> tuple[Tensor, float]:
    """Cholesky factor of K + tau I, and the jitter it took (0 unless rounding made K indefinite)."""
    jitter = 0.0
    for power in range(-12, -4):
        noisy = gram.clone()
        noisy.diagonal().add_(tau + jitter)
        factor, info = torch.linalg.cholesky_ex(noisy)
        if bool(_valid(factor, info)):  # usually the only synchronisation with a GPU
            return factor, jitter
        level = float(gram.diagonal().mean())
        if not math.isfinite(level):
            raise FactorisationError("the kernel is not finite: the network's gradients overflow here.")
        jitter = level * 10.0**power
    raise FactorisationError("the kernel is not positive definite even with jitter 1e-6 of its diagonal.")


def _valid(factor: Tensor, info: Tensor) -> Tensor:
    """Which factors [..., m, m] are valid, shape [...]."""
    return (info == 0) & (factor.diagonal(dim1=-2, dim2=-1).sum(dim=-1) < math.inf)


def profile_scale(factor: Tensor, targets: Tensor) -> Tensor:
    """The best scale s_c for given factors of K + tau I [..., m, m], shape [..., C].

    An output whose targets are all zero has no scale: it gets 1e-12 times the mean scale.
    """
    white = torch.linalg.solve_triangular(factor, targets, upper=False)
    scale = white.square().mean(dim=-2)
    floor = 1e-12 * scale.mean(dim=-1, keepdim=True) + torch.finfo(scale.dtype).tiny
    return torch.maximum(scale, floor)


def profile_loss(factor: Tensor, targets: Tensor, scale: Tensor | None = None) -> Tensor:
    """Minus the profile log marginal likelihood of each factor, up to constants, at the best scale, [...]."""
    m, outputs = targets.shape[-2:]
    log_determinant = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    log_scales = (profile_scale(factor, targets) if scale is None else scale).log().sum(dim=-1)
    return 0.5 * (m * log_scales + outputs * log_determinant)


def profile_losses(gram: Tensor, targets: Tensor, log_taus: Tensor) -> Tensor:
    """Profile loss at several log tau [k]; infinite where K is not positive definite to rounding."""
    losses = []
    for lot in log_taus.exp().split(max(1, MAX_BATCH_BYTES // max(1, gram.nbytes))):
        noisy = gram.repeat(len(lot), 1, 1)
        noisy.diagonal(dim1=1, dim2=2).add_(lot[:, None])
        factor, info = torch.linalg.cholesky_ex(noisy)
        losses.append(torch.where(_valid(factor, info), profile_loss(factor, targets), torch.inf))
    return torch.cat(losses)


def maximise_evidence(gram: Tensor, targets: Tensor) -> Evidence:
    """Maximum for K [m, m] and t [m, C], float64: a grid of log tau, then golden section at its best point.

    One eigendecomposition gives the profile at every tau. With many rows, only every fourth one is used, and
    the result starts a search on all rows, which takes a few factorisations.
    """
    tau, spectrum = _best_tau(gram, targets)
    factor, jitter = factorise(gram, tau)
    return Evidence(tau, profile_scale(factor, targets), factor, gram.new_tensor(jitter), spectrum)


def _best_tau(gram: Tensor, targets: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    level = gram.diagonal().mean()
    if len(gram) < MIN_THINNED_ROWS:
        values, vectors = finite_eigh(gram)
        shares = (vectors.T @ targets).square()
        return spectral_evidence(values, shares, len(gram), level)[0], (values, vectors)
    few, _ = _best_tau(gram[::THINNING, ::THINNING].contiguous(), targets[::THINNING])
    best = minimise_near(lambda taus: profile_losses(gram, targets, taus), few.log(), *log_bounds(level))
    return best.exp(), None


def finite_eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [m], at least 0, ascending, and eigenvectors [m, m]; raises `FactorisationError` where
    some entries are not finite."""
    if not math.isfinite(float(gram.sum())):
        raise FactorisationError("the kernel is not finite: the network's gradients overflow here.")
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp_min(0.0), vectors


def spectral_evidence(spectrum: Tensor, shares: Tensor, m: int, level: Tensor) -> tuple[Tensor, Tensor]:
    """tau and the scales s_c [C] from eigenvalues [k] and (u_i^T t_c)^2 [k, C] of m rows; the last eigenvalue
    has the multiplicity m - k + 1. tau is in a range about `level`, the kernel's mean diagonal."""
    # few numbers, many evaluations: on a GPU, launches would dominate
    table = torch.column_stack([spectrum, shares, level.expand(len(spectrum))]).cpu().numpy()
    scales, losses = _spectral_profile(table[:, 0], table[:, 1:-1], m, np)
    bounds = map(float, log_bounds(torch.tensor(table[0, -1])))
    tau = np.exp([minimise_on_grid(losses, *bounds, arrays=np)])
    best = torch.from_numpy(np.concatenate([tau, scales(tau)[:, 0]])).to(shares)
    return best[0], best[1:]


def stacked_evidence(spectra: Tensor, shares: Tensor, m: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """tau [g] and the scales [g, C] of g experts at once, on the device of their tensors; arguments are those
    of `spectral_evidence` for each expert, [g, k], [g, k, C], [g] and [g]."""
    scales, losses = _spectral_profile(spectra, shares, m[:, None], torch)
    tau = minimise_on_grid(losses, *log_bounds(level)).exp()
    return tau, scales(tau[:, None])[..., 0]


def _spectral_profile(
    values: Any, energy: Any, m: Any, arrays: Any
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Functions for the scales [..., C, t] at several tau [..., t] and the losses [..., t] at log tau, from
    eigenvalues [..., k] and shares [..., k, C]."""
    tiny, rows = arrays.finfo(values.dtype).tiny, m if isinstance(m, int) else m[..., None]

    def scales(taus: Any) -> Any:
        scale = energy.swapaxes(-1, -2) @ (1.0 / (values[..., None] + taus[..., None, :])) / rows
        return arrays.maximum(scale, 1e-12 * scale.mean(axis=-2, keepdims=True) + tiny)

    def losses(log_taus: Any) -> Any:
        taus, k, outputs = arrays.exp(log_taus), *energy.shape[-2:]
        log_determinant = arrays.log(values[..., None] + taus[..., None, :]).sum(axis=-2)
        log_determinant = log_determinant + (m - k) * arrays.log(values[..., -1:] + taus)
        return 0.5 * (m * arrays.log(scales(taus)).sum(axis=-2) + outputs * log_determinant)

    return scales, losses


def log_bounds(level: Tensor, lowest: float = LOWEST, highest: float = HIGHEST) -> tuple[Tensor, Tensor]:
    """Bounds of log tau, scalars; at level 0, without any gradient, those of level 1."""
    level = torch.where(level == 0, 1.0, level)
    return (lowest * level).log(), (highest * level).log()


@dataclass(frozen=True)
class Prior:
    """One prior for all experts of a kernel, so that their variances can be compared."""

    tau: Tensor  # noise ratio sigma^2 / s, a scalar
    scale: Tensor  # s, a scalar

    def at(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """tau, and s of each output, in the dtype and on the device of targets [m, B]."""
        return self.tau.to(targets), self.scale.to(targets).repeat(targets.shape[1])


def pooled_evidence(
    systems: Sequence[tuple[Tensor, Tensor]], *, lowest: float = LOWEST, highest: float = HIGHEST
) -> Prior:
    r"""Prior, common to all experts and outputs, with the tau and s of the largest joint marginal likelihood.

    .. math:: s = \tfrac1N \sum_e \sum_i \overline{(u_{ei}^\top t_e)^2} / (\lambda_{ei} + \tau), \qquad
        \tfrac12 \big( N \log s + \sum_e \log\det(K_e + \tau I) \big) \to \min

    where N counts the rows of all experts and the bar is the mean over outputs. A system is an expert's K
    [m, m] and t [m, B], float64; tau lies between `lowest` and `highest` of the mean diagonal of K.
    """
    eigenvalues, shares = [], []
    for gram, targets in systems:
        values, vectors = finite_eigh(gram)
        eigenvalues.append(values)
        shares.append((vectors.T @ targets).square().mean(dim=1))
    spectrum, energy = torch.cat(eigenvalues), torch.cat(shares)
    if not bool(torch.isfinite(spectrum).all() & torch.isfinite(energy).all()):
        raise FactorisationError("the kernel is not finite: the network's gradients overflow.")
    level = spectrum.mean()

    def scales(log_taus: Tensor) -> Tensor:
        scale = (energy / (spectrum + log_taus.exp()[:, None])).mean(dim=1)
        return scale.clamp_min(torch.finfo(energy.dtype).tiny)

    def losses(log_taus: Tensor) -> Tensor:
        return scales(log_taus).log() + (spectrum + log_taus.exp()[:, None]).log().mean(dim=1)

    log_tau = minimise_on_grid(losses, *log_bounds(level, lowest, highest))
    return Prior(tau=log_tau.exp(), scale=scales(log_tau[None])[0])


def minimise_on_grid(losses: Callable[[Any], Any], low: Any, high: Any, *, arrays: Any = torch) -> Any:
    """Place of the minimum of a loss: on a grid, then by golden section around its best point. A scalar, or
    places [...] for several losses, which map places [..., t] to values [..., t].

    Places and losses are pairs [..., 2] without data-dependent control flow, so a GPU need not synchronise.
    With numpy in place of torch, as `arrays`, small steps take less time.
    """
    step, ratio = (high - low) / (GRID - 1), (math.sqrt(5.0) - 1.0) / 2.0
    values = losses(arrays.stack([low + step * k for k in range(GRID)], axis=-1))
    best = values.argmin(axis=-1)
    coarse = arrays.stack([low + best * step, arrays.amin(values, axis=-1)], axis=-1)
    left, right = (low + arrays.clip(place, 0, GRID - 1) * step for place in (best - 1, best + 1))
    pair = arrays.stack([right - ratio * (right - left), left + ratio * (right - left)], axis=-1)
    inner = arrays.stack([pair, losses(pair)], axis=-1)
    for _ in range(REFINE - 2):
        place, loss = inner[..., 0], inner[..., 1]
        first = loss[..., 0] <= loss[..., 1]
        left = arrays.where(first, left, place[..., 0])
        right = arrays.where(first, place[..., 1], right)
        new = arrays.where(first, right - ratio * (right - left), left + ratio * (right - left))[..., None]
        new = arrays.stack([new, losses(new)], axis=-1)
        inner = arrays.where(
            first[..., None, None],
            arrays.concatenate([new, inner[..., :1, :]], axis=-2),
            arrays.concatenate([inner[..., 1:, :], new], axis=-2),
        )
    tried = arrays.concatenate([coarse[..., None, :], inner], axis=-2)
    at = tried[..., 1].argmin(axis=-1)[..., None]
    gather = arrays.take_along_axis if arrays is np else torch.take_along_dim
    return gather(tried[..., 0], at, -1)[..., 0]


def minimise_near(losses: Callable[[Tensor], Tensor], start: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """Place of the minimum of a loss between two bounds, from a start nearby: downhill, then by parabolas."""
    place, low, high = torch.stack([start, least, most]).tolist()
    values: dict[float, float] = {}

    def evaluate(*candidates: float) -> None:
        new = [place for place in (min(max(p, low), high) for p in candidates) if place not in values]
        values.update(zip(new, losses(start.new_tensor(new)).tolist(), strict=True))

    def around() -> tuple[float, float | None, float | None]:
        best = min(values, key=values.__getitem__)
        left = max((place for place in values if place < best), default=None)
        return best, left, min((place for place in values if place > best), default=None)

    step = FIRST_STEP
    evaluate(place - step, place, place + step)
    best, left, right = around()
    while (left is None and best > low) or (right is None and best < high):
        step *= 2
        evaluate(best - step if left is None and best > low else best + step)
        best, left, right = around()
    for _ in range(MAX_PARABOLAS):
        if left is None or right is None:  # the end of the interval
            break
        before, after = best - left, best - right
        fall, climb = values[best] - values[left], values[best] - values[right]
        rise = before * climb - after * fall
        if not abs(rise) > 0.0:  # collinear, or not positive definite
            break
        lowest = best - 0.5 * (before**2 * climb - after**2 * fall) / rise  # of the parabola through them
        if abs(lowest - best) < TOLERANCE:
            break
        evaluate(lowest)
        best, left, right = around()
    return start.new_tensor(best)


def distances(first: Tensor, second: Tensor) -> Tensor:
    """Distances [n, m] between all rows of [n, d] and [m, d].

    They come from differences: |x|^2 + |x'|^2 - 2 x.x' cancels where one row lies far from the others, and
    the kernel would no longer be positive definite.
    """
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")


def length_losses(
    squares: Sequence[Tensor], targets: Sequence[Tensor], typical: Tensor, length: float
) -> list[float]:
    """Minus the log evidence at each of `RATIOS`, on all sets together, with one length for all columns.

    Every set, by squared distances [m, m] and centred targets [m, C], keeps its own scale of each output (in
    closed form); they share the length and the noise ratio. The unit of the length is a `typical` distance.
    """
    ratios = typical.new_tensor(RATIOS).log()
    losses = torch.zeros_like(ratios)
    for squared, values in zip(squares, targets, strict=True):
        losses += profile_losses((squared / (-2.0 * (length * typical) ** 2)).exp_(), values, ratios)
    return losses.tolist()


def best_length(losses: Sequence[Sequence[float]], typical: Tensor) -> tuple[Tensor, Tensor]:
    """Length l and noise ratio tau of the least loss, from `length_losses` at each of `LENGTHS`."""
    table = np.array(losses)  # [lengths, ratios]; where none is finite, the last of each
    at = np.where(np.isnan(table), np.inf, table).argmin() if (table < np.inf).any() else table.size - 1
    length, ratio = divmod(int(at), len(RATIOS))
    return LENGTHS[length] * typical, typical.new_tensor(RATIOS[ratio])


def relative_lengths(inputs: Sequence[Tensor], targets: Sequence[Tensor], typical: Tensor) -> Tensor:
    r"""Length of each column over their geometric mean [d], by the evidence on all sets together.

    .. math:: \sum_{\mathrm{sets}} \mathrm{profile}(l, \tau)
        + \tfrac12 \sum_j (\log l_j - \log l)^2 / 2^2 \to \min

    by L-BFGS over tau, l and every l_j. A column on which the targets do not depend keeps the common length.
    Logarithms are rounded to 1/16, so that the result does not depend on floating-point rounding.
    """

    def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        tau, common, relative = INITIAL_TAU * math.exp(free[0]), free[1], free[2:]
        lengths = typical * typical.new_tensor(np.exp(common + relative))
        pull = relative / LENGTH_STD**2
        total, slope = 0.5 * float(relative @ pull), np.concatenate([[0.0], pull])
        for rows, values in lots:
            profile = torch.cat(_profile_and_slopes(rows / lengths, values, tau), dim=-1)
            value, *by_log = profile.sum(0).tolist()
            total, slope = total + value, slope + by_log
        by_common = slope[1:].sum() - pull.sum()  # which has no prior
        return total, np.insert(slope, 1, by_common)

    lots = [(rows[None], values[None]) for rows, values in zip(inputs, targets, strict=True)]
    if len({(rows.shape, values.shape) for rows, values in lots}) == 1:  # sets of one shape are one batch
        lots = [(torch.stack([*inputs]), torch.stack([*targets]))]
    columns = inputs[0].shape[1]
    noise = [math.log(ratio / INITIAL_TAU) for ratio in (RATIOS[0], RATIOS[-1])]
    bounds = [noise, *([-MAX_LOG_LENGTH, MAX_LOG_LENGTH] for _ in range(1 + columns))]
    place = minimise_from_zero(loss, 2 + columns, max_iter=MAX_STEPS, tolerance=1e-6, bounds=bounds)
    if place is None:
        return torch.ones_like(inputs[0][0])
    relative = place[2:] - place[2:].mean()
    return typical.new_tensor(np.exp(RESOLUTION * np.round(relative / RESOLUTION)))


def _profile_and_slopes(points: Tensor, targets: Tensor, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """The profile [..., 1] of targets [..., m, C] at points [..., m, d], in units of the lengths, and its
    slopes in log tau [..., 1] and the logarithm of each length [..., d]; NaN where K is not positive definite
    to rounding."""
    gram = distances(points, points).square_().mul_(-0.5).exp_()
    noisy = gram.clone()
    noisy.diagonal(dim1=-2, dim2=-1).add_(tau)
    factor = torch.linalg.cholesky_ex(noisy).L
    inverse = torch.cholesky_inverse(factor)
    weights, scale = inverse @ targets, profile_scale(factor, targets)
    # of the profile in K
    slope = 0.5 * (targets.shape[-1] * inverse - (weights / scale[..., None, :]) @ weights.mT)
    by_tau = tau * slope.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
    slope *= gram
    # sum of slope_ik (x_i - x_k)^2
    by_length = 2 * (slope.sum(-1, keepdim=True) * points.square() - points * (slope @ points)).sum(-2)
    return profile_loss(factor, targets, scale)[..., None], by_tau, by_length
