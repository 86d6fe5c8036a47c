"""Regression: real targets, squared error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..experts.mixture import LatentPrediction
from ..math.calibration import Calibration, CalibrationRows, fit_calibration, held_out_loss, pooled, unruled
from ..tangents.base import output_mixes
from .base import Shape, wide
from .prediction import Prediction

NONE, ALL = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
FEWEST_WARNED, WORSE = 50, 0.1  # rows that can speak against a calibration, and how clearly, as NLL


@dataclass(frozen=True)
class Regression:
    """Targets are real numbers, one for each output of the network."""

    default_outputs: ClassVar[str] = "shared"
    uses_witness: ClassVar[bool] = True
    common_prior: ClassVar[bool] = False
    needs_held_out: ClassVar[bool] = False
    titles: ClassVar[tuple[str, ...]] = ("calibration", "... corrected")

    def settings(self) -> dict:
        return {}

    def mixes(
        self, outputs: str, num_outputs: int, generator: torch.Generator
    ) -> list[tuple[Tensor, Tensor]]:
        return output_mixes(outputs, num_outputs, generator)

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
        """Nothing is odd about numbers."""

    def pruning_targets(self, outputs: Callable[[], Tensor], targets: Tensor) -> Tensor:
        """The targets themselves."""
        return targets

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-H^-1 R, which for squared error is y - f, shape [n, C], float64."""
        return targets.double() - outputs.double()

    def output_combination(self, mix: Tensor, generator: torch.Generator) -> Tensor | None:
        """None: every output is learnt."""
        return None

    def calibration_rows(self, outputs: Tensor, raw: LatentPrediction, targets: Tensor) -> CalibrationRows:
        """One entry per row and output."""
        residual = self.residual(outputs, targets.to(outputs.device))
        return raw.calibration_rows(residual, torch.arange(residual.shape[1]))

    def calibrate(
        self, rows: CalibrationRows | None, shape: Shape, targets: Tensor | None, *, seen: bool = False
    ) -> tuple[Calibration, Calibration]:
        """The scales of the distribution about the network's output, and about the corrected mean.

        Args:
            rows: Held-out rows; None: there are none.
            shape: Of the model.
            targets: Of the training rows, for what they cannot rule out; None: nothing is added for that.
            seen: Does not matter here.
        """
        num_outputs = shape.outputs
        rare = None if targets is None else unruled(targets)
        if rows is None:
            own, corrected = (Calibration.default(num_outputs, shift=z, rare=rare) for z in (0.0, 1.0))
            return own, corrected
        own, corrected = (fit_calibration(rows, num_outputs, corrected=z, rare=rare) for z in (False, True))
        return own, corrected

    def recalibrate(
        self, rows: CalibrationRows, shape: Shape, calibrations: tuple[Calibration, Calibration]
    ) -> tuple[Calibration, Calibration]:
        """Both scales fitted anew; rho is that of before."""
        own, corrected = (
            fit_calibration(rows, shape.outputs, corrected=z, rare=before.rare.cpu())
            for z, before in zip((False, True), calibrations, strict=True)
        )
        return own, corrected

    def calibration_warning(
        self, rows: CalibrationRows, calibrations: tuple[Calibration, Calibration]
    ) -> str:
        """Whether one constant noise for each output would have told more about the held-out rows."""
        spread = torch.stack([part.square().mean() for part in _by_output(rows)])
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

    def score(self, raw: LatentPrediction) -> Tensor:
        """Novelty, which has no unit, the mean over the outputs, shape [n]."""
        return raw.novelty.mean(dim=1)

    def read_calibrations(self, reader: Reader, prefix: str, shape: Shape) -> tuple[Calibration, Calibration]:
        """Both calibrations from a file, each tensor checked."""
        own, corrected = (_read_one(reader, f"{prefix}{k}.", shape.outputs) for k in (0, 1))
        return own, corrected

    def prediction(
        self, outputs: Tensor, raw: LatentPrediction, calibrations: tuple[Calibration, Calibration]
    ) -> Prediction:
        """The answer to the user.

        Args:
            outputs: Of the network, shape [n] or [n, C].
            raw: What the experts say, all finite, for the C outputs.
            calibrations: About the network's output, and about the corrected mean.
        """
        own, corrected = (self._about(outputs, raw, c) for c in calibrations)
        paper = self._about(outputs, raw, _plain(calibrations[0]))
        return replace(own, _corrected=corrected, _plain=paper)

    def _about(self, outputs: Tensor, raw: LatentPrediction, calibration: Calibration) -> Prediction:
        c = calibration.to(raw.epistemic.device)
        scale = c.scale(raw.novelty, raw.log_kappa, c.level)
        variance = scale * (raw.epistemic + raw.noise)
        expected, left = pooled(
            c,
            variance,
            raw.residual_mean,
            raw.witness_mean,
            raw.witness_precision,
            c.trust.expand_as(raw.residual_mean),
        )
        rest = 1.0 - c.shift
        # z = 0 leaves the network's output untouched, to the bit
        mean = outputs if float(calibration.shift) == 0.0 else outputs + _like(c.shift * expected, outputs)
        return Prediction(
            mean=mean,
            epistemic=_like(left * scale * raw.epistemic, outputs),
            aleatoric=_like(left * scale * raw.noise, outputs),
            excess=_like(c.excess * rest.square() * expected.square(), outputs),
            novelty=raw.novelty.mean(dim=1).to(wide(outputs.dtype)),
            _score=self.score(raw),
            expert=raw.expert.squeeze(1) if raw.expert.shape[1] == 1 else raw.expert,
            rare=_like(c.rare.expand_as(expected), outputs),
            valid=torch.isfinite(outputs).reshape(outputs.shape[0], -1).all(dim=1),
        )


def _plain(calibration: Calibration) -> Calibration:
    """No fading scale, no excess: what the evidence alone says."""
    zero, one = NONE, ALL
    flat = torch.ones_like(calibration.level)
    return Calibration(zero, one, flat, zero, one, zero, one, torch.zeros_like(flat), torch.zeros_like(flat))


def _read_one(reader: Reader, prefix: str, outputs: int) -> Calibration:
    real = torch.float64
    values = {
        field.name: reader.take(
            prefix + field.name, real, *((outputs,) if field.name in ("level", "trust", "rare") else ())
        )
        for field in fields(Calibration)
    }
    for name in ("fade", "onset", "excess", "trust", "rare"):
        if not bool((values[name] >= 0).all()):
            raise reader.fail(prefix + name, "must not be negative")
    if not 0 < float(values["reach"]) <= 1:
        raise reader.fail(prefix + "reach", "must lie between 0 and 1")
    if not bool((values["level"] > 0).all()):
        raise reader.fail(prefix + "level", "must be positive")
    return Calibration(**values)


def _like(values: Tensor, outputs: Tensor) -> Tensor:
    """[n, C] float64 in the shape of the network's outputs, and in their precision or float32."""
    return values.reshape(outputs.shape).to(wide(outputs.dtype))


def _by_output(rows: CalibrationRows) -> list[Tensor]:
    """The residuals of each output."""
    return [rows.residual[rows.output == output] for output in rows.output.unique().tolist()]
