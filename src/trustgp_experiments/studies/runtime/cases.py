"""The networks of the runtime study: what trains them, and at which budgets trustgp is fitted to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from trustgp.likelihoods import Classification, Regression
from trustgp.tangents import Sketch

from ...peers import cnn, mlp, train
from .networks import named, resnet18, small_detr
from .rows import TEXTURES, CaseRows, CaseSize, arm, rectangles, small_images

DROPOUT = 0.1
SIDE, QUERIES = 160, 16  # of the DETR's pictures, and its queries
Budgets = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """A network of the study, before it is trained.

    Args:
        name: As printed.
        shape: In words.
        rows: Makes rows of a size from a seed.
        network: Makes a network with fresh weights from a seed.
        size: Of its rows and its training; `longer`: where a GPU does the work.
        budgets: Options of `trustgp.fit` by name, from quality to small, given a network; "compress":
            those of `trustgp.compress`, where the fitted model is made smaller.
        tiny: What is different in a quick run.
        classes: Whether its targets are classes; else it is a regression.
        members: Whether an ensemble of it is trained, not only timed.
        unbounded: Options of `trustgp.fit`, without a budget.
    """

    name: str
    shape: str
    rows: Callable[[CaseSize, int], CaseRows]
    network: Callable[[int], nn.Module]
    size: CaseSize
    longer: CaseSize
    budgets: Callable[[nn.Module], Budgets]
    tiny: dict[str, Any]
    classes: bool = False
    members: bool = False
    unbounded: dict[str, Any] = field(default_factory=dict)

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
        size = self.size
        return train(
            self.network(seed),
            *rows.train,
            epochs=max(1, round(size.steps * size.batch / len(rows.train[0]))),
            batch_size=size.batch,
            learning_rate=size.rate,
            loss=self.loss,
            seed=seed,
            device=device,
            record=False,  # not every layer here can be recorded
        )

    def words(self) -> str:
        """For the protocol."""
        size = self.size
        return (
            f"{self.name}: {self.shape}; trained for about {size.steps} steps of {size.batch} on "
            f"{size.train} rows, error bars fitted on {size.fitted} of them, {size.held} each to "
            "validate, to test, and new."
        )


def _mlp_budgets(_: nn.Module) -> Budgets:
    small = {"outputs": "pseudo", "witness": None}
    return {
        "large": {"compress": {"rows": 128, "gate": 64, "witness": 256}},
        "medium": {**small, "compress": {"rows": 128, "gate": 64}},
        "small": {**small, "compress": {"rows": 64, "gate": 32}},
    }


def _cnn_budgets(network: nn.Module) -> Budgets:
    last = [name for name, _ in network.named_parameters()][-4:]  # of the two Linear layers
    return _sketches(Sketch(1024), Sketch(1024, parameters=last), Sketch(256, parameters="last"))


def _resnet_budgets(network: nn.Module) -> Budgets:
    return _sketches(
        Sketch(2048, parameters=named(network, "stages.3", "last")),
        Sketch(1024, parameters=named(network, "stages.3.1", "last")),
        Sketch(512, parameters="last"),
    )


def _detr_budgets(network: nn.Module) -> Budgets:
    layers = {name.split(".")[4] for name in named(network, "detr.model.decoder.layers")}
    heads = named(network, "detr.class_labels_classifier", "detr.bbox_predictor")
    top = named(network, f"detr.model.decoder.layers.{max(layers, key=int)}") + heads
    sketches = (Sketch(1024, parameters=top), Sketch(512, parameters=top), Sketch(256, parameters=heads))
    return _sketches(*sketches, outputs="pseudo", witness=None)


def _sketches(large: Sketch, medium: Sketch, small: Sketch, **more: Any) -> Budgets:
    found = {"large": large, "medium": medium, "small": small}
    return {name: {**more, "tangents": sketch} for name, sketch in found.items()}


KINDS = (
    Kind(
        name="MLP",
        shape="21-5x200-7 with ReLU, 166,607 parameters",
        rows=arm,
        network=lambda seed: mlp([21, *[200] * 5, 7], dropout=DROPOUT, seed=seed),
        size=CaseSize(6_000, 6_000, 800, 1_000, 256, 3e-3),
        longer=CaseSize(8_000, 8_000, 1_000, 2_000, 256, 3e-3),
        budgets=_mlp_budgets,
        tiny={"network": lambda seed: mlp([21, 12, 12, 7], dropout=DROPOUT, seed=seed)},
        members=True,
    ),
    Kind(
        name="ConvNet",
        shape="two 5 x 5 convolutions of stride 2 with 32 and 64 channels, a hidden layer of 128, "
        "ten classes",
        rows=partial(small_images, colour=False),
        network=lambda seed: cnn(dropout=DROPOUT, seed=seed),
        size=CaseSize(4_000, 1_000, 400, 250, 128, 2e-3),
        longer=CaseSize(10_000, 2_000, 500, 600, 128, 2e-3),
        budgets=_cnn_budgets,
        tiny={"network": lambda seed: cnn(channels=(3, 4), hidden=8, dropout=DROPOUT, seed=seed)},
        classes=True,
        members=True,
    ),
    Kind(
        name="ResNet-18",
        shape="ResNet-18's shape with a stem for 3 x 32 x 32 images, 11 million parameters, ten classes",
        rows=partial(small_images, colour=True),
        network=lambda seed: resnet18(10, dropout=DROPOUT, seed=seed),
        size=CaseSize(1_536, 256, 128, 48, 32, 2e-3),
        longer=CaseSize(10_000, 512, 256, 300, 128, 2e-3),
        budgets=_resnet_budgets,
        tiny={"network": lambda seed: resnet18(10, width=2, dropout=DROPOUT, seed=seed)},
        classes=True,
    ),
    Kind(
        name="DETR",
        shape=f"a backbone of ResNet-18's shape, three layers of 256 in encoder and decoder, {QUERIES} "
        f"queries, 3 x {SIDE} x {SIDE} pictures, 17 million parameters",
        rows=partial(rectangles, side=SIDE, queries=QUERIES),
        network=lambda seed: small_detr(classes=len(TEXTURES), queries=QUERIES, seed=seed),
        size=CaseSize(768, 256, 128, 48, 16, 3e-4),
        longer=CaseSize(2_048, 512, 256, 200, 64, 3e-4),
        budgets=_detr_budgets,
        tiny={
            "rows": partial(rectangles, side=64, queries=5),
            "network": lambda seed: small_detr(
                classes=len(TEXTURES), queries=5, width=4, hidden=16, layers=2, heads=2, seed=seed
            ),
        },
        unbounded={"outputs": "pseudo", "tangents": Sketch(4096), "witness": None},
    ),
)


def kinds(*, quick: bool, device: str) -> dict[str, Kind]:
    """The networks by name; `quick`: tiny ones of the same build."""
    if quick:
        tiny = CaseSize(160, 120, 40)
        found = [replace(k, size=tiny, shape=f"tiny, in place of {k.shape}", **k.tiny) for k in KINDS]
    else:
        found = [replace(k, size=k.longer if device.startswith("cuda") else k.size) for k in KINDS]
    return {kind.name: kind for kind in found}
