"""The networks of the runtime study: what trains them, and at which budgets trustgp is fitted to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from ..baselines import cnn, mlp, train
from ..likelihoods import Classification, Regression
from ..tangents import Sketch
from .runtime_networks import detector, named, resnet18
from .runtime_rows import TEXTURES, CaseRows, Counts, arm, rectangles, small_images

DROPOUT = 0.1
SIDE, QUERIES = 160, 16  # of the detector's pictures, and its queries
Budgets = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained: AdamW, one cycle.

    Args:
        counts: Rows.
        steps: Of its training.
        batch: Rows of a step.
        rate: The highest learning rate.
    """

    counts: Counts
    steps: int
    batch: int
    rate: float


@dataclass(frozen=True)
class Kind:
    """A network of the study, before it is trained.

    Args:
        name: As printed.
        shape: In words.
        rows: Makes rows from counts and a seed.
        network: Makes a network with fresh weights from a seed.
        classes: Whether its targets are classes; else it is a regression.
        recipe: How it is trained.
        members: Whether an ensemble of it is trained, not only timed.
        unbounded: Options of `trustgp.fit`, without a budget.
        budgets: Options of `trustgp.fit` by name, from quality to small, given a network; "compress":
            those of `trustgp.compress`, where the fitted model is made smaller.
    """

    name: str
    shape: str
    rows: Callable[[Counts, int], CaseRows]
    network: Callable[[int], nn.Module]
    classes: bool
    recipe: Recipe
    members: bool
    unbounded: dict[str, Any]
    budgets: Callable[[nn.Module], Budgets]

    @property
    def likelihood(self) -> Any:
        """What its targets are."""
        return Classification() if self.classes else Regression()

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """That it is trained with."""
        return cross_entropy if self.classes else mse_loss

    def trained(self, rows: CaseRows, *, seed: int, device: str) -> nn.Module:
        """The network with weights of this seed, trained, in eval mode."""
        recipe = self.recipe
        return train(
            self.network(seed),
            *rows.train,
            epochs=max(1, round(recipe.steps * recipe.batch / len(rows.train[0]))),
            batch_size=recipe.batch,
            learning_rate=recipe.rate,
            loss=self.loss,
            seed=seed,
            device=device,
            record=False,  # not every layer here can be recorded
        )

    def words(self) -> str:
        """For the protocol."""
        recipe, counts = self.recipe, self.recipe.counts
        return (
            f"{self.name}: {self.shape}; trained for about {recipe.steps} steps of {recipe.batch} on "
            f"{counts.train} rows, error bars fitted on {counts.fitted} of them, {counts.held} each to "
            "validate, to test, and new."
        )


def _mlp(_: nn.Module) -> Budgets:
    small = {"outputs": "pseudo", "witness": None}
    return {
        "large": {"compress": {"rows": 128, "gate": 64, "witness": 256}},
        "medium": {**small, "compress": {"rows": 128, "gate": 64}},
        "small": {**small, "compress": {"rows": 64, "gate": 32}},
    }


def _cnn(network: nn.Module) -> Budgets:
    last = [name for name, _ in network.named_parameters()][-4:]  # of the two Linear layers
    return {
        "large": {"tangents": Sketch(1024)},
        "medium": {"tangents": Sketch(1024, parameters=last)},
        "small": {"tangents": Sketch(256, parameters="last")},
    }


def _resnet(network: nn.Module) -> Budgets:
    return {
        "large": {"tangents": Sketch(2048, parameters=named(network, "stages.3", "last"))},
        "medium": {"tangents": Sketch(1024, parameters=named(network, "stages.3.1", "last"))},
        "small": {"tangents": Sketch(512, parameters="last")},
    }


def _detr(network: nn.Module) -> Budgets:
    layers = {name.split(".")[4] for name in named(network, "detr.model.decoder.layers")}
    top = f"detr.model.decoder.layers.{max(layers, key=int)}"
    heads = ("detr.class_labels_classifier", "detr.bbox_predictor")
    common = {"outputs": "pseudo", "witness": None}
    return {
        "large": {**common, "tangents": Sketch(1024, parameters=named(network, top, *heads))},
        "medium": {**common, "tangents": Sketch(512, parameters=named(network, top, *heads))},
        "small": {**common, "tangents": Sketch(256, parameters=named(network, *heads))},
    }


def _kinds() -> dict[str, Kind]:
    """On a CPU."""
    return {
        "MLP": Kind(
            "MLP",
            "21-5x200-7 with ReLU, 166,607 parameters",
            arm,
            lambda seed: mlp([21, *[200] * 5, 7], dropout=DROPOUT, seed=seed),
            False,
            Recipe(Counts(6_000, 6_000, 800), 1_000, 256, 3e-3),
            True,
            {},
            _mlp,
        ),
        "ConvNet": Kind(
            "ConvNet",
            "two 5 x 5 convolutions of stride 2 with 32 and 64 channels, a hidden layer of 128, ten classes",
            partial(small_images, colour=False),
            lambda seed: cnn(dropout=DROPOUT, seed=seed),
            True,
            Recipe(Counts(4_000, 1_000, 400), 250, 128, 2e-3),
            True,
            {},
            _cnn,
        ),
        "ResNet-18": Kind(
            "ResNet-18",
            "ResNet-18's shape with a stem for 3 x 32 x 32 images, 11 million parameters, ten classes",
            partial(small_images, colour=True),
            lambda seed: resnet18(10, dropout=DROPOUT, seed=seed),
            True,
            Recipe(Counts(1_536, 256, 128), 48, 32, 2e-3),
            False,
            {},
            _resnet,
        ),
        "DETR": Kind(
            "DETR",
            f"a backbone of ResNet-18's shape, three layers of 256 in encoder and decoder, {QUERIES} "
            f"queries, 3 x {SIDE} x {SIDE} pictures, 17 million parameters",
            partial(rectangles, side=SIDE, queries=QUERIES),
            lambda seed: detector(classes=len(TEXTURES), queries=QUERIES, seed=seed),
            False,
            Recipe(Counts(768, 256, 128), 48, 16, 3e-4),
            False,
            {"outputs": "pseudo", "tangents": Sketch(4096), "witness": None},
            _detr,
        ),
    }


LONGER = {  # where a GPU does the work
    "MLP": Recipe(Counts(8_000, 8_000, 1_000), 2_000, 256, 3e-3),
    "ConvNet": Recipe(Counts(10_000, 2_000, 500), 600, 128, 2e-3),
    "ResNet-18": Recipe(Counts(10_000, 512, 256), 300, 128, 2e-3),
    "DETR": Recipe(Counts(2_048, 512, 256), 200, 64, 3e-4),
}


def kinds(*, quick: bool, device: str) -> dict[str, Kind]:
    """The networks by name; `quick`: tiny ones of the same build."""
    found = _kinds()
    if not quick:
        longer = LONGER if device.startswith("cuda") else {}
        return {name: replace(kind, recipe=longer.get(name, kind.recipe)) for name, kind in found.items()}
    tiny = Recipe(Counts(160, 120, 40), 6, 32, 1e-3)
    networks: dict[str, Callable[[int], nn.Module]] = {
        "MLP": lambda seed: mlp([21, 12, 12, 7], dropout=DROPOUT, seed=seed),
        "ConvNet": lambda seed: cnn(channels=(3, 4), hidden=8, dropout=DROPOUT, seed=seed),
        "ResNet-18": lambda seed: resnet18(10, width=2, dropout=DROPOUT, seed=seed),
        "DETR": lambda seed: detector(
            classes=len(TEXTURES), queries=5, width=4, hidden=16, layers=2, heads=2, seed=seed
        ),
    }
    small = {name: replace(kind, recipe=tiny, network=networks[name]) for name, kind in found.items()}
    small["DETR"] = replace(small["DETR"], rows=partial(rectangles, side=64, queries=5))
    return {name: replace(kind, shape=f"tiny, in place of {kind.shape}") for name, kind in small.items()}
