"""Regression: real targets, squared error."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..data.trees import state_tensors
from ..data.user_warnings import warn_user
from ..experts.mixture import LatentPrediction
from ..math.calibration import KNOTS, Calibration, CalibrationRows, OutlierPrior, pooled
from ..math.calibration_fit import (
    MANY_ROWS,
    PRIOR_STD,
    choose_spread,
    fit_calibration,
    fit_growth,
    held_out_loss,
    initial_calibration,
)
from .base import Likelihood, ReferenceScores, Shape, common_fields, wide
from .prediction import Prediction

NONE = torch.zeros((), dtype=torch.float64)
ENTRIES, EACH = 4096, 256  # of left-out rows that speak, in all or of each output, whichever are more
FEWEST_WARNED, WORSE = 50, 0.1  # rows that can speak against a calibration, and how clearly, as NLL
# Rows that can tell that targets are on another scale; squared errors, over the targets' variance, of outputs
# that are wrong, and of the same on their scale; and of these over those.
FEWEST_COMPARED, APART, ALIKE, RESCALED = 20, 0.25, 0.1, 0.05
# About the network's output, and about the corrected mean; and both as left-out training rows had them.
Scales = tuple[Calibration, Calibration, Calibration, Calibration]


@dataclass(frozen=True)
class Regression(Likelihood):
    """Targets are real numbers, one for each output of the network."""

    titles: ClassVar[tuple[str, ...]] = ("calibration", "... corrected", "left out", "... corrected")

    def check(self, num_outputs: int, targets: Tensor, *, name: str) -> None:
        """Raise unless the targets can be compared with C outputs."""
        if targets.is_complex() or targets.dtype == torch.bool:
            raise ValueError(f"{name} targets are {targets.dtype}; regression needs real numbers.")
        if num_outputs != targets.shape[1]:
            raise ValueError(
                f"the network has {num_outputs} outputs but {name} has {targets.shape[1]} targets "
                "a row; they must agree."
            )

    def warn(self, num_outputs: int, targets: Tensor) -> None:
        """Warn of targets that look like classes."""
        if len(targets.unique()) == 2 and bool(((targets == 0) | (targets == 1)).all()):
            warn_user(
                "all targets are 0 or 1: they look like classes, and Regression() takes them for measured "
                "numbers. For classes pass likelihood=Classification(), class numbers as targets (int64, one "
                "a row) and a network that returns logits."
            )

    def output_warning(self, outputs: Tensor, targets: Tensor) -> str:
        """Whether outputs times a number, plus another, would be far closer to the targets."""
        f, y = outputs.double(), targets.double()
        spread, off = y.var(dim=0, correction=0), (y - f).square().mean(dim=0)
        about = f - f.mean(dim=0)
        slope = (about * y).mean(dim=0) / about.square().mean(dim=0)
        left = (y - y.mean(dim=0) - slope * about).square().mean(dim=0)
        # one that never changes, or does not follow the targets, is helped by no scale
        wrong = (off > APART * spread) & (left < ALIKE * spread) & (left < RESCALED * off)
        if len(y) < FEWEST_COMPARED or not bool(wrong.any()):
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
        """-H^-1 R, which for squared error is y - f, shape [n, C], float64."""
        return targets.double() - outputs.double()

    def calibration_rows(self, outputs: Tensor, raw: LatentPrediction, targets: Tensor) -> CalibrationRows:
        """One entry per row and output."""
        residual = self.residual(outputs, targets.to(outputs.device))
        return raw.calibration_rows(residual, torch.arange(residual.shape[1]))

    def calibrate(
        self,
        rows: CalibrationRows | None,
        shape: Shape,
        targets: Tensor | None,
        *,
        seen: bool = False,
        far: CalibrationRows | None = None,
    ) -> Scales:
        """What left-out training rows say, and of rows far away those of left-out clusters."""
        outliers = None if targets is None else OutlierPrior.of(targets)
        if rows is None or not len(rows):
            own, corrected = (
                Calibration.default(shape.outputs, shift=z, outliers=outliers) for z in (0.0, 1.0)
            )
            return own, corrected, own, corrected
        some = rows.sample(max(ENTRIES, EACH * shape.outputs))
        starts = [
            initial_calibration(some, shape.outputs, corrected=z, outliers=outliers) for z in (False, True)
        ]
        own, corrected = _fit_both(some, starts[0], starts[1])
        if far is not None:
            own, corrected = fit_growth(far, own), fit_growth(far, corrected)
        return own, corrected, own, corrected

    def recalibrate(self, rows: CalibrationRows, shape: Shape, calibrations: Scales) -> Scales:
        """Both scales fitted to held-out rows, from where left-out training rows have taken them."""
        before = calibrations[2:]
        return *_fit_both(rows, *before, spread=choose_spread(rows, before[0])), *before

    def fitted_to_left_out(self, calibrations: Scales) -> bool:
        own, before = (state_tensors(calibrations[k]) for k in (0, 2))
        return all(map(torch.equal, own, before))

    def calibration_warning(self, rows: CalibrationRows, calibrations: Scales) -> str:
        """Whether one constant noise for each output would have told more about the held-out rows."""
        each = rows.output.unique().tolist()
        spread = torch.stack([rows.residual[rows.output == output].square().mean() for output in each])
        if len(rows) < FEWEST_WARNED * len(spread) or not bool((spread > 0).all()):
            return ""
        found = held_out_loss(calibrations[0], rows)
        constant = float(0.5 * (2 * math.pi * math.e * spread).log().mean())
        if not found > constant + WORSE:
            return ""
        return (
            f"on the held-out rows this error bar is worse than one constant noise: NLL {found:.2f} against "
            f"{constant:.2f}. The network's errors there are unlike its residuals on the training rows, "
            "which may follow each other closely in time: pass fewer of these (every eighth), and compare."
        )

    def read_calibrations(self, reader: Reader, prefix: str, shape: Shape) -> Scales:
        found = [_read_one(reader, f"{prefix}{k}.", shape.outputs) for k in range(len(self.titles))]
        return found[0], found[1], found[2], found[3]

    def prediction(
        self,
        outputs: Tensor,
        raw: LatentPrediction,
        calibrations: Scales,
        valid: Tensor | None = None,
        reference: ReferenceScores | None = None,
    ) -> Prediction:
        """About the network's output; about the corrected mean, and as the paper has it, when asked for."""
        common = common_fields(outputs, raw, None, valid, reference)

        def about(calibration: Calibration) -> Prediction:
            return _about(outputs, raw, calibration, common)

        own, corrected, *_ = calibrations
        later = {"_corrected": lambda: about(corrected), "_plain": lambda: about(plain_calibration(own))}
        return replace(about(own), **later)


def _fit_both(
    rows: CalibrationRows, own: Calibration, corrected: Calibration, spread: float = PRIOR_STD
) -> tuple[Calibration, Calibration]:
    """The scales about the network's output and about the corrected mean.

    Where the corrected mean is nearly right, the valley that leads to the first is narrow, as the target lies
    on one of two sides, and a search from far away ends early. Many rows may also begin where the second is.
    """
    found = fit_calibration(rows, corrected, spread=spread)
    ours = [fit_calibration(rows, own, spread=spread)]
    if len(rows) >= MANY_ROWS * len(own.level):
        there = replace(found, shift=own.shift, beyond=own.beyond, growth=own.growth)
        ours.append(fit_calibration(rows, there, spread=spread))
    return min(ours, key=lambda one: held_out_loss(one, rows)), found


def _about(
    outputs: Tensor, raw: LatentPrediction, calibration: Calibration, common: dict[str, Any]
) -> Prediction:
    """The distribution about the network's output, or the corrected mean, as the calibration has it."""
    c, logs, rare = calibration.folded(raw.epistemic.device, wide(outputs.dtype))
    dtype, variance = rare.dtype, raw.epistemic + raw.noise
    scale = c.scale(raw.novelty, raw.log_kappa, variance, *logs)
    expected, left = pooled(
        c, scale * variance, raw.residual_mean, raw.witness_mean, raw.witness_precision, c.trust
    )
    left, rest = left * scale, 1.0 - c.shift
    excess = expected.square() * (c.excess * rest * rest) if rest else torch.zeros_like(expected)
    variances = {
        "epistemic": _like(left * raw.epistemic, outputs, dtype),
        # what underflows is not certain for that
        "aleatoric": _like(left * raw.noise, outputs, dtype).clamp_min(torch.finfo(dtype).tiny),
        "excess": _like(excess, outputs, dtype),
        "rare": _like(rare.expand_as(expected), outputs, dtype),
    }
    told = torch.isfinite(reduce(add, variances.values()))  # or it has overflowed
    return Prediction(
        # z = 0 leaves the network's output untouched, to the bit
        mean=outputs + _like(c.shift * expected, outputs, wide(outputs.dtype)) if c.shift else outputs,
        **variances,
        df=_like(c.df.expand_as(expected), outputs, dtype),
        share=c.share,
        **_known(common, told.reshape(outputs.shape[0], -1).all(dim=1)),
    )


def _known(common: dict[str, Any], told: Tensor) -> dict[str, Any]:
    """What every prediction says, where something is told of a row [n]; else that nothing is known."""
    valid, blank = common["valid"] & told, {"novelty": 1.0, "_score": 1.0, "expert": -1}
    each = {k: valid.reshape(-1, *[1] * (common[k].ndim - 1)) for k in blank}
    return common | {k: torch.where(each[k], common[k], v) for k, v in blank.items()} | {"valid": valid}


def plain_calibration(calibration: Calibration) -> Calibration:
    """No fading scale, no excess: what the evidence alone says; how large targets are is kept."""
    flat = Calibration.default(len(calibration.level), shift=0.0)
    sizes = {"spread": calibration.spread, "constant": calibration.constant}
    return replace(flat, fade=NONE, excess=NONE, trust=torch.zeros_like(flat.trust), **sizes)


def _read_one(reader: Reader, prefix: str, outputs: int) -> Calibration:
    values, sizes = {}, {"growth": (len(KNOTS),)}
    sizes |= dict.fromkeys(("level", "trust", "constant", "df", "spread", "extent"), (outputs,))
    for field in fields(Calibration):
        values[field.name] = reader.take(prefix + field.name, torch.float64, *sizes.get(field.name, ()))
    for name in ("fade", "onset", "excess", "trust", "spread"):
        reader.require(values[name] >= 0, prefix + name, "must not be negative")
    for name in ("reach", "beyond", "varying"):
        reader.require(0 < float(values[name]) <= 1, prefix + name, "must lie between 0 and 1")
    reader.require(0 <= float(values["share"]) < 1, prefix + "share", "must lie between 0 and 1")
    for name in ("level", "constant", "extent"):
        reader.require(values[name] > 0, prefix + name, "must be positive")
    reader.require(values["df"] > 2, prefix + "df", "must be more than 2")
    return Calibration(**values)


def _like(values: Tensor, outputs: Tensor, dtype: torch.dtype) -> Tensor:
    """[n, C] float64 in the shape of the network's outputs, and in a precision."""
    values = values if values.shape == outputs.shape else values.reshape(outputs.shape)
    return values.to(dtype)
