"""`trustgp study classification`: CNNs, their probabilities, and whether foreign images are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.nn.functional import cross_entropy

from trustgp.metrics import class_nll

from ...core.cases import COSTS, IN_DOMAIN, Case, costs_table, read_tests
from ...core.grid import Grid
from ...core.recipes import MEMBERS, NetworkRecipe
from ...core.result import Figure, Result, Setting, provenance
from ...peers import DropoutClassifier, cnn
from ...peers.bundle import Bundle
from ...peers.registry import CLASS_METHODS, fit_methods
from .figure import draw_histograms, draw_reliability, draw_risk, drawn_tests
from .findings import class_findings
from .rows import DEGREES, NAMES, NOISES, TRAINED, VALIDATION, foreign_to, make_images
from .scores import score_method
from .tables import AXES, class_tables

Runs = Mapping[str, Sequence[dict[str, Any]]]  # by what trained, the part of each seed
RATES = (0.1, 0.3)  # of dropout; the better on the validation images is taken
TITLE = "Are the probabilities of a classifier right, and does it notice images of another kind?"
SHOWN = ("rotated 45", "noisy 0.2")  # whose reliability is drawn beside that of familiar images


def cnn_recipe(channels: tuple[int, ...], hidden: int, epochs: int, **options: Any) -> NetworkRecipe:
    """Of a convolutional network.

    Args:
        channels, hidden: See `trustgp_experiments.peers.cnn`.
        epochs, options: See `NetworkRecipe`.
    """
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

    def again() -> dict[str, Any]:
        case = make_images(TRAINED[0], seed=0, quick=setting.quick)
        bundle = train_bundle(case, _recipe(setting), seed=0, **setting.place)
        return _scores(setting, bundle, {IN_DOMAIN: case.tests[IN_DOMAIN]}, TRAINED[0])

    names = dict(zip(COSTS, ("fit s", "ms/image"), strict=True))
    table, costs = costs_table(setting, runs[TRAINED[0]][0]["methods"], again, COSTS_NOTE, **names)
    return Result(
        study="classification",
        title=TITLE,
        protocol=_protocol(setting, runs),
        tables=class_tables(grid, table),
        figures=_figures(setting, runs),
        findings=class_findings(grid, costs),
        numbers={"runs": [{"trained": trained, "seeds": found} for trained, found in runs.items()]},
        provenance=provenance(
            setting,
            "classification",
            network=_recipe(setting).words(),
            rows={trained: found[0]["sizes"] for trained, found in runs.items()},
        ),
    )


def one_training(setting: Setting, trained: str, seed: int) -> dict[str, Any]:
    """Every method on one training set: sizes, scores, curves and costs.

    Args:
        setting: Of the study.
        trained, seed: Which images train.
    """
    case = make_images(trained, seed=seed, quick=setting.quick)
    bundle = train_bundle(case, _recipe(setting), seed=seed, **setting.place)
    return {
        "sizes": case.sizes,
        "made": case.made,
        "dropout": rate_of(bundle.dropout_network),
        "methods": _scores(setting, bundle, case.tests, trained),
    }


def train_bundle(case: Case, recipe: NetworkRecipe, *, seed: int, device: str, progress: bool) -> Bundle:
    """All networks of one training set; its images go to the device once.

    Args:
        case: The images.
        recipe, seed, device, progress: See `NetworkRecipe.bundle`.
    """
    rows, held = ((inputs.to(device), labels.to(device)) for inputs, labels in (case.train, case.validation))
    place: dict[str, Any] = {"device": device, "progress": progress}
    dropping = [recipe.train(rows, seed=100 * seed, dropout=rate, **place) for rate in RATES]

    def loss(network: nn.Module) -> float:
        said = DropoutClassifier.fit(network, samples=20, seed=seed).predict(held[0])
        return float(class_nll(said.probabilities, held[1]).mean())

    return recipe.bundle(rows, held, seed=seed, dropout_network=min(dropping, key=loss), **place)


def rate_of(network: nn.Module | None) -> float:
    """The share of units that a dropout network drops."""
    layers = [] if network is None else [one for one in network.modules() if isinstance(one, nn.Dropout)]
    return layers[0].p if layers else 0.0


def _scores(setting: Setting, bundle: Bundle, tests: Any, trained: str) -> dict[str, Any]:
    return {
        fitted.name: score_method(fitted, tests, foreign_to(trained), setting.device)
        for fitted in fit_methods(bundle, methods=CLASS_METHODS)
    }


def _figures(setting: Setting, runs: Runs) -> list[Figure]:
    """Of seed 0."""
    curves = {
        trained: {method: scores["curves"] for method, scores in found[0]["methods"].items()}
        for trained, found in runs.items()
    }
    pairs = {trained: (foreign_to(trained), found) for trained, found in curves.items()}
    first, out = curves[TRAINED[0]], setting.out
    draw_reliability(first, drawn_tests(first, SHOWN), out / "reliability.png")
    draw_histograms(pairs, "entropy", "entropy, nats", out / "entropy.png")
    draw_histograms(pairs, "variance", "variance of the logits", out / "variance.png")
    draw_risk(pairs, out / "risk_coverage.png")
    return [
        Figure("entropy.png", "Entropy of familiar and foreign images", ENTROPY_CAPTION),
        Figure("variance.png", "Variance of the logits on the same images", VARIANCE_CAPTION),
        Figure("reliability.png", f"Reliability, trained on {NAMES[TRAINED[0]]}", RELIABILITY_CAPTION),
        Figure("risk_coverage.png", "What is wrong among the images that are kept", RISK_CAPTION),
    ]


def _recipe(setting: Setting) -> NetworkRecipe:
    return QUICK if setting.quick else FULL


def _protocol(setting: Setting, runs: Runs) -> list[str]:
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
        f"Network: {_recipe(setting).words()}. One such network serves every method but the ensemble "
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
