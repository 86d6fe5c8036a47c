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

import torch
from torch import Tensor

# tau is searched between these multiples of the kernel's mean diagonal. Below the lower end float64
# could no longer take the variance as a difference; above the upper end the data say nothing.
LOWEST, HIGHEST = 1e-8, 1e2
GRID, REFINE = 11, 9
MANY, THINNED = 512, 4  # from so many rows on, the search begins on one row in four
NEAR, CLOSE, STEPS = 1.0, 0.02, 4  # first step of that search, in log tau; when to stop; parabolas at most


class FactorisationError(ValueError):
    """A Gram matrix that no allowed jitter makes positive definite."""


class Evidence(NamedTuple):
    """The maximum of the profile marginal likelihood."""

    tau: Tensor  # noise ratio sigma^2 / s, a scalar
    scale: Tensor  # prior scale s of each output [C]
    factor: Tensor  # lower Cholesky factor of K + (tau + jitter) I [m, m]
    jitter: Tensor  # what had to be added to the diagonal besides tau, a scalar; 0 as a rule


def factorise(gram: Tensor, tau: float) -> tuple[Tensor, float]:
    """Cholesky factor of K + tau I, and the jitter it took (0 unless rounding made K indefinite)."""
    level = float(gram.diagonal().mean())
    if not math.isfinite(level):
        raise FactorisationError("the kernel is not finite: the network's gradients overflow here.")
    for jitter in (0.0, *(level * 10.0**power for power in range(-12, -5))):
        noisy = gram.clone()
        noisy.diagonal().add_(tau + jitter)
        factor, info = torch.linalg.cholesky_ex(noisy)
        if int(info) == 0 and bool(torch.isfinite(factor.diagonal()).all()):
            return factor, jitter
    raise FactorisationError("the kernel is not positive definite even with jitter 1e-6 of its diagonal.")


def profile_scale(factor: Tensor, targets: Tensor) -> Tensor:
    """The best scale s_c for a given factor of K + tau I, shape [C].

    An output whose targets are all zero has no scale: it gets a millionth of a millionth of the others'.
    """
    white = torch.linalg.solve_triangular(factor, targets, upper=False)
    scale = white.square().mean(dim=0)
    floor = 1e-12 * scale.mean() + torch.finfo(scale.dtype).tiny
    return torch.maximum(scale, floor)


def profile_loss(factor: Tensor, targets: Tensor) -> float:
    """Minus the profile log marginal likelihood, up to constants."""
    m, outputs = targets.shape
    log_determinant = 2.0 * factor.diagonal().log().sum()
    log_scales = profile_scale(factor, targets).log().sum()
    return float(0.5 * (m * log_scales + outputs * log_determinant))


def maximise_evidence(gram: Tensor, targets: Tensor) -> Evidence:
    """Of K [m, m] and t [m, C], float64: log tau on a grid, then by golden section around the best point.

    Of many rows, that is done on every fourth, and the place it finds is where a search on all rows begins:
    a few factorisations in place of twenty.
    """
    level = float(gram.diagonal().mean()) or 1.0  # no gradient at all: only the noise is left

    def loss(log_tau: float) -> float:
        return profile_loss(factorise(gram, math.exp(log_tau))[0], targets)

    low, high = math.log(LOWEST * level), math.log(HIGHEST * level)
    if len(gram) < MANY:
        tau = math.exp(least_on_grid(loss, low, high))
    else:
        few = maximise_evidence(gram[::THINNED, ::THINNED].contiguous(), targets[::THINNED])
        tau = math.exp(least_near(loss, math.log(float(few.tau)), low, high))
    factor, jitter = factorise(gram, tau)
    return Evidence(gram.new_tensor(tau), profile_scale(factor, targets), factor, gram.new_tensor(jitter))


def _golden_section(loss, left: float, right: float, best: float, best_loss: float) -> float:
    """The smallest loss seen while shrinking [left, right]; never worse than `best`."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    inner = [right - ratio * (right - left), left + ratio * (right - left)]
    values = [loss(inner[0]), loss(inner[1])]
    for _ in range(REFINE - 2):
        if values[0] <= values[1]:
            right, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = right - ratio * (right - left)
            values[0] = loss(inner[0])
        else:
            left, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = left + ratio * (right - left)
            values[1] = loss(inner[1])
    winner = 0 if values[0] <= values[1] else 1
    return inner[winner] if values[winner] < best_loss else best


@dataclass(frozen=True)
class Prior:
    """One prior for all experts of a kernel, so that their variances can be compared."""

    tau: Tensor  # noise ratio sigma^2 / s, a scalar
    scale: Tensor  # s, a scalar


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
    level = float(spectrum.mean()) or 1.0  # without any gradient only the noise is left

    def scale_at(log_tau: float) -> Tensor:
        return (energy / (spectrum + math.exp(log_tau))).mean().clamp_min(torch.finfo(energy.dtype).tiny)

    def loss(log_tau: float) -> float:
        return float(scale_at(log_tau).log() + (spectrum + math.exp(log_tau)).log().mean())

    low, high = math.log(lowest * level), math.log(highest * level)
    log_tau = least_on_grid(loss, low, high)
    return Prior(tau=spectrum.new_tensor(math.exp(log_tau)), scale=scale_at(log_tau))


def least_on_grid(loss: Callable[[float], float], low: float, high: float) -> float:
    """Where a loss is least: on a grid, then by golden section around the best grid point."""
    step = (high - low) / (GRID - 1)
    losses = [loss(low + i * step) for i in range(GRID)]
    best = min(range(GRID), key=losses.__getitem__)
    left, right = low + max(best - 1, 0) * step, low + min(best + 1, GRID - 1) * step
    return _golden_section(loss, left, right, low + best * step, losses[best])


def least_near(loss: Callable[[float], float], start: float, low: float, high: float) -> float:
    """Where a loss is least in [low, high], from a place near it: steps downhill, then parabolas."""
    known: dict[float, float] = {}

    def look(place: float) -> None:
        place = min(max(place, low), high)
        if place not in known:
            known[place] = loss(place)

    def around() -> tuple[float, float | None, float | None]:
        best = min(known, key=known.__getitem__)
        return (
            best,
            max((place for place in known if place < best), default=None),
            min((place for place in known if place > best), default=None),
        )

    step = NEAR
    for place in (start - step, start, start + step):
        look(place)
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
    return best


def _vertex(places: tuple[float, float, float], values: tuple[float, float, float]) -> float | None:
    """Where the parabola through three points is least; None where they lie on a line."""
    (a, b, c), (fa, fb, fc) = places, values
    rise = (b - a) * (fb - fc) - (b - c) * (fb - fa)
    if rise == 0.0:
        return None
    return b - 0.5 * ((b - a) ** 2 * (fb - fc) - (b - c) ** 2 * (fb - fa)) / rise
