r"""Classification: targets are class numbers, outputs are logits, the loss is cross entropy.

The experts learn one combination u of the logits (see `output_combination`) from the pseudo-targets
:math:`J \theta - H^{-1} R`, and all share one prior. Their posterior variance v is the latent variance: the
same for all logits of a row. The posterior of all rows gives the covariance of the leading logits, from each
class's own gradient: probabilities average over it. The novelty score pools v, its share of the prior
variance, the distance to training rows in the last hidden layer, and the entropy (see `math.cross_entropy`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..data.user_warnings import warn_user
from ..experts.mixture import LatentPrediction
from ..experts.whole import ContrastPosterior, WholePosterior
from ..math import cross_entropy
from ..math.cross_entropy import ClassCalibrationRows, Temperature, UsualNovelty
from ..tangents.sketch import LeadingSketchMap, OutputSketchMap, SketchMap
from .base import Shape
from .logits import LogitLikelihood, named, probability_warning
from .prediction import ClassPrediction

Learnt = tuple[Temperature, UsualNovelty]
MAX_TOP = 16
WEIGHT = 2.0  # of a combination's variance in T^2, over that of the noise: more helps out of distribution
MAX_TEMPERATURE = 10.0  # beyond it, or below its inverse, the logits are on another scale
SUM_TOLERANCE, MIN_COMPARED = 1e-2, 20  # of a sum of probabilities; fewest rows for a warning


@dataclass(frozen=True)
class Classification(LogitLikelihood):
    """Targets are class numbers 0 .. C - 1; the network returns C logits, or one logit for two classes.

    Args:
        top_classes: How many of a row's most probable classes have gradients of their own, 2 to 16; the
            others share one noise. Each beyond the first takes a backward pass.

    Examples:
        >>> likelihood = trustgp.Classification(top_classes=3)
        >>> classes = trustgp.fit(classifier, (inputs, kinds), likelihood=likelihood, progress=False)
    """

    top_classes: int = 2

    class_numbers: ClassVar[bool] = True
    contrast: ClassVar[bool] = True
    whole_kind: ClassVar[type[WholePosterior] | None] = ContrastPosterior
    kind: ClassVar[Any] = ClassPrediction

    def __post_init__(self) -> None:
        if type(self.top_classes) is not int or not 2 <= self.top_classes <= MAX_TOP:
            raise ValueError(
                f"top_classes={self.top_classes!r}; a whole number from 2 to {MAX_TOP} is needed."
            )

    def settings(self) -> dict:
        return {"top_classes": self.top_classes}

    def output_map(self, tangents: SketchMap) -> OutputSketchMap:
        """The sketches of differences between the leading logits."""
        return LeadingSketchMap(tangents, self.top_classes)

    def check(self, num_outputs: int, targets: Tensor, *, name: str) -> None:
        """Raise unless the targets [n, 1] are numbers of the classes of a network with C logits."""
        if targets.shape[1] != 1:
            raise ValueError(
                f"{name} labels have shape {tuple(targets.shape)}; one class number a row is needed, shape "
                "[n]. One-hot: labels.argmax(dim=1). Several 0 or 1 a row: likelihood=MultiLabel()."
            )
        if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
            raise ValueError(
                f"{name} labels are {targets.dtype}; class numbers are needed. Soft labels are not "
                "supported; whole numbers: pass labels.long()."
            )
        last, labels = max(2, num_outputs) - 1, targets.flatten()
        wrong = ((labels < 0) | (labels > last)).nonzero().flatten()
        if len(wrong):
            reason = f"the network has {f'{num_outputs} logits' if num_outputs > 1 else 'one logit'}"
            raise ValueError(
                f"{name} labels lie beyond 0..{last} in {len(wrong)} of {len(labels)} rows, first "
                f"{int(labels[wrong[0]])} in row {int(wrong[0])}; {reason}, so only 0..{last} are "
                "classes. Number the classes from 0, or pass the network that belongs to these labels."
            )

    def warn(self, num_outputs: int, targets: Tensor) -> None:
        """Warn of classes without training rows."""
        counts = torch.bincount(targets.flatten().long(), minlength=max(2, num_outputs))
        if absent := (counts == 0).nonzero().flatten().tolist():
            warn_user(
                f"{len(absent)} of {len(counts)} classes have no training row ({named(absent)}): their "
                "probabilities are the network's alone, and their rows should be flagged as novel."
            )

    def output_warning(self, outputs: Tensor, targets: Tensor) -> str:
        """Warning where the outputs look like probabilities, whose logarithms are logits; empty: none."""
        inside = bool(((outputs >= 0) & (outputs <= 1)).all())
        if outputs.shape[1] > 1:
            sums = float((outputs.double().sum(dim=1) - 1.0).abs().max()) < SUM_TOLERANCE
            signs, repair = "lie between 0 and 1 and sum to 1", "p.clamp_min(1e-12).log()"
        else:  # logits between 0 and 1 would never predict class 0
            sums = len(targets.unique()) > 1 and len(outputs) >= MIN_COMPARED
            signs, repair = "all lie between 0 and 1", "p.logit(eps=1e-6)"
        wrong = inside and sums
        return probability_warning("Classification", signs, "softmax or sigmoid", repair) if wrong else ""

    def pruning_targets(self, outputs: Callable[[], Tensor], targets: Tensor) -> Tensor:
        """Targets z - R, for which half the squared error has the gradient of the cross entropy."""
        logits = outputs()
        return logits.double() - cross_entropy.loss_gradient(logits, _labels(targets, logits))

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Newton step -(H + epsilon I)^-1 R, float64, shape [n, C]; see `math.cross_entropy`."""
        return cross_entropy.newton_step(outputs, _labels(targets, outputs))

    def calibration_rows(
        self, outputs: Tensor, raw: LatentPrediction, targets: Tensor
    ) -> ClassCalibrationRows:
        blank = raw.epistemic.new_zeros(len(raw.epistemic), 0)
        covariance = blank if raw.covariance is None else raw.covariance
        latent, labels = self.latent_variances(raw), _labels(targets, outputs)
        return ClassCalibrationRows(outputs, labels, self.measures(raw, outputs), latent, covariance)

    def calibrate(
        self, rows: ClassCalibrationRows | None, shape: Shape, targets: Any, *, seen: bool = False, **_: Any
    ) -> Learnt:
        """The temperature and the usual novelty; the training targets are not used."""
        if rows is None:
            return Temperature.default(), UsualNovelty.default()
        return cross_entropy.fit_temperature(rows, seen=seen), UsualNovelty.fit(rows.measures)

    def expert_variance(self, raw: LatentPrediction) -> Tensor:
        """Variance u in the temperature, the mean over the logits [n]; infinite for invalid rows."""
        return raw.epistemic.mean(dim=1)

    def latent_variances(self, raw: LatentPrediction) -> Tensor:
        """Variances v and u of the temperature, [n, 2]: of the posterior of all rows (or 0), of experts."""
        own = self.expert_variance(raw)
        whole = torch.zeros_like(own) if raw.covariance is None else WEIGHT * raw.log_leverage[:, 0].exp()
        return torch.stack([whole, own], dim=1)

    def tempered(self, raw: LatentPrediction, temperature: Temperature) -> dict[str, Any]:
        """Temperature T of each row, and the covariance of the leading logits, by field name."""
        covariance = None if raw.covariance is None else temperature.covariance(raw.covariance)
        return {"temperature": temperature(self.latent_variances(raw)), "covariance": covariance}

    def calibration_warning(self, rows: ClassCalibrationRows, calibrations: Learnt) -> str:
        """Warning where another scale of the logits would be far likelier; empty: none."""
        temperature = cross_entropy.likeliest_scale(rows)
        if len(rows) < MIN_COMPARED or 1.0 / MAX_TEMPERATURE < temperature < MAX_TEMPERATURE:
            return ""
        return (
            f"held-out rows ask for logits divided by about {temperature:.2g}: the network's outputs are no "
            "logits of a cross entropy, or on another scale. Pass those of its last layer as they are."
        )

    def read_temperature(self, reader: Reader, prefix: str, shape: Shape) -> Temperature:
        earlier = "is of an earlier form of the temperature; fit the model again"
        reader.require("expert" in reader.matching(prefix), f"{prefix}slope", earlier)
        return Temperature(*(reader.positive(f"{prefix}{name}") for name in ("base", "slope", "expert")))


def _labels(targets: Tensor, outputs: Tensor) -> Tensor:
    """Class numbers [n], on the device of the outputs."""
    return targets.reshape(-1).to(outputs.device, torch.int64)
