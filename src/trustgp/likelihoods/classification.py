r"""Classification: targets are class numbers, outputs are logits, the loss is cross entropy.

The experts learn one combination u of the logits (see `Classification.blend`) from the pseudo-targets
:math:`J \theta - H^{-1} R`, and all share one prior. Their posterior variance v is the latent variance: the
same for all logits of a row, and the row's novelty score. It cools the probabilities,
:math:`p = \mathrm{softmax}(z / T)` with :math:`T = \sqrt{T_0^2 + \lambda v}` (see `math.temperature`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..data.user_warnings import warn_user
from ..experts.mixture import LatentPrediction
from ..math.cross_entropy import loss_gradient, newton_step
from ..math.temperature import ClassCalibrationRows, Temperature, fit_temperature
from ..tangents.base import output_mixes
from .base import Shape, wide
from .class_prediction import ClassPrediction

NAMED = 8  # absent classes that a warning names


@dataclass(frozen=True)
class Classification:
    """Targets are class numbers 0 .. C - 1; the network returns C logits, or one logit for two classes."""

    default_outputs: ClassVar[str] = "pseudo"
    uses_witness: ClassVar[bool] = False
    common_prior: ClassVar[bool] = True
    needs_held_out: ClassVar[bool] = True
    titles: ClassVar[tuple[str, ...]] = ("temperature",)

    def settings(self) -> dict:
        return {}

    def mixes(
        self, outputs: str, num_outputs: int, generator: torch.Generator
    ) -> list[tuple[Tensor, Tensor]]:
        return output_mixes(outputs, num_outputs, generator, contrast=True)

    def check(self, num_outputs: int, targets: Tensor, *, name: str) -> None:
        """Raise unless the targets [n, 1] are numbers of the classes of a network with C logits."""
        if targets.shape[1] != 1:
            raise ValueError(
                f"{name} labels have shape {tuple(targets.shape)}; one class number a row is needed, shape "
                "[n]. Soft or one-hot labels: pass labels.argmax(dim=1)."
            )
        if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
            raise ValueError(
                f"{name} labels are {targets.dtype}; class numbers are needed. Soft labels are not "
                "supported; whole numbers: pass labels.long()."
            )
        last = max(2, num_outputs) - 1
        labels = targets.flatten()
        wrong = ((labels < 0) | (labels > last)).nonzero().flatten()
        if len(wrong):
            reason = (
                f"the network has {num_outputs} logits" if num_outputs > 1 else "the network has one logit"
            )
            raise ValueError(
                f"{name} labels lie beyond 0..{last} in {len(wrong)} of {len(labels)} rows, first "
                f"{int(labels[wrong[0]])} in row {int(wrong[0])}; {reason}, so only 0..{last} are "
                "classes. Number the classes from 0, or pass the network that belongs to these labels."
            )

    def warn(self, num_outputs: int, targets: Tensor) -> None:
        """Warn of classes without a single training row: what is said of them is the network's word alone."""
        counts = torch.bincount(targets.flatten().long(), minlength=max(2, num_outputs))
        absent = (counts == 0).nonzero().flatten().tolist()
        if absent:
            names = ", ".join(map(str, absent[:NAMED])) + (", ..." if len(absent) > NAMED else "")
            warn_user(
                f"{len(absent)} of {len(counts)} classes have no training row ({names}): their "
                "probabilities are the network's word alone, and rows of them should come out as novel."
            )

    def pruning_targets(self, outputs: Callable[[], Tensor], targets: Tensor) -> Tensor:
        """z - R, so that the gradient of half the squared error is that of the cross entropy."""
        logits = outputs()
        return logits.double() - loss_gradient(logits, _labels(targets, logits))

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-(H + epsilon I)^-1 R, float64, shape [n, C]; see `math.crossentropy`."""
        return newton_step(outputs, _labels(targets, outputs))

    def output_combination(self, mix: Tensor, generator: torch.Generator) -> Tensor:
        """The one combination of logits that the experts learn, shape [C, 1].

        A kernel of one combination ("pseudo", "separate") learns just that. The one of all logits
        ("shared") has one scale for all, which random signs s find: the mean square of s W z is on average
        that of W z, whose kernel it is.

        Args:
            mix: Of the kernel, shape [K, C].
            generator: Of the signs.
        """
        if len(mix) == 1:
            return mix.T.clone()
        signs = torch.randint(0, 2, (1, len(mix)), generator=generator).double() * 2 - 1
        return (signs @ mix).T

    def calibration_rows(
        self, outputs: Tensor, raw: LatentPrediction, targets: Tensor
    ) -> ClassCalibrationRows:
        """Rows with known classes, as the temperature wants them."""
        return ClassCalibrationRows(outputs, _labels(targets, outputs), self.score(raw), raw.expert[:, 0])

    def calibrate(
        self, rows: ClassCalibrationRows | None, shape: Shape, targets: Tensor | None, *, seen: bool = False
    ) -> tuple[Temperature]:
        """How the latent variance cools the probabilities.

        Args:
            rows: Held-out rows; None: there are none.
            shape: Of the model.
            targets: Do not matter here.
            seen: Whether the network was trained on the held-out rows.
        """
        experts = shape.experts[0]
        if rows is None:
            return (Temperature.default(experts),)
        # with a kernel for each output there is no one expert that a row belongs to
        return (fit_temperature(rows, experts, seen=seen, local=len(shape.experts) == 1),)

    def recalibrate(
        self, rows: ClassCalibrationRows, shape: Shape, calibrations: tuple[Temperature]
    ) -> tuple[Temperature]:
        """The temperature fitted anew, to rows that the network has not seen."""
        return self.calibrate(rows, shape, None)

    def calibration_warning(self, rows: ClassCalibrationRows, calibrations: tuple[Temperature]) -> str:
        """A constant temperature is among those it is fitted with: there is nothing to say."""
        return ""

    def score(self, raw: LatentPrediction) -> Tensor:
        """The latent variance, the mean over the logits where they have kernels of their own, shape [n]."""
        return raw.epistemic.mean(dim=1)

    def prediction(
        self, outputs: Tensor, raw: LatentPrediction, calibrations: tuple[Temperature]
    ) -> ClassPrediction:
        """The answer to the user.

        Args:
            outputs: Logits of the network, shape [n] or [n, C].
            raw: What the experts say, for all logits together (B = 1) or for each.
            calibrations: The temperature.
        """
        score = self.score(raw)
        spread = raw.epistemic.to(wide(outputs.dtype))
        # one number a row serves all logits: a view, however many there are
        spread = spread.reshape(outputs.shape) if outputs.ndim == 1 else spread.expand(outputs.shape)
        nothing = spread.new_zeros(()).expand(outputs.shape)
        return ClassPrediction(
            mean=outputs,
            epistemic=spread,
            aleatoric=nothing,
            excess=nothing,
            novelty=raw.novelty.mean(dim=1).to(wide(outputs.dtype)),
            expert=raw.expert.squeeze(1) if raw.expert.shape[1] == 1 else raw.expert,
            valid=torch.isfinite(outputs).reshape(outputs.shape[0], -1).all(dim=1),
            temperature=calibrations[0].to(score.device)(score, raw.expert[:, 0]),
            _score=score,
        )

    def read_calibrations(self, reader: Reader, prefix: str, shape: Shape) -> tuple[Temperature]:
        """The temperature from a file, each tensor checked."""
        sizes = {"base": (), "slope": (), "slopes": (shape.experts[0],)}
        values = {
            name: reader.take(f"{prefix}0.{name}", torch.float64, *size) for name, size in sizes.items()
        }
        for name, value in values.items():
            if not bool((value > 0).all()):
                raise reader.fail(f"{prefix}0.{name}", "must be positive")
        return (Temperature(**values),)


def _labels(targets: Tensor, outputs: Tensor) -> Tensor:
    """Class numbers [n], beside the outputs."""
    return targets.reshape(-1).to(outputs.device, torch.int64)
