"""Regression: real targets, squared error."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..math.calibration import Calibration, HeldOut, fit_calibration, pooled
from ..mixture import Raw
from ..prediction import Prediction


@dataclass(frozen=True)
class Regression:
    """Targets are real numbers, one for each output of the network."""

    def settings(self) -> dict:
        return {}

    def check(self, outputs: Tensor, targets: Tensor, *, name: str) -> None:
        """Raise unless the targets can be compared with the outputs [n, C]."""
        if targets.is_complex() or targets.dtype == torch.bool:
            raise ValueError(f"{name} targets are {targets.dtype}; regression needs real numbers.")
        if outputs.shape[1] != targets.shape[1]:
            raise ValueError(
                f"the network has {outputs.shape[1]} outputs but {name} has {targets.shape[1]} targets "
                "a row; they must agree."
            )

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-H^-1 R, which for squared error is y - f, shape [n, C], float64."""
        return targets.double() - outputs.double()

    def calibrate(
        self, rows: HeldOut | None, num_outputs: int, rare: Tensor | None = None
    ) -> tuple[Calibration, Calibration]:
        """The scales of the distribution about the network's output, and about the corrected mean.

        Args:
            rows: Held-out rows; None: there are none.
            num_outputs: C.
            rare: What the training rows cannot rule out, shape [C]; None: nothing.
        """
        if rows is None:
            own, corrected = (Calibration.default(num_outputs, shift=z, rare=rare) for z in (0.0, 1.0))
            return own, corrected
        own, corrected = (fit_calibration(rows, num_outputs, corrected=z, rare=rare) for z in (False, True))
        return own, corrected

    def prediction(
        self, outputs: Tensor, raw: Raw, calibrations: tuple[Calibration, Calibration]
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

    def _about(self, outputs: Tensor, raw: Raw, calibration: Calibration) -> Prediction:
        c = calibration.to(raw.epistemic.device)
        scale = c.scale(raw.novelty, raw.log_kappa, c.level)
        variance = scale * (raw.epistemic + raw.noise)
        expected, left = pooled(
            c, variance, raw.shift, raw.witness_shift, raw.witness_precision, c.trust.expand_as(raw.shift)
        )
        rest = 1.0 - c.shift
        # z = 0 leaves the network's output untouched, to the bit
        mean = outputs if float(c.shift) == 0.0 else outputs + _like(c.shift * expected, outputs)
        return Prediction(
            mean=mean,
            epistemic=_like(left * scale * raw.epistemic, outputs),
            aleatoric=_like(left * scale * raw.noise, outputs),
            excess=_like(c.excess * rest.square() * expected.square(), outputs),
            novelty=raw.novelty.mean(dim=1).to(wide(outputs.dtype)),
            expert=raw.expert.squeeze(1) if raw.expert.shape[1] == 1 else raw.expert,
            rare=_like(c.rare.expand_as(expected), outputs),
            valid=torch.isfinite(outputs).reshape(len(outputs), -1).all(dim=1),
        )


def _plain(calibration: Calibration) -> Calibration:
    """No fading scale, no excess: what the evidence alone says."""
    zero, one = torch.zeros(()).double(), torch.ones(()).double()
    flat = torch.ones_like(calibration.level)
    return Calibration(zero, one, flat, zero, one, zero, one, torch.zeros_like(flat), torch.zeros_like(flat))


def _like(values: Tensor, outputs: Tensor) -> Tensor:
    """[n, C] float64 in the shape of the network's outputs, and in their precision or float32."""
    return values.reshape(outputs.shape).to(wide(outputs.dtype))


def wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32: the variances of a half-precision network lie below what its numbers can hold."""
    return torch.promote_types(dtype, torch.float32)
