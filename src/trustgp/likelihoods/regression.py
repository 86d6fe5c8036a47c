"""Regression: real targets, squared error."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..experts.mixture import LatentPrediction
from ..math.calibration import Calibration, CalibrationRows, fit_calibration, held_out_loss, pooled, unruled
from .base import Likelihood, Shape, common_fields, wide
from .prediction import Prediction

NONE = torch.zeros((), dtype=torch.float64)
FEWEST_WARNED, WORSE = 50, 0.1  # rows that can speak against a calibration, and how clearly, as NLL
Pair = tuple[Calibration, Calibration]  # about the network's output, and about the corrected mean


@dataclass(frozen=True)
class Regression(Likelihood):
    """Targets are real numbers, one for each output of the network."""

    titles: ClassVar[tuple[str, ...]] = ("calibration", "... corrected")

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
        self, rows: CalibrationRows | None, shape: Shape, targets: Tensor | None, *, seen: bool = False
    ) -> Pair:
        """The scales of the distribution about the network's output, and about the corrected mean.

        Without training targets nothing is added for what they cannot rule out.
        """
        outputs, rare = shape.outputs, None if targets is None else unruled(targets)
        if rows is None:
            own, corrected = (Calibration.default(outputs, shift=z, rare=rare) for z in (0.0, 1.0))
        else:
            own, corrected = (fit_calibration(rows, outputs, corrected=z, rare=rare) for z in (False, True))
        return own, corrected

    def recalibrate(self, rows: CalibrationRows, shape: Shape, calibrations: Pair) -> Pair:
        """Both scales fitted anew; rho is that of before."""
        own, corrected = (
            fit_calibration(rows, shape.outputs, corrected=z, rare=before.rare.cpu())
            for z, before in zip((False, True), calibrations, strict=True)
        )
        return own, corrected

    def calibration_warning(self, rows: CalibrationRows, calibrations: Pair) -> str:
        """Whether one constant noise for each output would have told more about the held-out rows."""
        each = rows.output.unique().tolist()
        spread = torch.stack([rows.residual[rows.output == output].square().mean() for output in each])
        if len(rows) < FEWEST_WARNED * len(spread) or not bool((spread > 0).all()):
            return ""
        found = float(held_out_loss(calibrations[0], rows))
        constant = float(0.5 * (2 * math.pi * math.e * spread).log().mean())
        if not found > constant + WORSE:
            return ""
        return (
            f"on the held-out rows this error bar is worse than one constant noise: NLL {found:.2f} against "
            f"{constant:.2f}. The network's errors there are unlike its residuals on the training rows, "
            "which may follow each other closely in time: pass fewer of these (every eighth), and compare."
        )

    def read_calibrations(self, reader: Reader, prefix: str, shape: Shape) -> Pair:
        own, corrected = (_read_one(reader, f"{prefix}{k}.", shape.outputs) for k in (0, 1))
        return own, corrected

    def prediction(
        self,
        outputs: Tensor,
        raw: LatentPrediction,
        calibrations: Pair,
        valid: Tensor | None = None,
        threshold: float | None = None,
    ) -> Prediction:
        """About the network's output; about the corrected mean, and as the paper has it, when asked for."""
        common = common_fields(outputs, raw, None, valid, threshold)

        def about(calibration: Calibration) -> Prediction:
            return _about(outputs, raw, calibration, common)

        own, corrected = calibrations
        later = {"_corrected": lambda: about(corrected), "_plain": lambda: about(_plain(own))}
        return replace(about(own), **later)


def _about(
    outputs: Tensor, raw: LatentPrediction, calibration: Calibration, common: dict[str, Any]
) -> Prediction:
    """The distribution about the network's output, or the corrected mean, as the calibration has it."""
    c, log_level, rare = calibration.folded(raw.epistemic.device, wide(outputs.dtype))
    scale = c.scale(raw.novelty, raw.log_kappa, log_level)
    expected, left = pooled(
        c, scale * (raw.epistemic + raw.noise), raw.residual_mean, raw.witness_mean, raw.witness_precision,
        c.trust,
    )  # fmt: skip
    left, rest = left * scale, 1.0 - c.shift
    excess = expected.square() * (c.excess * rest * rest) if rest else torch.zeros_like(expected)
    return Prediction(
        # z = 0 leaves the network's output untouched, to the bit
        mean=outputs + _like(c.shift * expected, outputs) if c.shift else outputs,
        epistemic=_like(left * raw.epistemic, outputs),
        aleatoric=_like(left * raw.noise, outputs),
        excess=_like(excess, outputs),
        rare=_like(rare.expand_as(expected), outputs),
        **common,
    )


def _plain(calibration: Calibration) -> Calibration:
    """No fading scale, no excess: what the evidence alone says."""
    flat = Calibration.default(len(calibration.level), shift=0.0)
    return replace(flat, fade=NONE, excess=NONE, trust=flat.rare)


def _read_one(reader: Reader, prefix: str, outputs: int) -> Calibration:
    values = {}
    for field in fields(Calibration):
        size = (outputs,) if field.name in ("level", "trust", "rare") else ()
        values[field.name] = reader.take(prefix + field.name, torch.float64, *size)
    for name in ("fade", "onset", "excess", "trust", "rare"):
        reader.require(values[name] >= 0, prefix + name, "must not be negative")
    reader.require(0 < float(values["reach"]) <= 1, prefix + "reach", "must lie between 0 and 1")
    reader.require(values["level"] > 0, prefix + "level", "must be positive")
    return Calibration(**values)


def _like(values: Tensor, outputs: Tensor) -> Tensor:
    """[n, C] float64 in the shape of the network's outputs, and in their precision or float32."""
    values = values if values.shape == outputs.shape else values.reshape(outputs.shape)
    return values.to(wide(outputs.dtype))
