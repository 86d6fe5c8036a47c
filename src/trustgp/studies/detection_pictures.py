"""The pictures of the detection study: rendered scenes, and blood cells with raccoons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..datasets.photographs import Photographs, load_photographs
from ..datasets.scenes import CLASSES, Scenes, scenes
from ..detection import Things
from ..metrics.boxes import nearest
from .detection_network import pixels

FAMILIAR = "familiar"
NOVEL = "novel things"
SEEDS = {"validation": 10, "test": 20}  # of scenes: the first of each; the detectors were trained on seed 0


@dataclass(frozen=True)
class Pictures:
    """Images as the detector takes them, and what is in them; `known` says which things it was trained on."""

    images: Tensor
    things: list[Things]
    known: int

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class World:
    """What one detector is studied on.

    Args:
        detector: Names of the weights: its own, and those of the other members of an ensemble.
        classes: Names of what it finds.
        fit, validation: Pictures it was trained on, and others.
        tests: By name; `FAMILIAR` is what the others are told apart from.
    """

    detector: tuple[str, ...]
    classes: tuple[str, ...]
    fit: Pictures
    validation: Pictures
    tests: dict[str, Pictures]


def make_scenes(*, seed: int, quick: bool) -> World:
    """Rendered: carry style to fit on, and carry, flight and novel styles to test.

    Args:
        seed: Which pictures.
        quick: A few.
    """
    many, some = (40, 24) if quick else (5000, 500)
    held, test = SEEDS["validation"] + seed, SEEDS["test"] + seed
    return World(
        detector=("scenes", "scenes-1", "scenes-2"),
        classes=CLASSES,
        fit=_drawn(scenes(many, "carry", seed=0, first=seed * many)),
        validation=_drawn(scenes(some, "carry", seed=held)),
        tests={
            FAMILIAR: _drawn(scenes(some, "carry", seed=test)),
            "flight": _drawn(scenes(some, "flight", seed=test)),
            NOVEL: _drawn(scenes(some, "novel", seed=test)),
        },
    )


def make_cells(*, quick: bool) -> World:
    """BCCD's own split, and all raccoons.

    Args:
        quick: A few.
    """
    most = 24 if quick else None
    parts = [load_photographs("bccd", part) for part in ("train", "val", "test")]
    fit, held, test = (_drawn(part, most) for part in parts)
    strange = _drawn(load_photographs("raccoon", "all"), most, known=False)
    return World(("cells",), parts[0].kinds, fit, held, {FAMILIAR: test, "raccoons": strange})


def _drawn(found: Scenes | Photographs, most: int | None = None, *, known: bool = True) -> Pictures:
    things = [
        Things(boxes, labels) for boxes, labels in zip(found.boxes[:most], found.labels[:most], strict=True)
    ]
    kinds = (len(found.kinds) if isinstance(found, Photographs) else len(CLASSES)) if known else 0
    return Pictures(pixels(found.images[:most]), things, kinds)


def counted(pictures: Pictures, names: Sequence[str]) -> dict[str, int]:
    """How many pictures and things of each kind."""
    labels = [int(k) for one in pictures.things for k in one.labels]
    kinds = {name: labels.count(i) for i, name in enumerate(names)} if pictures.known else {}
    return {"pictures": len(pictures), "things": len(labels), **kinds}


def strange(pictures: Pictures, image: Tensor, boxes: Tensor, overlap: float) -> Tensor:
    """Which detections lie on a thing that the detector was not trained on, bool, [m].

    Args:
        pictures: In which they were found.
        image: Of each detection, [m].
        boxes: In pixels, [m, 4].
        overlap: With that thing, more than with any other, at least.
    """
    found = torch.zeros(len(image), dtype=torch.bool)
    for i, things in enumerate(pictures.things):
        mine = image == i
        if len(things.labels):
            shared, which = nearest(boxes[mine], things.boxes)
            found[mine] = (shared >= overlap) & (things.labels[which] >= pictures.known)
    return found
