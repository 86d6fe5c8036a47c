"""Part two of the demo: does the error bar of an arm's torques know motions that were never trained?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trustgp import metrics
from trustgp.api import fit
from trustgp.likelihoods.prediction import Prediction
from trustgp.tangents import LayerFactors

from ..datasets import Recording, Standardiser, simulate, standardise
from ..peers import ConstantNoise, mlp, train

TRAJECTORY = 500  # rows of a simulated trajectory: 5 s at 100 Hz
STRIDE = 20  # every 20th row: neighbours in time hardly differ
MOTIONS = {"same": "slow", "shifted": "shifted", "fast": "fast"}  # name of a test set: style of its motion

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ArmSize:
    """How large part two is.

    Args:
        trajectories: Slow ones; a tenth validates, a tenth tests, the others train.
        foreign: Trajectories of each unknown style.
        width: Of the three hidden layers.
        epochs: Of the training.
    """

    trajectories: int
    foreign: int
    width: int
    epochs: int


FULL = ArmSize(trajectories=600, foreign=60, width=128, epochs=60)
QUICK = ArmSize(trajectories=150, foreign=15, width=48, epochs=20)


@dataclass(frozen=True)
class ArmData:
    """Standardised rows (inputs [n, 21], targets [n, 7]).

    Args:
        train, validation: Rows of different slow trajectories.
        tests: By motion: "same" (further slow trajectories), "shifted" and "fast".
        films: One whole trajectory of "same" and of "fast" at 100 Hz, for the figure.
        scaling: Statistics of the training rows.
    """

    train: Pair
    validation: Pair
    tests: dict[str, Pair]
    films: dict[str, Pair]
    scaling: Standardiser


@dataclass(frozen=True)
class MotionScores:
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


@dataclass(frozen=True)
class Arm:
    """What part two found.

    Args:
        data: The rows.
        scores: By method, then by motion.
        predictions: The same of the tests.
        films: By method, then by motion: predictions on `data.films`.
        figures: Rows, experts, bytes and seconds of the fit.
    """

    data: ArmData
    scores: dict[str, dict[str, MotionScores]]
    predictions: dict[str, dict[str, Prediction]]
    films: dict[str, dict[str, Prediction]]
    figures: dict[str, Any]

    def summary(self) -> dict[str, Any]:
        """The numbers of the table, and of the lines below it."""
        scores = {m: {k: asdict(s) for k, s in table.items()} for m, table in self.scores.items()}
        return {**self.figures, "scores": scores}


def run_arm(*, size: ArmSize = FULL, seed: int = 0, progress: bool = False) -> Arm:
    """Simulate, train one network on slow motions, and ask four error bars about other motions."""
    data = arm_data(size, seed=seed)
    start = time.perf_counter()
    untrained = mlp([21, *[size.width] * 3, 7], activation=nn.SiLU, seed=seed)
    recipe = {"epochs": size.epochs, "learning_rate": 0.003, "seed": seed, "progress": progress}
    network = train(untrained, *data.train, **recipe)
    trained = time.perf_counter()
    options = {"validation": data.validation, "seed": seed, "progress": progress}
    model = fit(network, data.train, **options)
    fitted = time.perf_counter()
    methods = {
        "constant noise": ConstantNoise.fit(network, data.validation).predict,
        "last layer": fit(network, data.train, tangents=LayerFactors(parameters="last"), **options).predict,
        "trustgp": model.predict,
    }
    predictions = _predict_all(methods, data.tests)
    figures = {
        "train_rows": len(data.train[0]),
        "parameters": sum(p.numel() for p in network.parameters()),
        "experts": model.num_experts,
        "model_bytes": model.nbytes,
        "training_seconds": round(trained - start, 2),
        "fit_seconds": round(fitted - trained, 2),
    }
    scores = {method: _score(table, data.tests) for method, table in predictions.items()}
    return Arm(data, scores, predictions, _predict_all(methods, data.films), figures)


def arm_data(size: ArmSize, *, seed: int) -> ArmData:
    """Simulated rows, split by whole trajectories and standardised by the training rows alone."""
    slow = simulate(rows=TRAJECTORY * size.trajectories, style="slow", seed=seed)
    assert slow.groups is not None
    held = size.trajectories // 10
    first_test = size.trajectories - held
    kept = torch.arange(len(slow.inputs)) % STRIDE == 0
    is_train, is_test = slow.groups < first_test - held, slow.groups >= first_test
    scaling = standardise(slow.inputs[kept & is_train], slow.targets[kept & is_train])

    def rows(recording: Recording, chosen: Tensor | slice) -> Pair:
        return scaling.inputs(recording.inputs[chosen]), scaling.targets(recording.targets[chosen])

    tests, films = {"same": rows(slow, kept & is_test)}, {"same": rows(slow, slow.groups == first_test)}
    for number, motion in enumerate(("shifted", "fast"), start=1):
        foreign = simulate(rows=TRAJECTORY * size.foreign, style=MOTIONS[motion], seed=seed + 1000 * number)
        tests[motion] = rows(foreign, slice(None, None, STRIDE))
        if motion == "fast":
            films[motion] = rows(foreign, slice(TRAJECTORY))
    train_rows, held_rows = rows(slow, kept & is_train), rows(slow, kept & ~is_train & ~is_test)
    return ArmData(train_rows, held_rows, tests, films, scaling)


def _score(predictions: dict[str, Prediction], tests: dict[str, Pair]) -> dict[str, MotionScores]:
    """Scores of one method, by motion; "same" is what the others are told apart from."""

    def score(motion: str) -> MotionScores:
        found, known, targets = predictions[motion], predictions["same"], tests[motion][1]
        areas: list[float | None] = [None, None]
        if motion != "same":
            pairs = (known.std.mean(1), found.std.mean(1)), (known.novelty, found.novelty)
            areas = [float(metrics.auroc(*pair)) for pair in pairs]
        return MotionScores(
            float(metrics.gaussian_nll(found.mean, found.variance, targets).mean()),
            float(metrics.mse(found.mean, targets).sqrt()),
            float(metrics.coverage(found, targets)),
            float(found.std.mean()),
            float(found.novelty.mean()),
            *areas,
        )

    return {motion: score(motion) for motion in predictions}


def _predict_all(
    methods: dict[str, Callable[[Tensor], Prediction]], tests: dict[str, Pair]
) -> dict[str, dict[str, Prediction]]:
    """By method, then by motion; "corrected" comes from the same call as "trustgp"."""
    found = {
        name: {motion: predict(inputs) for motion, (inputs, _) in tests.items()}
        for name, predict in methods.items()
    }
    found["trustgp corrected"] = {motion: p.corrected for motion, p in found["trustgp"].items()}
    return found
