"""Regression: real targets, squared error."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..experts.mixture import LatentPrediction
from ..math.calibration import KNOTS, Calibration, CalibrationRows, Rare, pooled
from ..math.calibration_fit import (
    MANY,
    SPREAD,
    choose_spread,
    fit_calibration,
    fit_growth,
    held_out_loss,
    initial_calibration,
)
from .base import FamiliarScores, Likelihood, Shape, common_fields, wide
from .prediction import Prediction

NONE = torch.zeros((), dtype=torch.float64)
ENTRIES, EACH = 4096, 256  # of left-out rows that speak, in all or of each output, whichever are more
FEWEST_WARNED, WORSE = 50, 0.1  # rows that can speak against a calibration, and how clearly, as NLL
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
        rare = None if targets is None else Rare.of(targets)
        if rows is None or not len(rows):
            own, corrected = (Calibration.default(shape.outputs, shift=z, rare=rare) for z in (0.0, 1.0))
            return own, corrected, own, corrected
        some = rows.at_most(max(ENTRIES, EACH * shape.outputs))
        starts = [initial_calibration(some, shape.outputs, corrected=z, rare=rare) for z in (False, True)]
        own, corrected = _fit_both(some, starts[0], starts[1])
        if far is not None:
            own, corrected = fit_growth(far, own), fit_growth(far, corrected)
        return own, corrected, own, corrected

    def recalibrate(self, rows: CalibrationRows, shape: Shape, calibrations: Scales) -> Scales:
        """Both scales fitted to held-out rows, from where left-out training rows have taken them."""
        before = calibrations[2:]
        return *_fit_both(rows, *before, spread=choose_spread(rows, before[0])), *before

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
        familiar: FamiliarScores | None = None,
    ) -> Prediction:
        """About the network's output; about the corrected mean, and as the paper has it, when asked for."""
        common = common_fields(outputs, raw, None, valid, familiar)

        def about(calibration: Calibration) -> Prediction:
            return _about(outputs, raw, calibration, common)

        own, corrected, *_ = calibrations
        later = {"_corrected": lambda: about(corrected), "_plain": lambda: about(plain_calibration(own))}
        return replace(about(own), **later)


def _fit_both(
    rows: CalibrationRows, own: Calibration, corrected: Calibration, spread: float = SPREAD
) -> tuple[Calibration, Calibration]:
    """The scales about the network's output and about the corrected mean.

    Where the corrected mean is nearly right, the valley that leads to the first is narrow, as the target lies
    on one of two sides, and a search from far away ends early. Many rows may also begin where the second is.
    """
    found = fit_calibration(rows, corrected, spread=spread)
    ours = [fit_calibration(rows, own, spread=spread)]
    if len(rows) >= MANY * len(own.level):
        there = replace(found, shift=own.shift, beyond=own.beyond, growth=own.growth)
        ours.append(fit_calibration(rows, there, spread=spread))
    return min(ours, key=lambda one: held_out_loss(one, rows)), found


def _about(
    outputs: Tensor, raw: LatentPrediction, calibration: Calibration, common: dict[str, Any]
) -> Prediction:
    """The distribution about the network's output, or the corrected mean, as the calibration has it."""
    c, logs, rare = calibration.folded(raw.epistemic.device, wide(outputs.dtype))
    variance = raw.epistemic + raw.noise
    scale = c.scale(raw.novelty, raw.log_kappa, variance, *logs)
    expected, left = pooled(
        c, scale * variance, raw.residual_mean, raw.witness_mean, raw.witness_precision, c.trust
    )
    left, rest = left * scale, 1.0 - c.shift
    excess = expected.square() * (c.excess * rest * rest) if rest else torch.zeros_like(expected)
    return Prediction(
        # z = 0 leaves the network's output untouched, to the bit
        mean=outputs + _like(c.shift * expected, outputs) if c.shift else outputs,
        epistemic=_like(left * raw.epistemic, outputs),
        # what underflows is not certain for that
        aleatoric=_like(left * raw.noise, outputs).clamp_min(torch.finfo(wide(outputs.dtype)).tiny),
        excess=_like(excess, outputs),
        rare=_like(rare.expand_as(expected), outputs),
        df=_like(c.df.expand_as(expected), outputs),
        share=c.share,
        **common,
    )


def plain_calibration(calibration: Calibration) -> Calibration:
    """No fading scale, no excess: what the evidence alone says."""
    flat = Calibration.default(len(calibration.level), shift=0.0)
    return replace(flat, fade=NONE, excess=NONE, trust=torch.zeros_like(flat.trust))


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


def _like(values: Tensor, outputs: Tensor) -> Tensor:
    """[n, C] float64 in the shape of the network's outputs, and in their precision or float32."""
    values = values if values.shape == outputs.shape else values.reshape(outputs.shape)
    return values.to(wide(outputs.dtype))
