"""Part two of the demo: error bars of an arm's torques on motions that were never trained on."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trustgp import metrics, plots
from trustgp.api import fit
from trustgp.likelihoods.prediction import Prediction
from trustgp.tangents import LayerFactors

from ..core.arm import scaled_rows
from ..core.recipes import Pair, mlp_recipe
from ..datasets import Standardiser, simulate, standardise
from ..peers import ConstantNoise

TRAJECTORY = 500  # rows of a simulated trajectory: 5 s at 100 Hz
STRIDE = 20  # every 20th row: neighbours in time hardly differ
JOINT = 3  # whose torque is drawn over time: the elbow
LABELS = {
    "same": "motions like the training's",
    "shifted": "elsewhere, as slow",
    "fast": "elsewhere, and faster",
}

Predictions = dict[str, dict[str, Prediction]]  # by method, then by motion
Scores = dict[str, Any]  # numbers, or None, in units of the training torques' standard deviation, by measure


@dataclass(frozen=True)
class ArmSize:
    """Slow trajectories (a tenth validates, a tenth tests), those of each other style, width and epochs."""

    trajectories: int
    foreign: int
    width: int
    epochs: int


FULL = ArmSize(trajectories=600, foreign=60, width=128, epochs=60)
QUICK = ArmSize(trajectories=150, foreign=15, width=48, epochs=20)


@dataclass(frozen=True)
class ArmData:
    """Rows (inputs [n, 21], targets [n, 7]), standardised by the training rows; parts share no trajectory."""

    train: Pair
    validation: Pair
    tests: dict[str, Pair]  # by motion; "same" are further slow trajectories
    films: dict[str, Pair]  # one whole trajectory of "same" and of "fast" at 100 Hz, for the figure
    scaling: Standardiser


@dataclass(frozen=True)
class Arm:
    """Results of part two, by method, then by motion."""

    data: ArmData
    scores: dict[str, dict[str, Scores]]
    films: Predictions
    figures: dict[str, Any]  # rows, experts, bytes and seconds of the fit


def run_arm(*, size: ArmSize = FULL, seed: int = 0, progress: bool = False) -> Arm:
    """Simulate, train one network on slow motions, and evaluate four error bars on other motions."""
    data = arm_data(size, seed=seed)
    start = time.perf_counter()
    recipe = mlp_recipe([21, *[size.width] * 3, 7], activation=nn.SiLU, epochs=size.epochs)
    network = recipe.train(data.train, seed=seed, progress=progress)
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
    parameters = sum(p.numel() for p in network.parameters())
    figures = {"train_rows": len(data.train[0]), "parameters": parameters, "experts": model.num_experts}
    figures |= {"model_bytes": model.nbytes, "training_seconds": round(trained - start, 2)}
    figures |= {"fit_seconds": round(fitted - trained, 2)}
    scores = {}
    for method, by_motion in predictions.items():
        scores[method] = {m: _score(p, by_motion["same"], data.tests[m][1]) for m, p in by_motion.items()}
    return Arm(data, scores, _predict_all(methods, data.films), figures)


def arm_data(size: ArmSize, *, seed: int) -> ArmData:
    """Simulated rows, split by whole trajectories and standardised by the training rows alone."""
    slow = simulate(rows=TRAJECTORY * size.trajectories, style="slow", seed=seed)
    assert slow.groups is not None
    tenth = size.trajectories // 10
    first_test = size.trajectories - tenth
    kept = torch.arange(len(slow.inputs)) % STRIDE == 0
    is_train, is_test = slow.groups < first_test - tenth, slow.groups >= first_test
    scaling = standardise(slow.inputs[kept & is_train], slow.targets[kept & is_train])
    rows = partial(scaled_rows, scaling)
    tests, films = {"same": rows(slow, kept & is_test)}, {"same": rows(slow, slow.groups == first_test)}
    for number, motion in enumerate(("shifted", "fast"), start=1):
        foreign = simulate(rows=TRAJECTORY * size.foreign, style=motion, seed=seed + 1000 * number)
        tests[motion] = rows(foreign, slice(None, None, STRIDE))
        if motion == "fast":
            films[motion] = rows(foreign, slice(TRAJECTORY))
    train_rows, validation_rows = rows(slow, kept & is_train), rows(slow, kept & ~is_train & ~is_test)
    return ArmData(train_rows, validation_rows, tests, films, scaling)


def _score(prediction: Prediction, same: Prediction, targets: Tensor) -> Scores:
    """One method's errors and error bars on one motion, and how well they distinguish it from "same"."""
    scores, judged = (same.score, prediction.score), len(same.score.unique()) > 1
    return {
        "nll": float(-prediction.log_prob(targets).mean()),
        "rmse": float(metrics.squared_error(prediction.mean, targets).mean().sqrt()),
        "coverage": float(metrics.coverage(prediction, targets)),
        "half_width": float(half_width(prediction).mean()),
        "novel": float(prediction.is_novel.double().mean()) if judged else None,
        "auroc": float(metrics.auroc(*scores)) if judged and prediction is not same else None,
    }


def half_width(prediction: Prediction) -> Tensor:
    """Half width of the 95 % interval, in the shape of the mean; far from the data, where tails are heavy,
    it is more informative than the std."""
    lower, upper = prediction.interval(0.95)
    return (upper - lower) / 2


def _predict_all(methods: dict[str, Callable[[Tensor], Prediction]], tests: dict[str, Pair]) -> Predictions:
    """Predictions by method, then by motion; "trustgp corrected" comes from the same call as "trustgp"."""
    by_method = {name: {m: ask(rows[0]) for m, rows in tests.items()} for name, ask in methods.items()}
    by_method["trustgp corrected"] = {motion: p.corrected for motion, p in by_method["trustgp"].items()}
    return by_method


def draw_arm(arm: Arm, path: Path) -> None:
    """Draw a torque over time with both error bars."""
    with plots.figure(path, width=9.0, height=4.1, dpi=110) as figure:
        _draw_film(figure.subplots(), arm)


def _draw_film(axes: Any, arm: Arm) -> None:
    """Draw one torque, in N m, along a slow trajectory, then along a fast one."""
    scaling, start = arm.data.scaling, 0.0
    scale = float(scaling.target_scale[JOINT])
    for number, (motion, (_, targets)) in enumerate(arm.data.films.items()):
        times = start + torch.arange(len(targets)) / 100.0
        ours, constant = arm.films["trustgp"][motion], arm.films["constant noise"][motion]
        mean = scaling.restore_targets(ours.mean)[:, JOINT]
        band, narrow = (scale * half_width(prediction)[:, JOINT] for prediction in (ours, constant))
        first = number == 0
        labels = {"label": "95 % of trustgp", "line": "network"} if first else {}
        plots.draw_band(axes, times, mean, band, **labels)
        dashed = {"color": plots.RED, "linewidth": 0.8, "linestyle": "--"}
        axes.plot(times, mean - narrow, **dashed, label="95 % of constant noise" if first else None)
        axes.plot(times, mean + narrow, **dashed)
        truth = scaling.restore_targets(targets)[:, JOINT]
        axes.plot(times, truth, color=plots.INK, linewidth=1.2, label="true torque" if first else None)
        style = {"ha": "center", "va": "top", "transform": axes.get_xaxis_transform()}
        axes.text(float(times.mean()), 0.97, LABELS[motion], **style)
        start = float(times[-1]) + 0.01
    axes.axvline(start / 2, color=plots.GREY, linewidth=1)
    title = f"Torque of joint {JOINT + 1} along two trajectories that were never trained"
    axes.set(title=title, xlabel="time [s]", ylabel="torque [N m]", xlim=(0, start))
    axes.legend(loc="lower left", ncols=4, fontsize=8)
