"""`trustgp study classification`: CNNs, their probabilities, and the detection of novel images."""

from functools import partial
from typing import Any

from torch.nn.functional import cross_entropy

from trustgp.metrics import class_nll

from ...core.cases import Case, measure_costs, read_tests
from ...core.dropout import best_rate, try_rates
from ...core.grid import Grid, run_parallel
from ...core.recipes import MEMBERS, NetworkRecipe
from ...core.result import Result, Setting, make_result, prose
from ...datasets import letters
from ...peers import CLASS_METHODS, Bundle, DropoutClassifier, cnn, fit_methods
from ...peers.novelty import NEIGHBOURS, NOVELTY, Known, NoveltyPeer
from ...peers.registry import Fitted
from ...peers.size import shipped_bytes
from . import pairs
from .pairs import NAMES, ImageTraining, make_images
from .scores import DECLARED, SCORES, score_method
from .tables import AXES, summarise

FIRST = (0.1, 0.2, 0.3)  # rates of dropout with which the search begins
SAMPLES = 20
SLOW = ("SWAG", "trustgp paper form")  # not in a quick run
TITLE = "Are the probabilities of a classifier right, and does it notice images of another kind?"


def cnn_recipe(
    channels: tuple[int, ...], hidden: int, epochs: int, *, classes: int = 10, **options: Any
) -> NetworkRecipe:
    """Recipe of a convolutional network, see `trustgp_experiments.peers.cnn`."""
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
    network = setting.sized(FULL, QUICK)().words()
    rows = {trained: parts[0]["sizes"] for (trained,), parts in grid.parts.items()}
    by = {score: [m for m in DECLARED if DECLARED[m] == score] for score in dict.fromkeys(DECLARED.values())}
    tried = {name: ", ".join(f"{rate}: {loss:.4f}" for rate, loss in rates[name].items()) for name in rates}
    values = {
        "made": any(part["made"] for parts in grid.parts.values() for part in parts),
        "chosen": "; ".join(f"{NAMES[n]} {best_rate(rates[n]):g} ({tried[n]})" for n in rates),
        "declared": "; ".join(f"by {SCORES[score]}: {', '.join(methods)}" for score, methods in by.items()),
    }
    constants = {"letters": letters, "members": MEMBERS, "neighbours": NEIGHBOURS}
    protocol = prose(__name__, setting=setting, network=network, **values, **constants)
    numbers = {"runs": grid.runs(), "costs": costs, "dropout": rates}
    origin = {"network": network, "rows": rows}
    return make_result(setting, "classification", TITLE, protocol, numbers, summarise, **origin)


def one_training(setting: Setting, trained: str, seed: int, only: str | None = None) -> dict[str, Any]:
    """Scores and costs of every method for one training, on all test sets or on the one named `only`."""
    case, training = make_images(trained, seed=seed, quick=setting.quick), ImageTraining.of(trained)
    bundle = train_bundle(setting, case, training, seed, dropout_rate(setting, trained))
    names = [method.name for method in CLASS_METHODS if not (setting.quick and method.name in SLOW)]
    fitted = (*fit_methods(bundle, names, methods=CLASS_METHODS), *fit_novelty(bundle))
    methods = {one.name: score_method(one, case, setting.device, only=only) for one in fitted}
    held_out = training.held_out(seed)
    return {"sizes": case.sizes, "made": case.made, "held_out": held_out, "methods": methods}


def fit_novelty(bundle: Bundle) -> list[Fitted]:
    """Novelty peers, whose `predict` is their score; the time of each includes the features of all rows."""

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
    """Validation NLL by dropout rate of the network of seed 0 at its best temperature, searched once."""

    def search() -> dict[str, float]:
        case = make_images(trained, seed=0, quick=setting.quick)
        recipe, rows, validation = _placed(setting, case, ImageTraining.of(trained))

        def loss(rate: float) -> float:
            network = recipe.train(rows, seed=0, dropout=rate, **setting.place)
            peer = DropoutClassifier.fit(network, validation, samples=SAMPLES, seed=0)
            return float(class_nll(peer.predict(validation[0]).probabilities, validation[1]).mean())

        few = {"first": FIRST[:2], "rates": FIRST[:2]}
        return try_rates(loss, **(few if setting.quick else {"first": FIRST}))

    return setting.once(f"dropout-{trained}", search)


def _placed(setting: Setting, case: Case, training: ImageTraining) -> tuple[NetworkRecipe, Any, Any]:
    """Recipe for the number of classes, and training and validation rows on the device."""
    recipe = setting.sized(FULL, QUICK)(classes=training.classes)
    parts = (case.train, case.validation)
    rows, validation = ((inputs.to(setting.device), labels.to(setting.device)) for inputs, labels in parts)
    return recipe, rows, validation
