"""Part two of the demo: does the error bar of an arm's torques know motions that were never trained?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..baselines import ConstantNoise, mlp, train
from ..datasets import Recording, Standardiser, simulate, standardise
from ..fit import fit
from ..prediction import Prediction
from ..tangents import LayerFactors
from .scoring import Scores, score_motions

TRAJECTORY = 500  # rows of a simulated trajectory: 5 s at 100 Hz
STRIDE = 20  # every 20th row: neighbours in time hardly differ
MOTIONS = {"same": "slow", "shifted": "shifted", "fast": "fast"}  # name of a test set: style of its motion


@dataclass(frozen=True)
class Size:
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


FULL = Size(trajectories=600, foreign=60, width=128, epochs=60)
QUICK = Size(trajectories=150, foreign=15, width=48, epochs=20)


@dataclass(frozen=True)
class ArmData:
    """Standardised rows (inputs [n, 21], targets [n, 7]).

    Args:
        train, validation: Rows of different slow trajectories.
        tests: By motion: "same" (further slow trajectories), "shifted" and "fast".
        films: One whole trajectory of "same" and of "fast" at 100 Hz, for the figure.
        scaling: Statistics of the training rows.
    """

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    tests: dict[str, tuple[Tensor, Tensor]]
    films: dict[str, tuple[Tensor, Tensor]]
    scaling: Standardiser


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
    scores: dict[str, dict[str, Scores]]
    predictions: dict[str, dict[str, Prediction]]
    films: dict[str, dict[str, Prediction]]
    figures: dict[str, Any]

    def summary(self) -> dict[str, Any]:
        scores = {m: {k: asdict(s) for k, s in table.items()} for m, table in self.scores.items()}
        return {**self.figures, "scores": scores}


def run_arm(*, size: Size = FULL, seed: int = 0, progress: bool = False) -> Arm:
    """Simulate, train one network on slow motions, and ask four error bars about other motions."""
    data = arm_data(size, seed=seed)
    network, training_s = _timed(lambda: _trained(data, size, seed, progress))
    options = {"validation": data.validation, "seed": seed, "progress": progress}
    model, fit_s = _timed(lambda: fit(network, data.train, **options))
    last = fit(network, data.train, tangents=LayerFactors(parameters="last"), **options)
    constant = ConstantNoise.fit(network, data.validation)
    methods: dict[str, Callable[[Tensor], Prediction]] = {
        "constant noise": constant.predict,
        "last layer": last.predict,
        "trustgp": model.predict,
    }
    predictions = _predict_all(methods, data.tests)
    figures = {
        "train_rows": len(data.train[0]),
        "parameters": sum(p.numel() for p in network.parameters()),
        "experts": model.num_experts,
        "model_bytes": model.nbytes,
        "training_seconds": round(training_s, 2),
        "fit_seconds": round(fit_s, 2),
    }
    scores = {method: score_motions(table, data.tests) for method, table in predictions.items()}
    return Arm(data, scores, predictions, _predict_all(methods, data.films), figures)


def arm_data(size: Size, *, seed: int) -> ArmData:
    """Simulated rows, split by whole trajectories and standardised by the training rows alone."""
    slow = simulate(rows=TRAJECTORY * size.trajectories, style="slow", seed=seed)
    assert slow.groups is not None
    held = size.trajectories // 10
    first_test = size.trajectories - held
    kept = torch.arange(len(slow.inputs)) % STRIDE == 0
    is_train = slow.groups < first_test - held
    is_test = slow.groups >= first_test
    scaling = standardise(slow.inputs[kept & is_train], slow.targets[kept & is_train])

    def rows(recording: Recording, chosen: Tensor | slice) -> tuple[Tensor, Tensor]:
        return scaling.inputs(recording.inputs[chosen]), scaling.targets(recording.targets[chosen])

    every, one = slice(None, None, STRIDE), slice(0, TRAJECTORY)
    tests, films = {"same": rows(slow, kept & is_test)}, {"same": rows(slow, slow.groups == first_test)}
    for number, motion in enumerate(("shifted", "fast"), start=1):
        foreign = simulate(rows=TRAJECTORY * size.foreign, style=MOTIONS[motion], seed=seed + 1000 * number)
        tests[motion], films[motion] = rows(foreign, every), rows(foreign, one)
    is_validation = ~is_train & ~is_test
    return ArmData(
        train=rows(slow, kept & is_train),
        validation=rows(slow, kept & is_validation),
        tests=tests,
        films={motion: films[motion] for motion in ("same", "fast")},
        scaling=scaling,
    )


def _trained(data: ArmData, size: Size, seed: int, progress: bool) -> nn.Module:
    inputs, targets = data.train
    widths = [inputs.shape[1], size.width, size.width, size.width, targets.shape[1]]

    start = mlp(widths, activation=nn.SiLU, seed=seed)
    options = {"epochs": size.epochs, "learning_rate": 0.003, "seed": seed, "progress": progress}
    return train(start, inputs, targets, **options)


def _predict_all(
    methods: dict[str, Callable[[Tensor], Prediction]], tests: dict[str, tuple[Tensor, Tensor]]
) -> dict[str, dict[str, Prediction]]:
    """By method, then by motion; "corrected" comes from the same call as "trustgp"."""
    found = {
        name: {motion: predict(inputs) for motion, (inputs, _) in tests.items()}
        for name, predict in methods.items()
    }
    found["trustgp corrected"] = {motion: p.corrected for motion, p in found["trustgp"].items()}
    return found


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start
