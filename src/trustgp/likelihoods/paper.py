"""The likelihoods of the paper (Lee et al., CoRL 2021), without calibration."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..experts.mixture import LatentPrediction
from ..experts.whole import WholePosterior
from ..math.calibration import Calibration, OutlierPrior
from ..math.cross_entropy import Temperature, UsualNovelty
from ..math.held_out import CalibrationRows
from .base import Shape
from .classification import Classification, Learnt
from .prediction import ClassPrediction
from .regression import Regression, Scales, plain_calibration


@dataclass(frozen=True)
class PaperRegression(Regression):
    r"""Real targets; the variance is :math:`k(x, x) - k^\top (K + \sigma^2 I)^{-1} k + \sigma^2`."""

    uses_witness: ClassVar[bool] = False
    calibrated: ClassVar[bool] = False
    whole_kind: ClassVar[type[WholePosterior] | None] = None

    def _score(self, measures: Tensor, exponent: Tensor) -> Tensor:
        """Share of the prior variance, shape [n]."""
        return measures[:, 0].exp()

    def calibrate(self, rows: Any, shape: Shape, targets: Tensor | None, **_: Any) -> Scales:
        """Calibrations of the evidence alone, about the output and the posterior mean; rows are not used."""
        outliers = None if targets is None else OutlierPrior.of(targets)
        own = plain_calibration(Calibration.default(shape.outputs, shift=0.0, outliers=outliers))
        corrected = replace(own, shift=torch.ones_like(own.shift))
        return own, corrected, own, corrected

    def recalibrate(self, rows: CalibrationRows, shape: Shape, calibrations: Scales) -> Scales:
        return calibrations

    def calibration_warning(self, rows: CalibrationRows, calibrations: Scales) -> str:
        return ""


@dataclass(frozen=True)
class PaperClassification(Classification):
    r"""Class numbers; :math:`p = \mathrm{softmax}(z / T)`, :math:`T^2 = 1 + \pi / 8 \, (v + \sigma^2)`."""

    contrast: ClassVar[bool] = False
    uses_hidden: ClassVar[bool] = False
    common_prior: ClassVar[bool] = False
    needs_held_out: ClassVar[bool] = False
    calibrated: ClassVar[bool] = False
    whole_kind: ClassVar[type[WholePosterior] | None] = None

    def calibrate(self, rows: Any, shape: Shape, targets: Tensor | None, **_: Any) -> Learnt:
        """Temperature with T_0 = 1 and MacKay's pi / 8, and the default novelty; rows are not used."""
        return Temperature.default(), UsualNovelty.default()

    def expert_variance(self, raw: LatentPrediction) -> Tensor:
        """Variance of the experts, including the noise, the mean over the logits [n]."""
        return (raw.epistemic + raw.noise).mean(dim=1)

    def measures(self, raw: LatentPrediction, outputs: Tensor) -> Tensor:
        """Variance of logits with the noise, and share of the prior variance, [n, 2]; means over logits."""
        return torch.stack([self.expert_variance(raw), raw.novelty.mean(dim=1)], dim=1)

    def score(self, measures: Tensor, calibrations: Learnt) -> Tensor:
        """Variance of the logits, which is the score here, shape [n]."""
        return measures[:, 0]

    def prediction(self, outputs: Tensor, raw: LatentPrediction, *given: Any, **more: Any) -> ClassPrediction:
        prediction = super().prediction(outputs, raw, *given, **more)
        return replace(prediction, aleatoric=raw.noise.reshape(outputs.shape).to(prediction.epistemic))
