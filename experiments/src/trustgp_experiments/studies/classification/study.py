"""`trustgp study classification`: CNNs, their probabilities, and the detection of novel images."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch.nn.functional import cross_entropy

from trustgp.metrics import class_nll

from ...core.cases import Case, measure_costs, read_tests
from ...core.dropout import best_rate, try_rates
from ...core.figures import draw_dots
from ...core.grid import Grid, run_parallel
from ...core.recipes import MEMBERS, NetworkRecipe
from ...core.result import Figure, Result, Setting, make_result
from ...datasets.letters import FONTS, LETTERS, OMITTED
from ...peers import CLASS_METHODS, Bundle, DropoutClassifier, cnn, fit_methods
from ...peers.novelty import NEIGHBOURS, NOVELTY, Known, NoveltyPeer
from ...peers.registry import Fitted
from ...peers.size import shipped_bytes
from . import pairs
from .pairs import DEGREES, NAMES, NOISES, NOVEL, SETS, VALIDATION, ImageTraining, make_images
from .scores import DECLARED, SCORES, score_method
from .tables import AXES, measured, summarise

FIRST = (0.1, 0.2, 0.3)  # rates of dropout with which the search begins
SAMPLES = 20
SLOW = ("SWAG",)  # not in a quick run
TITLE = "Are the probabilities of a classifier right, and does it notice images of another kind?"
CAPTION = "AUROC by the one score declared for each method, mean over seeds, a colour for each pair."


def cnn_recipe(
    channels: tuple[int, ...], hidden: int, epochs: int, *, classes: int = 10, **options: Any
) -> NetworkRecipe:
    """Of a convolutional network, see `trustgp_experiments.peers.cnn`."""
    make = partial(cnn, channels=channels, hidden=hidden, classes=classes)
    size = sum(parameter.numel() for parameter in make(seed=0).parameters())
    shape = (
        f"convolutions 5 x 5 of stride 2 with {'-'.join(map(str, channels))} channels, a hidden layer of "
        f"{hidden}, ReLU ({size:,} parameters)"
    )
    ending = ", cross entropy, no augmentation"
    return NetworkRecipe(make, shape, epochs, loss=cross_entropy, ending=ending, **options)


FULL = partial(cnn_recipe, (32, 64), 128, 10, batch_size=256, learning_rate=2e-3)
QUICK = partial(cnn_recipe, (4, 6), 12, 3, batch_size=40, learning_rate=1e-2)


def run(setting: Setting) -> Result:
    """Train, fit every method and score it on every set of images, for each training and seed."""
    cases = [(name,) for name in setting.sized(pairs.TRAINED, pairs.QUICK_TRAINED)]
    run_parallel(setting, dropout_rate, cases)
    rates = {name: dropout_rate(setting, name) for (name,) in cases}
    grid = Grid.run(setting, one_training, cases, axes=AXES, read=read_tests)
    costs = measure_costs(setting, grid, one_training, cases[0])
    kinds = {"nothing was chosen with these": pairs.new_pairs(), "looked at": pairs.looked_at()}
    panels = {t: {pairs.pair_name(p): p for p in measured(grid, some)} for t, some in kinds.items()}
    draw_dots(setting.out / "novelty.png", grid, panels, "auroc", symlog=False)
    figures = [Figure("novelty.png", "Novel images detected, by method and pair", CAPTION)]
    network = setting.sized(FULL, QUICK)().words()
    rows = {trained: parts[0]["sizes"] for (trained,), parts in grid.parts.items()}
    protocol = _protocol(setting, grid.parts, rates, network)
    numbers = {"runs": grid.runs(), "costs": costs, "dropout": rates}
    origin, summary = {"network": network, "rows": rows}, summarise(numbers)
    return make_result(setting, "classification", TITLE, protocol, numbers, summary, figures, **origin)


def one_training(setting: Setting, trained: str, seed: int, only: str | None = None) -> dict[str, Any]:
    """Every method on one training, on all test images or those of one name: scores and costs."""
    case, training = make_images(trained, seed=seed, quick=setting.quick), ImageTraining.of(trained)
    bundle = train_bundle(setting, case, training, seed, dropout_rate(setting, trained))
    names = [method.name for method in CLASS_METHODS if not (setting.quick and method.name in SLOW)]
    fitted = (*fit_methods(bundle, names, methods=CLASS_METHODS), *fit_novelty(bundle))
    methods = {one.name: score_method(one, case, setting.device, only=only) for one in fitted}
    held_out = training.held_out(seed)
    return {"sizes": case.sizes, "made": case.made, "held_out": held_out, "methods": methods}


def fit_novelty(bundle: Bundle) -> list[Fitted]:
    """The novelty peers, whose `predict` is their score; each is timed with the features of all rows."""

    def fit(name: str) -> NoveltyPeer:
        known = bundle.once("known", lambda: Known.by(*bundle.rows))
        return NoveltyPeer(bundle.network, NOVELTY[name](known))

    peers = {name: bundle.timed(partial(fit, name)) for name in NOVELTY}
    return [
        Fitted(name, True, seconds, peer.score, training, shipped_bytes(peer) / 2**20)
        for name, (peer, seconds, training) in peers.items()
    ]


def train_bundle(
    setting: Setting, case: Case, training: ImageTraining, seed: int, rates: dict[str, float]
) -> Bundle:
    """All networks of one training, whose images go to the device once; dropout has the best rate."""
    recipe, rows, validation = _placed(setting, case, training)
    return recipe.bundle(rows, validation, seed=seed, dropout=best_rate(rates), **setting.place)


def dropout_rate(setting: Setting, trained: str) -> dict[str, float]:
    """By rate the validation NLL of the network of seed 0 at its best temperature, searched once."""

    def search() -> dict[str, float]:
        case = make_images(trained, seed=0, quick=setting.quick)
        recipe, rows, validation = _placed(setting, case, ImageTraining.of(trained))

        def loss(rate: float) -> float:
            network = recipe.train(rows, seed=0, dropout=rate, **setting.place)
            peer = DropoutClassifier.fit(network, validation, samples=SAMPLES, seed=0)
            return float(class_nll(peer.predict(validation[0]).probabilities, validation[1]).mean())

        if setting.quick:
            return try_rates(loss, first=FIRST[:2], rates=FIRST[:2])
        return try_rates(loss, first=FIRST)

    return setting.once(f"dropout-{trained}", search)


def _placed(setting: Setting, case: Case, training: ImageTraining) -> tuple[NetworkRecipe, Any, Any]:
    """The recipe for so many classes, and training and validation rows on the device."""
    recipe = setting.sized(FULL, QUICK)(classes=training.classes)
    parts = (case.train, case.validation)
    rows, validation = ((inputs.to(setting.device), labels.to(setting.device)) for inputs, labels in parts)
    return recipe, rows, validation


def _protocol(
    setting: Setting, parts: Mapping[Any, Sequence[Any]], rates: Mapping[str, Any], network: str
) -> list[str]:
    made = any(part["made"] for seeds in parts.values() for part in seeds)
    chosen = "; ".join(f"{NAMES[name]} {_losses(losses)}" for name, losses in rates.items())
    stand_ins = "THE IMAGES ARE GENERATED STAND-INS, for the data is not here. " if made else ""
    by = {score: [m for m in DECLARED if DECLARED[m] == score] for score in dict.fromkeys(DECLARED.values())}
    declared = "; ".join(f"by {SCORES[score]}: {', '.join(methods)}" for score, methods in by.items())
    return [
        f"{stand_ins}{' and '.join(SETS.values())}, 28 x 28 grey images of ten classes. {VALIDATION:,} of "
        "the 60,000 training images, at random, are held out: they train no network, and every method may "
        "tune on them. All 10,000 test images are scored. Pixels are scaled by the mean and standard "
        "deviation of the training pixels.",
        f"Distorted: test images turned by {', '.join(map(str, DEGREES))} degrees about their centre, and "
        f"with Gaussian noise of {', '.join(map(str, NOISES))} on pixels from 0 to 1.",
        f"Novel, and nothing was chosen with it: {NOVEL:,} letters drawn from {len(FONTS)} fonts that come "
        f"with matplotlib ({LETTERS}; left out, for they look like a digit or like another letter: "
        f"{OMITTED}), turned, shifted and of several thicknesses; {NOVEL:,} textures (stripes, checks, "
        "clouds, blobs); and two classes of the same set that are in no training images, others for each "
        "seed, all ten in five seeds. Of that kind something was looked at before: the form of trustgp's "
        "score was chosen, among others, with classes 5 to 9 left out, on training images. Looked at and "
        "reported separately: each set against the other, and uniform noise.",
        f"Network: {network}. One such network serves every method but the ensemble ({MEMBERS} of them, from "
        "other starts) and MC-dropout (one with dropout after every activation, 20 passes). Its rate has the "
        f"lowest validation NLL of seed 0, from a grid that is widened until no end of it wins: {chosen}.",
        "Every peer has a temperature of the largest validation likelihood: ensemble, MC-dropout and SWAG "
        "(the network trained on at a constant rate, the best of three by validation NLL) one for all "
        "members before they are averaged, Laplace one after the probit. The Laplace methods are "
        "laplace-torch's KFAC of all training images, linearised; the prior precision is the one of the "
        "lowest validation NLL on a grid of 17 around the evidence's, or the evidence's. trustgp has its "
        "defaults: `Classification()`, calibrated on the validation images.",
        "Novelty peers read the one network's logits or penultimate features; no novel image was used to fit "
        f"them: k = {NEIGHBOURS} neighbours (Sun et al. 2022, for as many training images), ViM's rank by "
        "the rule of its paper's code, and a ridge on covariances by the likelihood of validation images. "
        "DDU density is DDU's Gaussians on the network as it is, not one trained with spectral "
        "normalisation.",
        f"Each method is judged by one score, declared before the run: {declared}. Of trustgp that is its "
        "default, `p.score`; of a peer with several, the one that was best on average over the pairs "
        "looked at in the run before, in which SWAG was not: it has the ensemble's.",
        "NLL in nats, ECE over 15 bins of equal width, Brier from 0 to 2; AURC is the mean error over all "
        "shares of images kept, the most probable first. AUROC and FPR95 separate the familiar test images "
        "from novel ones; for what is caught at 1 % and 5 % alarms, validation images set the threshold.",
        f"{setting.seeds} seeds: a seed decides which images validate, the classes held out, the networks, "
        "the drawings and the fits. Cells are mean ± standard deviation over seeds; better and worse are by "
        "paired differences whose 95 % interval by Student's t excludes 0, beside the peer that has the best "
        "mean on the same test images. Fit seconds exclude the training of networks, which has its own "
        "column; times were measured with one process on the machine.",
    ]


def _losses(losses: dict[str, float]) -> str:
    each = ", ".join(f"{rate}: {loss:.4f}" for rate, loss in losses.items())
    return f"{best_rate(losses):g} ({each})"
