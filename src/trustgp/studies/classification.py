"""`trustgp study classification`: CNNs, their probabilities, and whether foreign images are told."""

from __future__ import annotations

from typing import Any

from .. import plots
from ..baselines.class_methods import CLASS_METHODS
from ..baselines.methods import fit_methods
from .ahead import work_ahead
from .base import Figure, Result, Setting, provenance
from .classification_figure import draw_histograms, draw_reliability, draw_risk, drawn_tests
from .classification_findings import class_findings
from .classification_networks import FULL, MEMBERS, QUICK, RATES, Recipe, rate_of, train_bundle
from .classification_rows import DEGREES, NAMES, NOISES, TRAINED, VALIDATION, foreign_to, make_images
from .classification_scores import score_method
from .classification_tables import COSTS, class_tables, collect
from .transfer_rows import IN_DOMAIN

TITLE = "Are the probabilities of a classifier right, and does it notice images of another kind?"
SHOWN = ("rotated 45", "noisy 0.2")  # whose reliability is drawn beside that of familiar images


def run(setting: Setting) -> Result:
    """Train, fit every method and score it on every set of images, for each training set and seed."""
    plots.require_matplotlib()
    seeds = range(setting.seeds)
    work_ahead(setting, one_training, [(trained, seed) for trained in TRAINED for seed in seeds])
    runs = {}
    for trained in TRAINED:
        setting.console.print(f"{NAMES[trained]}: {setting.seeds} seeds x {len(CLASS_METHODS)} methods")
        runs[trained] = [one_training(setting, trained, seed) for seed in seeds]
    cells = collect({trained: [run["methods"] for run in found] for trained, found in runs.items()})
    costs = _costs(setting, runs[TRAINED[0]][0]["methods"])
    return Result(
        study="classification",
        title=TITLE,
        protocol=_protocol(setting, runs),
        tables=class_tables(cells, costs),
        figures=_figures(setting, runs),
        findings=class_findings(cells, costs),
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

    def work() -> dict[str, Any]:
        case = make_images(trained, seed=seed, quick=setting.quick)
        show = not setting.console.quiet
        bundle = train_bundle(case, _recipe(setting), seed=seed, device=setting.device, progress=show)
        methods = {
            fitted.name: score_method(fitted, case.tests, foreign_to(trained), setting.device)
            for fitted in fit_methods(bundle, methods=CLASS_METHODS)
        }
        return {
            "sizes": case.sizes,
            "made": case.made,
            "dropout": rate_of(bundle.dropout_network),
            "methods": methods,
        }

    return setting.once(f"{trained}-{seed}", work)


def _costs(setting: Setting, first: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Fit and predict times with the machine to ourselves: parts that share it slow each other down.

    Args:
        setting: Of the study.
        first: The scores of the first training, by method: of one process, they hold the times already.
    """

    def work() -> dict[str, dict[str, float]]:
        case = make_images(TRAINED[0], seed=0, quick=setting.quick)
        near = {IN_DOMAIN: case.tests[IN_DOMAIN]}
        bundle = train_bundle(case, _recipe(setting), seed=0, device=setting.device, progress=False)
        return _times(
            {
                fitted.name: score_method(fitted, near, foreign_to(TRAINED[0]), setting.device)
                for fitted in fit_methods(bundle, methods=CLASS_METHODS)
            }
        )

    return _times(first) if setting.jobs == 1 else setting.once("costs", work)


def _times(scores: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {name: {key: found[key] for key in COSTS} for name, found in scores.items()}


def _figures(setting: Setting, runs: dict[str, list[dict[str, Any]]]) -> list[Figure]:
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


def _recipe(setting: Setting) -> Recipe:
    return QUICK if setting.quick else FULL


def _protocol(setting: Setting, runs: dict[str, list[dict[str, Any]]]) -> list[str]:
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
