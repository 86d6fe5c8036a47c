"""How good is a method on each kind of motion?"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .. import metrics
from ..prediction import Prediction


@dataclass(frozen=True)
class Scores:
    """One method on one motion, in units of the training torques' standard deviation.

    Args:
        nll: Mean negative log likelihood per torque.
        rmse: Root mean squared error.
        coverage: Share of torques inside the 95 % interval.
        std: Mean standard deviation.
        novelty: Mean novelty.
        auroc_std, auroc_novelty: Told apart from "same" by either; None on "same" itself.
    """

    nll: float
    rmse: float
    coverage: float
    std: float
    novelty: float
    auroc_std: float | None
    auroc_novelty: float | None


def score_motions(
    predictions: dict[str, Prediction], tests: dict[str, tuple[Tensor, Tensor]]
) -> dict[str, Scores]:
    """Scores of one method, by motion; "same" is what the others are told apart from.

    Args:
        predictions: By motion, each [n, C].
        tests: By motion: inputs, and targets [n, C].
    """
    known = predictions["same"]

    def score(motion: str) -> Scores:
        found, targets = predictions[motion], tests[motion][1]
        foreign = motion != "same"
        return Scores(
            nll=float(metrics.gaussian_nll(found.mean, found.variance, targets).mean()),
            rmse=float(metrics.mse(found.mean, targets).sqrt()),
            coverage=float(metrics.coverage(found, targets)),
            std=float(found.std.mean()),
            novelty=float(found.novelty.mean()),
            auroc_std=_told_apart(known.std.mean(1), found.std.mean(1)) if foreign else None,
            auroc_novelty=_told_apart(known.novelty, found.novelty) if foreign else None,
        )

    return {motion: score(motion) for motion in predictions}


def _told_apart(known: Tensor, foreign: Tensor) -> float:
    return float(metrics.auroc(known, foreign))
