r"""Hyperparameters by the profile marginal likelihood: one number to search.

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
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# tau is searched between these multiples of the kernel's mean diagonal. Below the lower end float64
# could no longer take the variance as a difference; above the upper end the data say nothing.
LOWEST, HIGHEST = 1e-8, 1e2
GRID, REFINE = 11, 9
MANY, THINNED = 512, 4  # from so many rows on, the search begins on one row in four
TOGETHER = 2**24  # bytes of matrices that are factorised in one call
NEAR, CLOSE, STEPS = 1.0, 0.02, 4  # first step of that search, in log tau; when to stop; parabolas at most

Losses = Callable[[Tensor], Tensor]  # at places [k], shape [k]


class FactorisationError(ValueError):
    """A Gram matrix that no allowed jitter makes positive definite."""


class Evidence(NamedTuple):
    """The maximum of the profile marginal likelihood."""

    tau: Tensor  # noise ratio sigma^2 / s, a scalar
    scale: Tensor  # prior scale s of each output [C]
    factor: Tensor  # lower Cholesky factor of K + (tau + jitter) I [m, m]
    jitter: Tensor  # what had to be added to the diagonal besides tau, a scalar; 0 as a rule


def factorise(gram: Tensor, tau: float | Tensor) -> tuple[Tensor, float]:
    """Cholesky factor of K + tau I, and the jitter it took (0 unless rounding made K indefinite)."""
    jitter = 0.0
    for power in range(-12, -4):
        noisy = gram.clone()
        noisy.diagonal().add_(tau + jitter)
        factor, info = torch.linalg.cholesky_ex(noisy)
        if bool(_sound(factor, info)):  # all that a GPU is waited for, as a rule
            return factor, jitter
        level = float(gram.diagonal().mean())
        if not math.isfinite(level):
            raise FactorisationError("the kernel is not finite: the network's gradients overflow here.")
        jitter = level * 10.0**power
    raise FactorisationError("the kernel is not positive definite even with jitter 1e-6 of its diagonal.")


def _sound(factor: Tensor, info: Tensor) -> Tensor:
    """Which factors [..., m, m] are factors, shape [...]."""
    return (info == 0) & (factor.diagonal(dim1=-2, dim2=-1).sum(dim=-1) < math.inf)


def profile_scale(factor: Tensor, targets: Tensor) -> Tensor:
    """The best scale s_c for given factors of K + tau I [..., m, m], shape [..., C].

    An output whose targets are all zero has no scale: it gets a millionth of a millionth of the others'.
    """
    white = torch.linalg.solve_triangular(factor, targets, upper=False)
    scale = white.square().mean(dim=-2)
    floor = 1e-12 * scale.mean(dim=-1, keepdim=True) + torch.finfo(scale.dtype).tiny
    return torch.maximum(scale, floor)


def profile_loss(factor: Tensor, targets: Tensor) -> Tensor:
    """Minus the profile log marginal likelihood, up to constants, of each factor, shape [...]."""
    m, outputs = targets.shape
    log_determinant = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    log_scales = profile_scale(factor, targets).log().sum(dim=-1)
    return 0.5 * (m * log_scales + outputs * log_determinant)


def profile_losses(gram: Tensor, targets: Tensor, log_taus: Tensor, *, jitter: float = 0.0) -> Tensor:
    """The same at several log tau [k]; infinite where rounding keeps K from being factorised."""
    losses = []
    for lot in (log_taus.exp() + jitter).split(max(1, TOGETHER // max(1, gram.nbytes))):
        noisy = gram.repeat(len(lot), 1, 1)
        noisy.diagonal(dim1=1, dim2=2).add_(lot[:, None])
        factor, info = torch.linalg.cholesky_ex(noisy)
        losses.append(torch.where(_sound(factor, info), profile_loss(factor, targets), torch.inf))
    return torch.cat(losses)


def maximise_evidence(gram: Tensor, targets: Tensor) -> Evidence:
    """Of K [m, m] and t [m, C], float64: log tau on a grid, then by golden section around the best point.

    Of many rows, that is done on every fourth, and the place it finds is where a search on all rows begins:
    a few factorisations in place of twenty.
    """
    tau = _best_log_tau(gram, targets).exp()
    factor, jitter = factorise(gram, tau)
    return Evidence(tau, profile_scale(factor, targets), factor, gram.new_tensor(jitter))


def _best_log_tau(gram: Tensor, targets: Tensor) -> Tensor:
    bounds = log_bounds(gram.diagonal().mean())
    if len(gram) < MANY:
        _, jitter = factorise(gram, bounds[0].exp())  # what rounding asks for at the least noise
        return least_on_grid(lambda places: profile_losses(gram, targets, places, jitter=jitter), *bounds)
    few = _best_log_tau(gram[::THINNED, ::THINNED].contiguous(), targets[::THINNED])
    return least_near(lambda places: profile_losses(gram, targets, places), few, *bounds)


def log_bounds(level: Tensor, lowest: float = LOWEST, highest: float = HIGHEST) -> tuple[Tensor, Tensor]:
    """Between which log tau is searched, scalars; at level 0, without any gradient, only noise is left."""
    level = torch.where(level == 0, 1.0, level)
    return (lowest * level).log(), (highest * level).log()


def _golden_section(losses: Losses, left: Tensor, right: Tensor, best: Tensor) -> Tensor:
    """The place of the smallest loss seen while shrinking [left, right]; never worse than `best`.

    Places and losses go in pairs [2], and on a GPU stay there: which way to go is not asked.
    """
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    places = torch.stack([right - ratio * (right - left), left + ratio * (right - left)])
    inner = torch.stack([places, losses(places)], dim=1)
    for _ in range(REFINE - 2):
        first = inner[0, 1] <= inner[1, 1]
        left, right = torch.where(first, left, inner[0, 0]), torch.where(first, inner[1, 0], right)
        place = torch.where(first, right - ratio * (right - left), left + ratio * (right - left))[None]
        new = torch.cat([place, losses(place)])
        inner = torch.where(first, torch.stack([new, inner[0]]), torch.stack([inner[1], new]))
    seen = torch.cat([best[None], inner])
    return seen[:, 0].take(seen[:, 1].argmin())


@dataclass(frozen=True)
class Prior:
    """One prior for all experts of a kernel, so that their variances can be compared."""

    tau: Tensor  # noise ratio sigma^2 / s, a scalar
    scale: Tensor  # s, a scalar

    def at(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """tau, and s of each output of targets [m, B], where these are."""
        return self.tau.to(targets), self.scale.to(targets).repeat(targets.shape[1])


def pooled_evidence(
    systems: Sequence[tuple[Tensor, Tensor]], *, lowest: float = LOWEST, highest: float = HIGHEST
) -> Prior:
    r"""The tau and s, the same for all experts and outputs, of the largest joint marginal likelihood.

    .. math:: s = \tfrac1N \sum_e \sum_i \overline{(u_{ei}^\top t_e)^2} / (\lambda_{ei} + \tau), \qquad
        \tfrac12 \big( N \log s + \sum_e \log\det(K_e + \tau I) \big) \to \min

    where N counts the rows of all experts and the bar is the mean over outputs. A system is an expert's K
    [m, m] and t [m, B], float64; tau lies between `lowest` and `highest` of the mean diagonal of K.
    """
    eigenvalues, shares = [], []
    for gram, targets in systems:
        values, vectors = torch.linalg.eigh(gram)
        eigenvalues.append(values.clamp_min(0.0))
        shares.append((vectors.T @ targets).square().mean(dim=1))
    spectrum, energy = torch.cat(eigenvalues), torch.cat(shares)
    if not bool(torch.isfinite(spectrum).all() & torch.isfinite(energy).all()):
        raise FactorisationError("the kernel is not finite: the network's gradients overflow.")
    level = spectrum.mean()

    def scales(log_taus: Tensor) -> Tensor:
        found = (energy / (spectrum + log_taus.exp()[:, None])).mean(dim=1)
        return found.clamp_min(torch.finfo(energy.dtype).tiny)

    def losses(log_taus: Tensor) -> Tensor:
        return scales(log_taus).log() + (spectrum + log_taus.exp()[:, None]).log().mean(dim=1)

    log_tau = least_on_grid(losses, *log_bounds(level, lowest, highest))
    return Prior(tau=log_tau.exp(), scale=scales(log_tau[None])[0])


def least_on_grid(losses: Losses, low: Tensor, high: Tensor) -> Tensor:
    """Where a loss is least: on a grid, then by golden section around the best grid point. All scalars."""
    step = (high - low) / (GRID - 1)
    values = losses(low + step * torch.arange(GRID, device=step.device))
    best = values.argmin()
    left, right = low + (best - 1).clamp_min(0) * step, low + (best + 1).clamp_max(GRID - 1) * step
    return _golden_section(losses, left, right, torch.stack([low + best * step, values.min()]))


def least_number(losses: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float:
    """The same of numbers on the CPU, where so many small steps of tensors would take longer."""
    grid, ratio = np.linspace(low, high, GRID), (math.sqrt(5.0) - 1.0) / 2.0
    best = int((values := losses(grid)).argmin())
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    places = np.array([right - ratio * (right - left), left + ratio * (right - left)])
    inner = np.stack([places, losses(places)], axis=1)
    for _ in range(REFINE - 2):
        first = bool(inner[0, 1] <= inner[1, 1])
        left, right = (left, inner[1, 0]) if first else (inner[0, 0], right)
        place = np.array([right - ratio * (right - left) if first else left + ratio * (right - left)])
        new = np.concatenate([place, losses(place)])
        inner = np.stack([new, inner[0]] if first else [inner[1], new])
    seen = np.stack([[grid[best], values[best]], *inner])
    return float(seen[seen[:, 1].argmin(), 0])


def least_near(losses: Losses, near: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """Where a loss is least between two places, from one near it: steps downhill, then parabolas."""
    start, low, high = torch.stack([near, least, most]).tolist()
    known: dict[float, float] = {}

    def look(*places: float) -> None:
        new = [place for place in (min(max(p, low), high) for p in places) if place not in known]
        known.update(zip(new, losses(near.new_tensor(new)).tolist(), strict=True))

    def around() -> tuple[float, float | None, float | None]:
        best = min(known, key=known.__getitem__)
        left = max((place for place in known if place < best), default=None)
        return best, left, min((place for place in known if place > best), default=None)

    step = NEAR
    look(start - step, start, start + step)
    best, left, right = around()
    while (left is None and best > low) or (right is None and best < high):
        step *= 2
        look(best - step if left is None and best > low else best + step)
        best, left, right = around()
    for _ in range(STEPS):
        if left is None or right is None:  # the end of the interval
            break
        lowest = _vertex((left, best, right), (known[left], known[best], known[right]))
        if lowest is None or abs(lowest - best) < CLOSE:
            break
        look(lowest)
        best, left, right = around()
    return near.new_tensor(best)


def _vertex(places: tuple[float, float, float], values: tuple[float, float, float]) -> float | None:
    """Where the parabola through three points is least; None where they lie on a line."""
    (a, b, c), (fa, fb, fc) = places, values
    rise = (b - a) * (fb - fc) - (b - c) * (fb - fa)
    if not abs(rise) > 0.0:  # or nothing could be factorised
        return None
    return b - 0.5 * ((b - a) ** 2 * (fb - fc) - (b - c) ** 2 * (fb - fa)) / rise
