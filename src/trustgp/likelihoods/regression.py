"""Regression: real targets, squared error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.tensor_file import Reader
from ..data.torch_modes import readable
from ..data.trees import state_tensors
from ..data.user_warnings import warn_user
from ..experts.mixture import LatentPrediction
from ..experts.whole import WholePosterior
from ..math.calibration import STATISTICS, Calibration, OutlierPrior, ignorance, pooled
from ..math.calibration_fit import (
    MANY_ROWS,
    choose_spread,
    constant_calibration,
    fit_calibration,
    fit_growth,
    held_out_loss,
    initial_calibration,
    log_densities,
)
from ..math.held_out import CalibrationRows, independent_share
from ..math.predictive import PredictiveDistribution
from ..math.quantiles import NUM_MEASURES, RANK_TOLERANCE, TAIL_LEVELS, TailShares
from .base import Likelihood, ReferenceScores, Shape, common_fields, wide
from .prediction import Prediction

NONE = torch.zeros((), dtype=torch.float64)
MAX_ENTRIES, MAX_PER_OUTPUT = 4096, 256  # most left-out entries of a fit: the larger of the two
MIN_WARNED, MIN_EXCESS_NLL = 50, 0.1  # fewest rows and least difference for a warning
# A warning about the scale of targets: fewest rows; squared error over the targets' variance, at least of the
# outputs and at most after rescaling; and the largest ratio of the two.
MIN_COMPARED, MIN_ERROR, MAX_RESCALED_ERROR, MAX_RATIO = 20, 0.25, 0.1, 0.05
COVERING_POWERS = (1.0, 0.75, 0.5, 0.25)  # of the factor by which a variance grows
COVERED, MAX_DEVIATIONS, MAX_OFF = 0.95, 4.0, 0.02  # level; allowed deviation in standard errors, and beyond
PLACES = ("", *(f" whose intervals are {which}" for which in ("narrowest", "neither", "widest")))
BLOCKS = 10  # of held-out rows, on which the network's mean and the corrected one are compared
# Calibrations about the network's output and about the corrected mean; and both as fitted to left-out rows.
Scales = tuple[Calibration, Calibration, Calibration, Calibration]


@dataclass(frozen=True)
class Regression(Likelihood):
    """Targets are real numbers, one for each output of the network.

    Examples:
        >>> model = trustgp.fit(network, train, likelihood=trustgp.Regression(), progress=False)
    """

    joint_refusal: ClassVar[str] = ""
    whole_kind: ClassVar[type[WholePosterior] | None] = WholePosterior
    titles: ClassVar[tuple[str, ...]] = ("calibration", "... corrected", "left out", "... corrected")

    def check(self, num_outputs: int, targets: Tensor, *, name: str) -> None:
        """Raise ValueError unless the targets can be compared with C outputs."""
        if targets.is_complex() or targets.dtype == torch.bool:
            advice = "" if targets.is_complex() else " Pass likelihood='classification' or 'multilabel'."
            raise ValueError(f"{name} targets are {targets.dtype}; regression needs real numbers.{advice}")
        if num_outputs != targets.shape[1]:
            raise ValueError(
                f"the network has {num_outputs} outputs but {name} has {targets.shape[1]} targets "
                f"a row; they must agree.{_meant(num_outputs, targets)}"
            )

    def warn(self, num_outputs: int, targets: Tensor) -> None:
        """Warn of targets that look like classes."""
        if len(targets.unique()) == 2 and bool(((targets == 0) | (targets == 1)).all()):
            several = "; for several labels a row likelihood=MultiLabel()" if targets.shape[1] > 1 else ""
            warn_user(
                "all targets are 0 or 1: they look like classes, and Regression() treats them as real "
                "numbers. For classes pass likelihood=Classification(), class numbers as targets (int64, one "
                f"a row) and a network that returns logits{several}."
            )

    def output_warning(self, outputs: Tensor, targets: Tensor) -> str:
        """Warning where an affine map of the outputs is far closer to the targets; empty: none."""
        f, y = outputs.double(), targets.double()
        spread, off = y.var(dim=0, correction=0), (y - f).square().mean(dim=0)
        centred = f - f.mean(dim=0)
        slope = (centred * y).mean(dim=0) / centred.square().mean(dim=0)
        left = (y - y.mean(dim=0) - slope * centred).square().mean(dim=0)
        # no scale helps outputs that are constant, or independent of the targets
        wrong = (off > MIN_ERROR * spread) & (left < MAX_RESCALED_ERROR * spread) & (left < MAX_RATIO * off)
        if len(y) < MIN_COMPARED or not bool(wrong.any()):
            return ""
        c = int(torch.where(wrong, off / left, 0.0).argmax())
        factor, offset = float(slope[c]), float(y[:, c].mean() - slope[c] * f[:, c].mean())
        return (
            f"targets and network are on different scales: {factor:.3g} times output {c} plus {offset:.3g} "
            f"comes {min(float((off[c] / left[c]).sqrt()), 1000.0):.0f} times as close to its targets as the "
            "output itself. Pass targets in the units that the network was trained on, or a network that "
            "returns the units of the targets."
        )

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Newton step -H^-1 R, which for squared error is y - f, shape [n, C], float64."""
        return targets.double() - outputs.double()

    def calibration_rows(self, outputs: Tensor, raw: LatentPrediction, targets: Tensor) -> CalibrationRows:
        """Held-out rows with one entry per row and output."""
        targets = targets.to(outputs.device)
        residual = self.residual(outputs, targets)
        return raw.calibration_rows(residual, torch.arange(residual.shape[1]), targets.double())

    def measures(self, raw: LatentPrediction, outputs: Tensor) -> Tensor:
        """Logarithms of the novelty measures, [n, 2]."""
        return raw.measures()

    def score(self, measures: Tensor, calibrations: Scales) -> Tensor:
        """Minus the logarithm of the share of held-out rows that are more novel, shape [n]."""
        return self._score(measures, calibrations[0].nearness(measures)[1])

    def _score(self, measures: Tensor, exponent: Tensor) -> Tensor:
        """Novelty score of rows whose exponent D of the calibration is given, shape [n]."""
        return exponent

    def calibrate(
        self,
        rows: CalibrationRows | None,
        shape: Shape,
        targets: Tensor | None,
        *,
        seen: bool = False,
        far: CalibrationRows | None = None,
    ) -> Scales:
        """Calibrations fitted to left-out training rows and, far from the data, to left-out clusters."""
        outliers, n = None if targets is None else OutlierPrior.of(targets), shape.outputs
        if rows is None or not len(rows):
            own, corrected = (Calibration.default(n, shift=z, outliers=outliers) for z in (0.0, 1.0))
            return own, corrected, own, corrected
        sample = rows.sample(max(MAX_ENTRIES, MAX_PER_OUTPUT * n))
        starts = (initial_calibration(sample, n, corrected=z, outliers=outliers) for z in (False, True))
        own, corrected = _fit_both(sample, *starts)
        if far is not None:
            own, corrected = fit_growth(far, own), fit_growth(far, corrected)
        return own, _if_better(sample, own, corrected), own, corrected

    def recalibrate(self, rows: CalibrationRows, shape: Shape, calibrations: Scales) -> Scales:
        """Calibrations fitted to held-out rows, starting from those of left-out training rows."""
        before, tails = calibrations[2:], TailShares.fit(rows.measures)
        own, corrected = (replace(c, tails=tails.wider(TailShares(c.tails)).table) for c in before)
        spread, share = choose_spread(rows, own), independent_share(rows, shape.outputs)
        own, corrected = _fit_both(rows, own, corrected, spread=spread, share=share)
        chosen = _if_better(rows, own, corrected)
        return _covering(rows, own), _covering(rows, chosen), *before

    def fitted_to_left_out(self, calibrations: Scales) -> bool:
        own, before = (state_tensors(calibrations[k]) for k in (0, 2))
        return all(map(torch.equal, own, before))

    def calibration_warning(self, rows: CalibrationRows, calibrations: Scales) -> str:
        """Warning where constant noise is likelier on the held-out rows, or the coverage is wrong."""
        each = rows.output.unique().tolist()
        spread = torch.stack([rows.residual[rows.output == output].square().mean() for output in each])
        if len(rows) < MIN_WARNED * len(spread) or not bool((spread > 0).all()):
            return ""
        loss = held_out_loss(calibrations[0], rows)
        constant = float(0.5 * (2 * math.pi * math.e * spread).log().mean())
        if not loss > constant + MIN_EXCESS_NLL:
            return _coverage_warning(rows, calibrations[0])
        return (
            f"on the held-out rows this error bar is worse than one constant noise: NLL {loss:.2f} against "
            f"{constant:.2f}. The network's errors there are unlike those on left-out training rows."
        )

    def held_out_losses(self, rows: CalibrationRows, calibrations: Scales) -> tuple[float, float]:
        return held_out_loss(calibrations[0], rows), held_out_loss(calibrations[2], rows)

    def read_calibrations(self, reader: Reader, prefix: str, shape: Shape) -> Scales:
        own, corrected, *left_out = (_read_one(reader, f"{prefix}{k}.", shape.outputs) for k in range(4))
        return own, corrected, left_out[0], left_out[1]

    def prediction(
        self,
        outputs: Tensor,
        raw: LatentPrediction,
        calibrations: Scales,
        valid: Tensor | None = None,
        reference: ReferenceScores | None = None,
    ) -> Prediction:
        """Prediction about the network's output; lazily about the corrected mean and without calibration."""
        own, *_ = calibrations
        measures, precision = self.measures(raw, outputs), wide(outputs.dtype)
        on_device = own.folded(measures.device, precision)[0]
        nearness, exponent = on_device.nearness(measures)
        score = self._score(measures, exponent)
        common = common_fields(outputs, raw, score, valid, reference)
        later = self.later(outputs, lambda: raw, calibrations, common)
        return _about(outputs, raw, own, common | later, nearness)

    def later(
        self, outputs: Tensor, latent: Callable[[], LatentPrediction], calibrations: Scales, common: Any
    ) -> dict[str, Callable[[], Prediction]]:
        own, corrected, *_ = calibrations

        def scaled(calibration: Calibration) -> Prediction:
            return _about(outputs, latent(), calibration, common)

        return {"_corrected": lambda: scaled(corrected), "_plain": lambda: scaled(plain_calibration(own))}


def _meant(outputs: int, targets: Tensor) -> str:
    """Hint at what the outputs may be, if their number is not that of the targets [n, K]; empty: unknown."""
    width = targets.shape[1]
    if width == 1 and not targets.is_floating_point():
        return ' Class numbers as targets: pass likelihood="classification".'
    if outputs == 2 * width:
        head = f"select=lambda o: (o[:, :{width}], o[:, {width}:].exp())"
        return f" Means and logarithms of variances: pass {head}."
    if outputs % width == 0 and outputs // width % 2:
        middle = outputs // width // 2
        where = f"{middle}:{middle + 1}" if width == 1 else f"{middle}::{outputs // width}"
        return f" Quantiles: select the median, select=lambda o: o[:, {where}]."
    return ""


def _fit_both(
    rows: CalibrationRows, own: Calibration, corrected: Calibration, **options: Any
) -> tuple[Calibration, Calibration]:
    """Calibrations about the network's output and about the corrected mean.

    Where the corrected mean is nearly right, the likelihood of the first has a narrow valley, as the target
    lies on one of two sides; a search may end early. With many rows another starts from the second one.
    """
    fitted = fit_calibration(rows, corrected, **options)
    candidates = [fit_calibration(rows, own, **options)]
    if len(rows) >= MANY_ROWS * len(own.bias):
        start = replace(fitted, shift=own.shift, vague=own.vague, growth=own.growth)
        candidates.append(fit_calibration(rows, start, **options))
    return _never_worse(rows, own, candidates, **options), _never_worse(rows, corrected, [fitted], **options)


def _never_worse(
    rows: CalibrationRows, start: Calibration, candidates: list[Calibration], **options: Any
) -> Calibration:
    """The likeliest calibration on held-out rows: a candidate, the start, or constant noise with tails."""
    candidates = [*candidates, start, constant_calibration(rows, start, **options)]
    return min(candidates, key=lambda one: held_out_loss(one, rows))


def _intervals(
    rows: CalibrationRows, calibration: Calibration
) -> tuple[Tensor, PredictiveDistribution] | None:
    """Residuals [n, C] and their distributions; None where some row lacks an output."""
    outputs, n = len(calibration.bias), len(rows) // len(calibration.bias)
    if not torch.equal(rows.output.cpu(), torch.arange(outputs).repeat(n)):
        return None
    rows = rows.subset((evenly(n, MAX_ENTRIES)[:, None] * outputs + torch.arange(outputs)).flatten())
    names = [field.name for field in fields(LatentPrediction) if hasattr(rows, field.name)]
    values = {name: getattr(rows, name).reshape(-1, outputs) for name in names}
    residual, expert = rows.residual.reshape(-1, outputs), rows.output.reshape(-1, outputs)[:, :1]
    raw = LatentPrediction(**values, expert=expert, nearest=rows.measures[::outputs])
    zeros = torch.zeros_like(residual)
    common = common_fields(zeros, raw, None, None, None)
    # about the network's output, wherever the targets lie
    return residual, _about(zeros, raw, replace(calibration, vague=NONE), common).distribution


def _covering(rows: CalibrationRows, calibration: Calibration) -> Calibration:
    """Enlarge the variances until the 95 % interval covers ceil(0.95 (n + 1)) of n held-out rows (or all);
    by a lower power of that factor, or not at all, where the likelihood falls by more than chance."""
    if (both := _intervals(rows, calibration)) is None:
        return calibration
    residual, distribution = both
    share = min(1.0, math.ceil((len(residual) + 1) * COVERED) / len(residual))
    rank = math.ceil(share * residual.numel() - RANK_TOLERANCE)
    factor = distribution.widening(residual, COVERED, rank).square().cpu()
    for power in COVERING_POWERS if 1.0 < factor < torch.inf else ():
        more = factor**power
        scaled = {"excess": calibration.excess * more, "trust": calibration.trust / more}
        larger = replace(calibration, bias=calibration.bias + more.log(), **scaled)
        loss, chance = _compared(rows, larger, calibration)
        if loss <= chance:
            return larger
    return calibration


def _coverage_warning(rows: CalibrationRows, calibration: Calibration) -> str:
    """Warning where the 95 % interval covers more or fewer held-out rows than chance allows, overall or in
    thirds of its width; empty: none."""
    if (both := _intervals(rows, calibration)) is None:
        return ""
    residual, distribution = both
    inside = (distribution.within((residual - distribution.loc).abs()) <= COVERED).double().flatten()
    independent = independent_share(rows, residual.shape[1]) * len(residual)
    order = distribution.scale.flatten().argsort()
    for part, where in zip((order, *order.tensor_split(3)), PLACES, strict=True):
        chance = MAX_DEVIATIONS * (COVERED * (1.0 - COVERED) * len(order) / len(part) / independent) ** 0.5
        share = float(inside[part].mean())
        if abs(share - COVERED) > chance + MAX_OFF:
            return (
                f"the {100 * COVERED:.0f} % interval covers {100 * share:.0f} % of the held-out rows{where}; "
                "pass more validation rows, or use model.conformal(rows) for intervals of a guaranteed level."
            )
    return ""


def _if_better(rows: CalibrationRows, own: Calibration, corrected: Calibration) -> Calibration:
    """The calibration `corrected`, or `own` where blocks of held-out rows do not show that it is better."""
    gain, chance = _compared(rows, own, corrected)
    return corrected if gain > chance else replace(own, vague=corrected.vague)


def _compared(rows: CalibrationRows, one: Calibration, other: Calibration) -> tuple[float, float]:
    """Excess of the loss of `one` over that of `other` on blocks of held-out rows, and its standard error."""
    more = torch.from_numpy(log_densities(other, rows) - log_densities(one, rows))
    gains = [float(block.mean()) for block in more.tensor_split(BLOCKS) if len(block)]
    mean, deviation = torch.tensor(gains).mean(), torch.tensor(gains).std(correction=0)
    return float(mean), float(deviation) / len(gains) ** 0.5


def _about(
    outputs: Tensor, raw: LatentPrediction, calibration: Calibration, common: Any, u: Tensor | None = None
) -> Prediction:
    """Prediction about the network's output or the corrected mean; `u`: nearness of the rows [n]."""
    c, rare = calibration.folded(raw.epistemic.device, wide(outputs.dtype))
    nearness = (c.nearness(raw.measures())[0] if u is None else u)[:, None]
    dtype, variance = rare.dtype, raw.epistemic + raw.noise
    scale = c.scale(raw, variance, nearness)
    expected, left = pooled(
        c, scale * variance, raw.residual_mean, raw.witness_mean, raw.witness_precision, c.trust
    )
    left, kept = left * scale, 1.0 - c.shift
    excess = expected * expected * (c.excess * kept * kept) if kept else torch.zeros_like(expected)
    epistemic, aleatoric, excess = (
        _like(value, outputs, dtype) for value in (left * raw.epistemic, left * raw.noise, excess)
    )
    parts = {
        "epistemic": epistemic,
        # must not underflow to certainty
        "aleatoric": aleatoric.clamp_min(torch.finfo(dtype).tiny),
        "excess": excess,
        "rare": _like(rare.expand_as(expected), outputs, dtype),
        "df": _like(c.df.expand_as(expected), outputs, dtype),
    }
    if c.vague:
        novel = torch.where(common["valid"][:, None], ignorance(nearness), 0.0)
        parts["fallback_weight"] = _like(c.vague * novel * (c.spread > 0), outputs, dtype)
        parts["fallback_location"] = _like(c.centre.expand_as(expected), outputs, dtype)
    # z = 0 leaves the network's output untouched, to the bit
    mean = outputs + _like(c.shift * expected, outputs, wide(outputs.dtype)) if c.shift else outputs
    if (covariance := raw.covariance) is not None:
        parts["_outputs"] = covariance.unflatten(1, (expected.shape[1], expected.shape[1]))
    prediction = Prediction(mean=mean, **parts, outlier_share=c.share, **common)
    usual: Any = prediction.variance_without_fallback
    if readable(usual) and math.isfinite(usual.sum().tolist()):  # a quick sufficient test
        return prediction
    finite = usual < torch.inf  # overflow, or NaN, makes a row invalid
    return _masked(prediction, finite.reshape(outputs.shape[0], -1).all(dim=1))


def _masked(prediction: Prediction, finite: Tensor) -> Prediction:
    """The prediction, with its common fields blank in rows [n] that are not finite."""
    valid, blank = prediction.valid & finite, {"novelty": 1.0, "_score": torch.inf, "expert": -1}
    blank |= {} if prediction.fallback_weight is None else {"fallback_weight": 0.0}
    changed: dict[str, Any] = {"valid": valid}
    for name, value in blank.items():
        before: Any = getattr(prediction, name)
        changed[name] = torch.where(valid.reshape(-1, *[1] * (before.ndim - 1)), before, value)
    masked = replace(prediction, **changed)
    vars(masked)["variance_without_fallback"] = prediction.variance_without_fallback
    return masked


def plain_calibration(calibration: Calibration) -> Calibration:
    """Calibration with the evidence alone: no fitted scale, no excess; the variance of targets is kept."""
    flat, novel = Calibration.default(len(calibration.bias), shift=0.0), TailShares.novel().table
    sizes = {"spread": calibration.spread, "level": calibration.level}
    return replace(flat, excess=NONE, trust=0.0 * flat.trust, tails=novel, **sizes)


def _read_one(reader: Reader, prefix: str, outputs: int) -> Calibration:
    old = "fade" in reader.matching(prefix)
    reader.require(not old, prefix + "fade", "is of an earlier form of the calibration; fit the model again")
    values, sizes = {}, {"weights": (len(STATISTICS),), "tails": (3, NUM_MEASURES, len(TAIL_LEVELS))}
    sizes |= dict.fromkeys(("bias", "trust", "df", "spread", "centre", "level"), (outputs,))
    for field in fields(Calibration):
        values[field.name] = reader.take(prefix + field.name, torch.float64, *sizes.get(field.name, ()))
    for name in ("weights", "excess", "trust", "spread", "level"):
        reader.require(values[name] >= 0, prefix + name, "must not be negative")
    for name in ("share", "vague"):
        reader.require(0 <= float(values[name]) < 1, prefix + name, "must lie between 0 and 1")
    reader.require(values["tails"][1:] >= 0, prefix + "tails", "must not decrease")
    reader.require(values["df"] > 2, prefix + "df", "must be more than 2")
    return Calibration(**values)


def _like(values: Tensor, outputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Values [n, C] in the shape of the network's outputs, as this dtype."""
    values = values if values.shape == outputs.shape else values.reshape(outputs.shape)
    return values.to(dtype)
