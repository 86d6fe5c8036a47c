"""The pictures of the detection study: rendered scenes, and blood cells with raccoons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trustgp.detection import Things

from ...datasets.photographs import load_photographs
from ...datasets.scenes import CLASSES, scenes
from ...training.detector_network import pixels

FAMILIAR = "familiar"
NOVEL = "novel things"
SEEDS = {"validation": 10, "test": 20}  # of scenes: the first of each; the detectors were trained on seed 0


@dataclass(frozen=True)
class PictureSet:
    """Images as the detector takes them, and what is in them; `known` says which things it was trained on."""

    images: Tensor
    things: list[Things]
    known: int

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class World:
    """What one detector is studied on."""

    detector: tuple[str, ...]  # names of the weights: its own, and of the other members of an ensemble
    classes: tuple[str, ...]  # names of what it finds
    fit: PictureSet  # it was trained on these
    validation: PictureSet
    tests: dict[str, PictureSet]  # `FAMILIAR` is what the others are told apart from


def make_scenes(*, seed: int, many: int, some: int) -> World:
    """Rendered: many in carry style to fit on, and some in carry, flight and novel styles to test."""

    def drawn(n: int, style: str, **options: int) -> PictureSet:
        return _labelled(scenes(n, style, **options), len(CLASSES))

    styles = {FAMILIAR: "carry", "flight": "flight", NOVEL: "novel"}
    return World(
        detector=("scenes", "scenes-1", "scenes-2"),
        classes=CLASSES,
        fit=drawn(many, "carry", seed=0, first=seed * many),
        validation=drawn(some, "carry", seed=SEEDS["validation"] + seed),
        tests={name: drawn(some, style, seed=SEEDS["test"] + seed) for name, style in styles.items()},
    )


def make_cells(*, quick: bool) -> World:
    """BCCD's own split, and all raccoons."""

    most = 24 if quick else None
    parts = [load_photographs("bccd", part) for part in ("train", "val", "test")]
    fit, held, test = (_labelled(part, len(part.kinds), most) for part in parts)
    raccoons = _labelled(load_photographs("raccoon", "all"), 0, most)
    return World(("cells",), parts[0].kinds, fit, held, {FAMILIAR: test, "raccoons": raccoons})


def _labelled(found: Any, known: int, most: int | None = None) -> PictureSet:
    """Of `Scenes` or `Photographs`; so many of their kinds are known."""
    things = list(map(Things, found.boxes[:most], found.labels[:most]))
    return PictureSet(pixels(found.images[:most]), things, known)


def counted(pictures: PictureSet, names: Sequence[str]) -> dict[str, int]:
    """How many pictures and things of each kind."""
    labels = [int(k) for one in pictures.things for k in one.labels]
    kinds = {name: labels.count(i) for i, name in enumerate(names)} if pictures.known else {}
    return {"pictures": len(pictures), "things": len(labels), **kinds}
