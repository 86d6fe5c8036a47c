"""Calibrations fitted to held-out rows."""

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from .calibration import MAX_LOG_SCALE, STATISTICS, Calibration, OutlierPrior, ignorance
from .held_out import CalibrationRows, constant_noise, mean_by_output
from .predictive import MARGINAL_DF, MARGINAL_UNIT, MAX_DF
from .quantiles import TailShares
from .search import MAX_LOG_STEP, minimise_from_zero

PRIOR_STD = 1.0  # standard deviation of the Gaussian prior about the start, in logarithms
# With fewer than MANY_ROWS held-out rows it is chosen among PRIOR_STDS by cross-validation.
MANY_ROWS, FOLDS, PRIOR_STDS = 300, 3, (0.1, 0.3, PRIOR_STD)
MAX_STEPS, FOLD_STEPS, TOLERANCE = 100, 15, 1e-5  # of the search; FOLD_STEPS in cross-validation
MAX_ENTRIES, MAX_FAR_ENTRIES = 2**13, 2**11  # held-out entries, and those of clusters, in a fit
MAX_LOSS_ENTRIES = 2**15  # of which the mean likelihood is taken
FAR_NOVELTY, EFFECTIVE_FAR_ROWS = 0.1, 8  # least novelty of the latter; a cluster counts as one row
MAX_GROWTH = 4.0  # of A
INITIAL_VAGUE, VAGUE_STD = 0.75, 0.67  # q, and the deviation of its prior in log odds
MIN_DF, INITIAL_DF = 2.2, 10.0  # degrees of freedom
INITIAL_WEIGHTS = (0.95, 0.3, 0.1, 0.3)  # w of the `STATISTICS`
SHARED, PER_OUTPUT = ("excess",), ("trust", "df", "bias")  # besides the weights and v: common, of each output
FREE = ("weights", *SHARED, *PER_OUTPUT, "weight", "growth", "vague")
ENTRIES = ("output", "nearness", "statistics", "marginal", "witness_precision")


def held_out_loss(calibration: Calibration, rows: CalibrationRows) -> float:
    """Mean negative log likelihood of held-out rows, of a sample where there are many."""
    return -float(log_densities(calibration, rows.sample(MAX_LOSS_ENTRIES)).mean())


def log_densities(calibration: Calibration, rows: CalibrationRows) -> np.ndarray:
    """Log likelihood of each entry of held-out rows [L]."""
    return loss_and_slopes(_arrays(calibration), entries_of(calibration, rows))[0]


def _arrays(calibration: Calibration) -> dict[str, np.ndarray]:
    return {field.name: getattr(calibration, field.name).numpy() for field in fields(calibration)}


def entries_of(calibration: Calibration, rows: CalibrationRows) -> dict[str, np.ndarray]:
    """Held-out rows with values that free parameters do not change: statistics [L, S], u, log E, and the log
    density of the distribution of the training targets."""
    entries = {field.name: getattr(rows, field.name).numpy() for field in fields(rows)}
    variance = entries["epistemic"] + entries["noise"]
    spread, centre = (c[rows.output].numpy() for c in (calibration.spread, calibration.centre))
    with np.errstate(all="ignore"):
        log_variance = np.log(variance)
        away = np.log1p((entries["target"] - centre) ** 2 / (MARGINAL_DF * spread))
        marginal = MARGINAL_UNIT - 0.5 * (MARGINAL_DF + 1.0) * away - 0.5 * np.log(spread)
    others = [entries[name] for name in STATISTICS[1:]]
    statistics = np.stack([log_variance + entries["log_kappa"], *others], axis=1)
    nearness = calibration.nearness(rows.measures)[0].numpy()
    values = {"nearness": nearness, "log_variance": log_variance, "statistics": statistics}
    return entries | values | {"marginal": marginal}


@np.errstate(all="ignore")  # a line search may try steps that overflow
def loss_and_slopes(
    c: dict[str, np.ndarray], rows: dict[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Log likelihoods of `entries_of` rows [L], and minus the gradient of their mean in each of `FREE`.

    Letters are as in `Calibration`. A fit takes hundreds of evaluations on few rows, for which automatic
    differentiation is three to four times slower.
    """
    output, nearness, statistics, marginal, p = (rows[k] for k in ENTRIES)
    bias, trust, df, spread = (c[name][output] for name in ("bias", "trust", "df", "spread"))
    # log V
    far = rows["log_variance"] + c["growth"]
    exponent = nearness * (bias + statistics @ c["weights"]) + (1.0 - nearness) * far - rows["log_variance"]
    v = np.exp(rows["log_variance"] + np.clip(exponent, -MAX_LOG_SCALE, MAX_LOG_SCALE))
    # mu and L V
    g = np.nan_to_num(trust * p * v, nan=0.0)
    more, square = 1.0 + g, 1.0 + g * g
    mu, left = (c["weight"] * rows["residual_mean"] + g * rows["witness_mean"]) / more, v * more / square
    shift, weight = c["shift"], np.sqrt(c["excess"]) * (1.0 - c["shift"])
    error, offset = rows["residual"] - shift * mu, weight * mu
    units = (unit[output] for unit in _student_units(c["df"]))
    both, by_error, by_offset, by_scale, by_df = _on_both_sides(
        error, offset, left * (df - 2.0) / df, df, *units
    )
    # with outliers
    total = spread + left + offset * offset
    usual = np.log1p(-c["share"]) + both
    rare = np.log(c["share"]) - 0.5 * (np.log(2 * math.pi * total) + error * error / total)
    density = np.logaddexp(usual, rare)
    # with the distribution of the training targets
    doubtful = ignorance(nearness) * (spread > 0)
    vague = c["vague"] * doubtful
    aware = np.log1p(-vague) + density
    mixed = np.where(vague > 0, np.logaddexp(aware, np.log(vague) + marginal), density)
    inlying, share = (np.exp(aware - density + part - mixed) for part in (usual, rare))
    by_total = 0.5 * share * (error * error / total - 1.0) / total
    by_error = inlying * by_error - share * error / total
    by_offset = inlying * by_offset + 2.0 * by_total * offset
    by_left = inlying * by_scale + by_total * left
    # chain rule back to the parameters
    by_mu = weight * by_offset - shift * by_error
    by_g = by_mu * (rows["witness_mean"] - mu) / more + by_left * (1.0 / more - 2.0 * g / square)
    by_v = np.where(np.abs(exponent) < MAX_LOG_SCALE, by_left + by_g * g, 0.0)
    entries = {
        "weights": (by_v * nearness)[:, None] * statistics,
        "bias": by_v * nearness,
        "excess": by_offset * offset / np.maximum(2.0 * c["excess"], 1e-300),  # may be 0
        "weight": by_mu * rows["residual_mean"] / more,
        "trust": by_g * np.nan_to_num(p * v, nan=0.0),
        "growth": by_v * (1.0 - nearness),
        "df": inlying * (by_df + by_scale * 2.0 / (df * (df - 2.0))),
        "vague": doubtful * np.nan_to_num(np.exp(marginal - mixed) - np.exp(density - mixed)),
    }
    return mixed, {k: -_gathered(v, c[k], output) / len(nearness) for k, v in entries.items()}


def _student_units(df: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The logarithm of the constant of a Student-t, and its gradient in the degrees of freedom."""
    from scipy import special  # slow to import

    unit = special.gammaln((df + 1.0) / 2) - special.gammaln(df / 2) - 0.5 * np.log(math.pi * df)
    return unit, 0.5 * (special.digamma((df + 1.0) / 2) - special.digamma(df / 2) - 1.0 / df)


def _on_both_sides(
    error: np.ndarray,
    offset: np.ndarray,
    squared_scale: np.ndarray,
    df: np.ndarray,
    unit: np.ndarray,
    by_unit: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Log density of half a Student-t on either side, and its gradients in error, offset, log s^2 and df."""
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
    """Sums of entries [L] or [L, K]: over all of them, or by output for parameters of outputs."""
    if entries.ndim == 1 and like.ndim:
        return np.bincount(output, entries, minlength=len(like))
    return entries.sum(axis=0)


def initial_calibration(
    rows: CalibrationRows, num_outputs: int, *, corrected: bool, outliers: OutlierPrior | None = None
) -> Calibration:
    """Start of a fit to held-out rows: on average the experts' variance, times their leave-one-out scale."""
    start = Calibration.default(num_outputs, shift=1.0 if corrected else 0.0, outliers=outliers)
    statistics = torch.from_numpy(entries_of(start, rows)["statistics"])
    weights = torch.tensor(INITIAL_WEIGHTS, dtype=torch.float64) * statistics.any(dim=0)
    bias = mean_by_output(rows, statistics[:, 0] - statistics @ weights, num_outputs)
    vague = torch.full_like(start.vague, INITIAL_VAGUE * corrected * (outliers is not None))
    df, tails = torch.full_like(start.df, INITIAL_DF), TailShares.fit(rows.measures).table
    level = constant_noise(rows, num_outputs)
    return replace(start, weights=weights, bias=bias, df=df, vague=vague, tails=tails, level=level)


def fit_calibration(
    rows: CalibrationRows,
    start: Calibration,
    *,
    spread: float = PRIOR_STD,
    steps: int = MAX_STEPS,
    share: float = 1.0,
) -> Calibration:
    """Fit all parameters but A and q by maximum a posteriori on held-out rows.

    Each logarithm has a Gaussian prior about its start, of standard deviation `spread`, which matters little
    with a few hundred independent rows; a `share` of the rows is independent. Statistics are centred, so that
    the prior of b is one of the level.
    """
    count, rows = len(rows), rows.sample(MAX_ENTRIES)
    # an output without any error would drive the shared parameters to their bounds
    rows = rows.subset(mean_by_output(rows, rows.residual.square(), len(start.bias))[rows.output] > 0)
    if not len(rows):
        return start
    # about the network's own output, without a witness, only the product v^2 w is identified
    identified = bool(start.shift) or bool((rows.witness_precision > 0).any())
    initial, entries = _arrays(start), entries_of(start, rows)
    centre = torch.from_numpy(entries["statistics"]).T
    centre = np.stack([mean_by_output(rows, column, len(start.bias)).numpy() for column in centre], axis=1)
    sizes = np.cumsum([len(STATISTICS), len(SHARED), *[len(start.bias)] * len(PER_OUTPUT)])

    def at(free: np.ndarray) -> dict[str, np.ndarray]:
        weights, few, trust, df, bias, weight = np.split(np.clip(free, -MAX_LOG_STEP, MAX_LOG_STEP), sizes)
        values = {"weights": initial["weights"] * np.exp(weights), "trust": initial["trust"] * np.exp(trust)}
        values["excess"] = initial["excess"] * np.exp(few[0])
        values["df"] = np.minimum(MIN_DF + (initial["df"] - MIN_DF) * np.exp(df), MAX_DF)
        values["bias"] = initial["bias"] + bias - centre @ (values["weights"] - initial["weights"])
        return initial | values | {"weight": initial["weight"] + identified * weight[0]}

    @np.errstate(all="ignore")
    def penalised(free: np.ndarray) -> tuple[float, np.ndarray]:
        now = at(free)
        densities, slopes = loss_and_slopes(now, entries)
        weights = (slopes["weights"] - slopes["bias"] @ centre) * now["weights"]
        each = [slopes["trust"] * now["trust"], slopes["df"] * (now["df"] - MIN_DF), slopes["bias"]]
        slope = [weights, slopes["excess"] * now["excess"], *each, slopes["weight"] * identified]
        pull, within = free / spread**2 / (share * count), np.abs(free) < MAX_LOG_STEP
        gradient = np.concatenate([*map(np.ravel, slope)]) * within + pull
        return 0.5 * float(free @ pull) - float(densities.mean()), gradient

    place = minimise_from_zero(penalised, int(sizes[-1]) + 1, max_iter=steps, tolerance=TOLERANCE)
    if place is None:
        return start
    return replace(start, **{name: torch.from_numpy(np.array(value)) for name, value in at(place).items()})


def constant_calibration(rows: CalibrationRows, start: Calibration, **options: Any) -> Calibration:
    """Calibration that is constant near the held-out rows: one noise, with tails, for each output."""
    none, noise = torch.zeros_like(start.excess), constant_noise(rows, len(start.bias))
    flat = {"excess": none, "weight": none, "trust": 0.0 * noise, "weights": 0.0 * start.weights}
    return fit_calibration(rows, replace(start, **flat, bias=noise.log()), **options)


def choose_spread(rows: CalibrationRows, start: Calibration) -> float:
    """Standard deviation of the prior, by threefold cross-validation; with many rows the largest."""
    n = len(rows) // len(start.bias)
    fold = (torch.arange(len(rows)) // len(start.bias)) * FOLDS // max(n, 1)
    parts = [(rows.subset(fold != k), rows.subset(fold == k)) for k in fold.unique().tolist()]
    if n >= MANY_ROWS or len(parts) < FOLDS:
        return PRIOR_STD if n >= MANY_ROWS else PRIOR_STDS[0]

    def cross_validated(spread: float) -> float:
        options = {"spread": spread, "steps": FOLD_STEPS}
        return sum(len(b) * held_out_loss(fit_calibration(a, start, **options), b) for a, b in parts)

    return min(PRIOR_STDS, key=cross_validated)


def fit_growth(rows: CalibrationRows, start: Calibration) -> Calibration:
    """Fit A, and q where it is not 0, by maximum a posteriori on clusters that were left out: their rows are
    far from the data, and count as few, as they are correlated."""
    rows = rows.subset(rows.novelty > FAR_NOVELTY).sample(MAX_FAR_ENTRIES)
    if not len(rows):
        return start
    start = replace(start, growth=torch.zeros_like(start.growth))
    initial, entries = _arrays(start), entries_of(replace(start, tails=TailShares.novel().table), rows)
    odds = float(start.vague / (1.0 - start.vague))

    def at(free: np.ndarray) -> dict[str, np.ndarray]:
        vague = odds * np.exp(free[1]) / (1.0 + odds * np.exp(free[1]))
        return {"growth": np.asarray(MAX_GROWTH * np.tanh(free[0] / MAX_GROWTH)), "vague": np.asarray(vague)}

    def penalised(free: np.ndarray) -> tuple[float, np.ndarray]:
        now = at(free)
        densities, slopes = loss_and_slopes(initial | now, entries)
        growth = slopes["growth"] * (1.0 - (now["growth"] / MAX_GROWTH) ** 2)
        slope = np.append(growth, slopes["vague"] * now["vague"] * (1.0 - now["vague"]))
        pull = free / np.array([PRIOR_STD, VAGUE_STD]) ** 2 / EFFECTIVE_FAR_ROWS
        return 0.5 * float(free @ pull) - float(densities.mean()), slope + pull

    place = minimise_from_zero(penalised, 2, max_iter=MAX_STEPS, tolerance=TOLERANCE)
    values = {} if place is None else at(place)
    return replace(start, **{name: torch.from_numpy(value) for name, value in values.items()})
