"""`trustgp study classification`: CNNs, their probabilities, and whether foreign images are told."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn.functional import cross_entropy

from trustgp import plots
from trustgp.metrics import class_nll

from ...core.cases import IN_DOMAIN, OURS, Case, costs_table, read_tests
from ...core.grid import Grid
from ...core.recipes import MEMBERS, NetworkRecipe
from ...core.result import Figure, Result, Setting, provenance
from ...peers import CLASS_METHODS, Bundle, DropoutClassifier, cnn, fit_methods
from .scores import (
    AXES,
    DEGREES,
    NAMES,
    NOISES,
    TRAINED,
    VALIDATION,
    class_findings,
    class_tables,
    foreign_to,
    make_images,
    score_method,
)

Runs = Mapping[str, Sequence[dict[str, Any]]]  # by what trained, the part of each seed
Curves = Mapping[str, Mapping[str, Any]]  # of one seed, by method: what was kept to draw, by test set
RATES = (0.1, 0.3)  # of dropout; the better on the validation images is taken
TITLE = "Are the probabilities of a classifier right, and does it notice images of another kind?"
SHOWN = (IN_DOMAIN, "rotated 45", "noisy 0.2")  # whose reliability is drawn


def cnn_recipe(channels: tuple[int, ...], hidden: int, epochs: int, **options: Any) -> NetworkRecipe:
    """Of a convolutional network, see `trustgp_experiments.peers.cnn`."""
    make = partial(cnn, channels=channels, hidden=hidden)
    size = sum(parameter.numel() for parameter in make(seed=0).parameters())
    shape = (
        f"convolutions 5 x 5 of stride 2 with {'-'.join(map(str, channels))} channels, a hidden layer of "
        f"{hidden}, ReLU ({size:,} parameters)"
    )
    ending = ", cross entropy, no augmentation"
    return NetworkRecipe(make, shape, epochs, loss=cross_entropy, ending=ending, **options)


FULL = cnn_recipe((32, 64), 128, 10, batch_size=256, learning_rate=2e-3)
QUICK = cnn_recipe((4, 6), 12, 4, batch_size=32, learning_rate=1e-2)


def run(setting: Setting) -> Result:
    """Train, fit every method and score it on every set of images, for each training set and seed."""
    grid = Grid.run(setting, one_training, [(name,) for name in TRAINED], axes=AXES, read=read_tests)
    runs = {trained: found for (trained,), found in grid.parts.items()}
    table, costs = costs_table(setting, grid, one_training, TRAINED[:1], COSTS_NOTE, "ms/image")
    network = setting.sized(FULL, QUICK).words()
    rows = {trained: found[0]["sizes"] for trained, found in runs.items()}
    return Result(
        study="classification",
        title=TITLE,
        protocol=_protocol(setting, runs, network),
        tables=class_tables(grid, table),
        figures=_figures(setting, runs),
        findings=class_findings(grid, costs),
        numbers={"runs": grid.runs()},
        provenance=provenance(setting, "classification", network=network, rows=rows),
    )


def one_training(setting: Setting, trained: str, seed: int, only: str | None = None) -> dict[str, Any]:
    """Every method on one training set, on all test images or those of one name: scores, curves and costs."""
    case = make_images(trained, seed=seed, quick=setting.quick)
    bundle, rate = train_bundle(setting, case, seed)
    tests = case.tests if only is None else {only: case.tests[only]}
    methods = {
        fitted.name: score_method(fitted, tests, foreign_to(trained), setting.device)
        for fitted in fit_methods(bundle, methods=CLASS_METHODS)
    }
    return {"sizes": case.sizes, "made": case.made, "dropout": rate, "methods": methods}


def train_bundle(setting: Setting, case: Case, seed: int) -> tuple[Bundle, float]:
    """All networks of one training set, whose images go to the device once, and the rate of dropout."""
    recipe, device, place = setting.sized(FULL, QUICK), setting.device, setting.place
    rows, held = ((inputs.to(device), labels.to(device)) for inputs, labels in (case.train, case.validation))
    dropping = {rate: recipe.train(rows, seed=100 * seed, dropout=rate, **place) for rate in RATES}

    def loss(rate: float) -> float:
        said = DropoutClassifier.fit(dropping[rate], samples=20, seed=seed).predict(held[0])
        return float(class_nll(said.probabilities, held[1]).mean())

    best = min(RATES, key=loss)
    return recipe.bundle(rows, held, seed=seed, dropping=dropping[best], **place), best


def _figures(setting: Setting, runs: Runs) -> list[Figure]:
    """Of seed 0."""
    methods = {trained: found[0]["methods"] for trained, found in runs.items()}
    curves = {trained: {m: scores["curves"] for m, scores in by.items()} for trained, by in methods.items()}
    first, out = curves[TRAINED[0]], setting.out
    known = next(iter(first.values()))
    draw_reliability(first, [test for test in SHOWN if test in known], out / "reliability.png")
    draw_histograms(curves, "entropy", "entropy, nats", out / "entropy.png")
    draw_histograms(curves, "variance", "variance of the logits", out / "variance.png")
    draw_risk(curves, out / "risk_coverage.png")
    return [
        Figure("entropy.png", "Entropy of familiar and foreign images", ENTROPY_CAPTION),
        Figure("variance.png", "Variance of the logits on the same images", VARIANCE_CAPTION),
        Figure("reliability.png", f"Reliability, trained on {NAMES[TRAINED[0]]}", RELIABILITY_CAPTION),
        Figure("risk_coverage.png", "What is wrong among the images that are kept", RISK_CAPTION),
    ]


def draw_reliability(curves: Curves, tests: Sequence[str], path: Path) -> None:
    """Share of right ones against confidence, a panel for each of these sets of labelled test images."""
    with plots.figure(path, width=3.6 * len(tests) + 0.6, height=3.6) as figure:
        panels = figure.subplots(1, len(tests), squeeze=False, sharey=True)[0]
        for axes, test in zip(panels, tests, strict=True):
            axes.plot([0, 1], [0, 1], color=plots.INK, linewidth=1, linestyle="--")
            for method, style in _styles(curves):
                _, confidence, share = curves[method][test]["reliability"]
                axes.plot(confidence, share, "o-", markersize=3, label=method, **style)
            axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", title=test)
        panels[0].set_ylabel("share of right ones")
        panels[-1].legend(fontsize=7)


def draw_histograms(trainings: Mapping[str, Curves], score: str, label: str, path: Path) -> None:
    """Histograms of a score on familiar and foreign images, by what trained, for methods that have it."""
    trained, first = next(iter(trainings.items()))
    methods = [method for method in first if score in first[method][foreign_to(trained)]]
    with plots.figure(path, width=2.1 * len(methods) + 0.8, height=2.1 * len(trainings) + 0.5) as figure:
        grid = figure.subplots(len(trainings), len(methods), squeeze=False, sharey="row")
        for row, (trained, curves) in zip(grid, trainings.items(), strict=True):
            sides = {"in": (trained, plots.BLUE), "out": (foreign_to(trained), plots.ORANGE)}
            for axes, method in zip(row, methods, strict=True):
                bars = curves[method][foreign_to(trained)][score]
                for side, (name, colour) in sides.items():
                    style = {"fill": True, "alpha": 0.6, "color": colour, "label": NAMES[name]}
                    axes.stairs(bars[side], bars["edges"], **style)
                if score != "entropy":
                    axes.set_xscale("log")
                    axes.tick_params(axis="x", which="minor", labelbottom=False)
                axes.set_title(method, fontsize=8)
            row[0].set_ylabel(f"trained on {NAMES[trained]}\nshare of images")
            row[-1].legend(fontsize=7)
        for axes in grid[-1]:
            axes.set_xlabel(label)


def draw_risk(trainings: Mapping[str, Curves], path: Path) -> None:
    """Share of wrong ones among the images kept, familiar and foreign together; by what trained."""
    with plots.figure(path, width=4.4 * len(trainings) + 0.6, height=3.6) as figure:
        panels = figure.subplots(1, len(trainings), squeeze=False)[0]
        for axes, (trained, curves) in zip(panels, trainings.items(), strict=True):
            foreign = foreign_to(trained)
            for method, style in _styles(curves):
                score, best = min(curves[method][foreign].items(), key=lambda entry: entry[1]["area"])
                kept = np.linspace(0, 1, len(best["risk"]))
                axes.plot(kept, best["risk"], label=f"{method}, {score}", **style)
            axes.set(xlim=(0, 1), xlabel="share of images kept, the most familiar first")
            axes.set_title(f"{NAMES[trained]} and {NAMES[foreign]} mixed")
            axes.legend(fontsize=6.5)
        panels[0].set_ylabel("share of them wrong or foreign")


def _styles(curves: Curves) -> Iterator[tuple[str, dict[str, Any]]]:
    """Methods and how their curve is drawn; ours last, on top."""
    others = [method for method in curves if method != OURS]
    colours = [colour for colour in plots.PALETTE if colour != plots.BLUE]
    for method, colour in zip(others, colours, strict=False):
        yield method, {"color": colour, "linewidth": 1.1}
    if OURS in curves:
        yield OURS, {"color": plots.BLUE, "linewidth": 2.2}


def _protocol(setting: Setting, runs: Runs, network: str) -> list[str]:
    made = any(run["made"] for found in runs.values() for run in found)
    chosen = {NAMES[trained]: [run["dropout"] for run in found] for trained, found in runs.items()}
    rates = ", ".join(f"{name} {' '.join(f'{rate:g}' for rate in each)}" for name, each in chosen.items())
    stand_ins = "THE IMAGES ARE GENERATED STAND-INS, for the data is not here. " if made else ""
    return [
        f"{stand_ins}Fashion-MNIST and MNIST, 28 x 28 grey images of ten classes. {VALIDATION:,} of the "
        "60,000 training images, at random, are held out: no network sees them, and every method may tune on "
        "them. All 10,000 test images are scored. Pixels are scaled by the mean and standard deviation of "
        "the training pixels.",
        "Trained on Fashion-MNIST, tested on its test images; on the same turned by "
        f"{', '.join(map(str, DEGREES))} degrees about their centre, and with Gaussian noise of "
        f"{', '.join(map(str, NOISES))} on pixels from 0 to 1; on MNIST; and on images of uniform noise. "
        "Trained on MNIST, tested on its test images and on Fashion-MNIST.",
        f"Network: {network}. One such network serves every method but the ensemble "
        f"({MEMBERS} of them, from other starts) and MC-dropout (one with dropout after every activation; of "
        f"the rates {' and '.join(map(str, RATES))} the one of lower validation NLL, seed by seed: {rates}).",
        "Temperature scaling fits one temperature to the validation images. The two Laplace methods are "
        "laplace-torch's KFAC of all training images, linearised, with probit probabilities; their prior "
        "precision is the one of the lowest validation NLL on a grid of 17 around the evidence's. trustgp is "
        "as it comes: `Classification()`, calibrated on the validation images.",
        "NLL in nats, ECE over 15 bins of equal width, Brier from 0 to 2; AURC is the mean error over all "
        "shares of images kept, the most probable first. AUROC and FPR95 tell the familiar test images from "
        "foreign ones: by the entropy of the probabilities; by the variance of the logits (over members, "
        "masks or weights, the mean over classes; for trustgp its latent variance, `p.score`); and by the "
        "mutual information of class and member.",
        f"{setting.seeds} seeds: a seed decides which images validate, the networks, the noise and the fits. "
        "Cells are mean ± standard deviation over seeds. Fit seconds do not hold the training of networks; "
        "times were taken with one process on the machine.",
    ]


COSTS_NOTE = (
    "Fashion-MNIST, seed 0, one process: fit on all training images, predict the test images in one call."
)
ENTROPY_CAPTION = (
    "Seed 0. Blue: test images like those that trained. Orange: images of the other set, which a network can "
    "only get wrong. The less they overlap, the better foreign images are told."
)
VARIANCE_CAPTION = "The same for the variance of the logits, on a logarithmic axis, where a method knows one."
RELIABILITY_CAPTION = (
    "Seed 0. On the dashed line, the share of right ones is what the probability of the predicted class "
    "says; below it the method is too sure."
)
RISK_CAPTION = (
    "Seed 0. Familiar and foreign test images mixed, half and half, and sorted by the one of its scores that "
    "serves a method best; foreign ones count as wrong. At the right end everything is kept."
)
