"""Calibrations fitted to held-out rows."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .calibration import (
    KNOTS,
    MAX_LOG_SCALE,
    MAX_SUPPORT,
    MAX_VARIANCE,
    MIN_SUPPORT,
    Calibration,
    CalibrationRows,
    OutlierPrior,
    support_quantile,
)
from .predictive import MAX_DF
from .search import MAX_LOG_STEP, minimise_from_zero

PRIOR_STD = 1.0  # standard deviation of the Gaussian prior about the start, in logarithms
# With fewer than MANY_ROWS held-out rows it is chosen among PRIOR_STDS by cross-validation.
MANY_ROWS, FOLDS, PRIOR_STDS = 300, 3, (0.1, 0.3, PRIOR_STD)
MAX_STEPS, FOLD_STEPS, TOLERANCE = 100, 15, 1e-5  # of the search; FOLD_STEPS in cross-validation
MAX_ENTRIES, MAX_FAR_ENTRIES = 2**13, 2**11  # held-out entries, and those of clusters, in a fit
EFFECTIVE_FAR_ROWS = 40  # independent rows that the latter count as
MIN_FAR_NOVELTY = 0.1  # A is 0 below this novelty
MAX_GROWTH = 4.0  # of A
MIN_DF, INITIAL_DF = 2.2, 10.0  # degrees of freedom
BLOCKS, MIN_BLOCK_ROWS = (4, 8, 16, 32, 64), 4  # of consecutive rows whose means are compared
INITIAL_VARYING = 0.95  # gamma
INITIAL_LEVERAGE = 0.3  # w
FLAT_ONSET = 1e4  # b, of a noise that is constant up to a novelty of almost 1
SHARED, PER_OUTPUT = (
    ("fade", "onset", "excess", "leverage"),
    ("level", "trust", "constant", "df"),
)  # all, each
FREE = (*SHARED, *PER_OUTPUT, "weight", "varying", "growth")


def held_out_loss(calibration: Calibration, rows: CalibrationRows) -> float:
    """Mean negative log likelihood of held-out rows."""
    return loss_and_slopes(_arrays(calibration), _arrays(rows))[0]


def _arrays(tensors: Calibration | CalibrationRows) -> dict[str, np.ndarray]:
    return {field.name: getattr(tensors, field.name).numpy() for field in fields(tensors)}


@np.errstate(all="ignore")  # a line search may try steps that overflow
def loss_and_slopes(
    c: dict[str, np.ndarray], rows: dict[str, np.ndarray]
) -> tuple[float, dict[str, np.ndarray]]:
    """Mean negative log likelihood of rows, and its gradient in the parameters `FREE`.

    Letters are as in `Calibration`. A fit takes hundreds of evaluations on few rows, for which automatic
    differentiation is three to four times slower.
    """
    output, nu, p = rows["output"], rows["novelty"], rows["witness_precision"]
    level, trust, constant, df, spread, extent = (
        c[name][output] for name in ("level", "trust", "constant", "df", "spread", "extent")
    )
    # log V
    variance = rows["epistemic"] + rows["noise"]
    fading = np.maximum(np.maximum(nu / c["reach"], variance / extent), 1.0)
    way = _way(nu, c["beyond"])
    power, gamma = nu ** c["onset"], c["varying"]
    nearness, noise = (1.0 - power) / fading, np.log(constant / np.minimum(variance, MAX_VARIANCE))
    own = np.log(level) + c["fade"] * rows["log_kappa"]
    fitted = gamma * own + (1.0 - gamma) * noise + c["leverage"] * rows["log_leverage"]
    exponent = nearness * fitted + way @ c["growth"]
    v = variance * np.exp(np.clip(exponent, -MAX_LOG_SCALE, MAX_LOG_SCALE))
    # mu and L V
    g = np.nan_to_num(trust * p * v, nan=0.0)
    more, square = 1.0 + g, 1.0 + g * g
    mu, left = (c["weight"] * rows["residual_mean"] + g * rows["witness_mean"]) / more, v * more / square
    shift, weight = c["shift"], np.sqrt(c["excess"]) * (1.0 - c["shift"])
    error, offset = rows["residual"] - shift * mu, weight * mu
    both, by_error, by_offset, by_scale, by_df = _on_both_sides(error, offset, left * (df - 2.0) / df, df)
    # with outliers
    total = spread + left + offset * offset
    usual = np.log1p(-c["share"]) + both
    rare = np.log(c["share"]) - 0.5 * (np.log(2 * math.pi * total) + error * error / total)
    density = np.logaddexp(usual, rare)
    inlying, share = np.exp(usual - density), np.exp(rare - density)
    by_total = 0.5 * share * (error * error / total - 1.0) / total
    by_error = inlying * by_error - share * error / total
    by_offset = inlying * by_offset + 2.0 * by_total * offset
    by_left = inlying * by_scale + by_total * left
    # chain rule back to the parameters
    by_mu = weight * by_offset - shift * by_error
    by_g = by_mu * (rows["witness_mean"] - mu) / more + by_left * (1.0 / more - 2.0 * g / square)
    by_v = np.where(np.abs(exponent) < MAX_LOG_SCALE, by_left + by_g * g, 0.0)
    log_nu = np.log(np.maximum(nu, np.finfo(nu.dtype).tiny))
    entries = {
        "fade": by_v * nearness * gamma * rows["log_kappa"],
        "onset": -by_v * fitted * power * log_nu / fading,
        "level": by_v * nearness * gamma / level,
        "excess": by_offset * offset / (2.0 * c["excess"]),
        "weight": by_mu * rows["residual_mean"] / more,
        "trust": by_g * np.nan_to_num(p * v, nan=0.0),
        "varying": by_v * nearness * (own - noise),
        "constant": by_v * nearness * (1.0 - gamma) / constant,
        "growth": by_v[:, None] * way,
        "leverage": by_v * nearness * rows["log_leverage"],
        "df": inlying * (by_df + by_scale * 2.0 / (df * (df - 2.0))),
    }
    return -float(density.mean()), {k: -_gathered(v, c[k], output) / len(nu) for k, v in entries.items()}


def _on_both_sides(
    error: np.ndarray, offset: np.ndarray, squared_scale: np.ndarray, df: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Half a Student-t on either side: log density, and its gradients in error, offset, log s^2 and df."""
    from scipy import special  # slow to import

    unit = special.gammaln((df + 1.0) / 2) - special.gammaln(df / 2) - 0.5 * np.log(math.pi * df)
    by_unit = 0.5 * (special.digamma((df + 1.0) / 2) - special.digamma(df / 2) - 1.0 / df)
    sides = []
    for e in (error - offset, error + offset):
        q = e * e / (df * squared_scale)
        inner, far = q / (1.0 + q), np.log1p(q)
        density = -0.5 * (np.log(squared_scale) + (df + 1.0) * far)
        by_e = -(df + 1.0) * e / (df * squared_scale + e * e)
        sides.append((density, by_e, 0.5 * ((df + 1.0) * inner - 1.0), 0.5 * (inner * (df + 1.0) / df - far)))
    both = np.logaddexp(sides[0][0], sides[1][0])
    first, second = (np.exp(side[0] - both) for side in sides)
    _, by_e, by_scale, by_df = ([first * a, second * b] for a, b in zip(*sides, strict=True))
    gradients = by_e[0] + by_e[1], by_e[1] - by_e[0], by_scale[0] + by_scale[1], by_df[0] + by_df[1] + by_unit
    return both + unit - math.log(2.0), *gradients


def _gathered(entries: np.ndarray, like: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Sums of entries [L] or [L, K]: of all, or of each output."""
    if entries.ndim == 1 and like.ndim:
        return np.bincount(output, entries, minlength=len(like))
    return entries.sum(axis=0)


def _way(novelty: np.ndarray, beyond: np.ndarray) -> np.ndarray:
    """Weights of the values at the knots in A(nu), shape [L, K]."""
    way = np.log(np.maximum(novelty, MIN_SUPPORT)) / np.log(np.minimum(beyond, MAX_SUPPORT))
    way = 1.0 - np.clip(way, 0.0, 1.0)
    knots = (0.0, *KNOTS)
    return np.stack([np.interp(way, knots, row) for row in np.eye(len(knots))[1:]], axis=1)


def initial_calibration(
    rows: CalibrationRows, num_outputs: int, *, corrected: bool, outliers: OutlierPrior | None = None
) -> Calibration:
    """The start of a fit to held-out rows."""
    start = Calibration.default(num_outputs, shift=1.0 if corrected else 0.0, outliers=outliers)
    varying, df = torch.tensor(INITIAL_VARYING, dtype=torch.float64), torch.full_like(start.df, INITIAL_DF)
    leverage = torch.full_like(varying, INITIAL_LEVERAGE * bool(rows.log_leverage.any()))
    return replace(
        start, varying=varying, df=df, constant=constant_noise(rows, num_outputs), leverage=leverage
    )


def independent_share(rows: CalibrationRows, num_outputs: int) -> float:
    """The share of held-out rows, in their order, that are independent observations of the scale: that of the
    variance of squared residuals in the variance of their means over blocks of consecutive rows."""
    n = len(rows) // num_outputs
    squared = (rows.residual.square() / constant_noise(rows, num_outputs)[rows.output]).double()
    mean = squared[: n * num_outputs].reshape(n, num_outputs).mean(dim=1)
    shares = [1.0]
    for blocks in (count for count in BLOCKS if n >= MIN_BLOCK_ROWS * count):
        means = torch.stack([block.mean() for block in mean.tensor_split(blocks)])
        shares.append(float(mean.var() / means.var().clamp_min(1e-300)) * blocks / n)
    return max(min(shares), 1.0 / max(n, 1))


def fit_calibration(
    rows: CalibrationRows,
    start: Calibration,
    *,
    spread: float = PRIOR_STD,
    steps: int = MAX_STEPS,
    share: float = 1.0,
) -> Calibration:
    """All parameters but A, by maximum a posteriori on held-out rows.

    Each logarithm has a Gaussian prior about its start, of standard deviation `spread`, which matters little
    with a few hundred independent rows; only this `share` of them is.
    """
    start = replace(start, reach=support_quantile(rows.novelty), extent=_extent(rows, start.extent))
    count, rows = len(rows), rows.sample(MAX_ENTRIES)
    # an output without any error would drive the shared parameters to their bounds
    rows = rows.subset(mean_by_output(rows, rows.residual.square(), len(start.level))[rows.output] > 0)
    if not len(rows):
        return start
    # about the network's own output, without a witness, only the product v^2 w is identified
    identified = bool(start.shift) or bool((rows.witness_precision > 0).any())

    initial, entries = _arrays(start), _arrays(rows)

    def at(free: np.ndarray) -> dict[str, np.ndarray]:
        free = np.clip(free, -MAX_LOG_STEP, MAX_LOG_STEP)
        few, each = np.split(np.exp(free[:-2]), [len(SHARED)])
        each = each.reshape(len(PER_OUTPUT), -1)
        factors = zip((*SHARED, *PER_OUTPUT), (*few, *each), strict=True)
        values = {name: initial[name] * factor for name, factor in factors}
        values["df"] = np.minimum(MIN_DF + (initial["df"] - MIN_DF) * each[-1], MAX_DF)
        constant_share = 1.0 - initial["varying"]
        values["varying"] = initial["varying"] / (initial["varying"] + constant_share * np.exp(-free[-2]))
        return initial | values | {"weight": initial["weight"] + identified * free[-1]}

    @np.errstate(all="ignore")
    def penalised(free: np.ndarray) -> tuple[float, np.ndarray]:
        now = at(free)
        loss, slopes = loss_and_slopes(now, entries)
        rates = now | {"df": now["df"] - MIN_DF, "varying": now["varying"] * (1.0 - now["varying"])}
        rates["weight"] = np.asarray(float(identified))
        slope = [np.ravel(slopes[name] * rates[name]) for name in (*SHARED, *PER_OUTPUT, "varying", "weight")]
        pull, within = free / spread**2 / (share * count), np.abs(free) < MAX_LOG_STEP
        return loss + 0.5 * float(free @ pull), np.concatenate(slope) * within + pull

    place = minimise_from_zero(penalised, 4 * len(start.level) + 6, max_iter=steps, tolerance=TOLERANCE)
    if place is None:
        return start
    return replace(start, **{name: torch.from_numpy(np.array(value)) for name, value in at(place).items()})


def constant_calibration(rows: CalibrationRows, start: Calibration, **options: Any) -> Calibration:
    """One constant noise with tails for each output, about the same mean, as far as held-out rows reach."""
    none, constant = torch.zeros_like(start.fade), constant_noise(rows, len(start.trust))
    flat = dict.fromkeys(("varying", "excess", "leverage", "weight"), none) | {"trust": 0.0 * constant}
    support = torch.maximum(start.beyond, support_quantile(rows.novelty)).clamp_max(MAX_SUPPORT)
    flat = replace(start, **flat, onset=none + FLAT_ONSET, constant=constant, beyond=support)
    return fit_calibration(rows, flat, **options)


def _extent(rows: CalibrationRows, before: Tensor) -> Tensor:
    """E_0 of each output [C]; as before for outputs without rows."""
    variance, extent = rows.epistemic + rows.noise, before.clone()
    for output in rows.output.unique().tolist():
        extent[output] = support_quantile(variance[rows.output == output], torch.finfo(variance.dtype).tiny)
    return extent


def choose_spread(rows: CalibrationRows, start: Calibration) -> float:
    """The standard deviation of the prior, by cross-validation in thirds; with many rows the largest."""
    n = len(rows) // len(start.level)
    fold = (torch.arange(len(rows)) // len(start.level)) * FOLDS // max(n, 1)
    parts = [(rows.subset(fold != k), rows.subset(fold == k)) for k in fold.unique().tolist()]
    if n >= MANY_ROWS:
        return PRIOR_STD
    if len(parts) < FOLDS:
        return PRIOR_STDS[0]

    def cross_validated(spread: float) -> float:
        fits = (
            (fit_calibration(train, start, spread=spread, steps=FOLD_STEPS), test) for train, test in parts
        )
        return sum(len(test) * held_out_loss(one, test) for one, test in fits)

    return min(PRIOR_STDS, key=cross_validated)


def fit_growth(rows: CalibrationRows, start: Calibration) -> Calibration:
    """A by maximum a posteriori on clusters that were left out: correlated rows, which count as few."""
    start = replace(start, beyond=start.reach.clamp(MIN_FAR_NOVELTY, MAX_SUPPORT))
    rows = rows.subset(rows.novelty > start.beyond).sample(MAX_FAR_ENTRIES)
    if not len(rows):
        return start

    initial, entries = _arrays(start), _arrays(rows)

    def penalised(free: np.ndarray) -> tuple[float, np.ndarray]:
        share = np.tanh(free / MAX_GROWTH)
        loss, slopes = loss_and_slopes(initial | {"growth": MAX_GROWTH * share}, entries)
        pull = free / PRIOR_STD**2 / EFFECTIVE_FAR_ROWS
        return loss + 0.5 * float(free @ pull), slopes["growth"] * (1.0 - share**2) + pull

    place = minimise_from_zero(penalised, len(KNOTS), max_iter=MAX_STEPS, tolerance=TOLERANCE)
    growth = start.growth if place is None else torch.from_numpy(MAX_GROWTH * np.tanh(place / MAX_GROWTH))
    return replace(start, growth=growth)


def mean_by_output(rows: CalibrationRows, values: Tensor, num_outputs: int) -> Tensor:
    """Mean of values [L] of each output, shape [C]; 0 without rows."""
    total = torch.zeros(num_outputs, dtype=torch.float64).index_add(0, rows.output, values.double())
    return total / torch.bincount(rows.output, minlength=num_outputs).clamp_min(1)


def constant_noise(rows: CalibrationRows, num_outputs: int) -> Tensor:
    """Mean squared residual of each output, shape [C]; mean E where that is 0, and 1 without rows."""
    squared, expected = (
        mean_by_output(rows, values, num_outputs)
        for values in (rows.residual.square(), rows.epistemic + rows.noise)
    )
    return torch.where(squared > 0, squared, torch.where(expected > 0, expected, 1.0))
