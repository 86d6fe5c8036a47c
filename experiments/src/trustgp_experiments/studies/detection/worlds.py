"""Pictures of the detection study: rendered scenes, and photographs of cells and raccoons."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from trustgp.detection import BoxTargets
from trustgp.detection.picture_pass import VARIANTS, photometric_variants

from ...datasets.scenes import CLASSES, Scenes, load_photographs, scenes
from ...training.detector_network import pixels

FAMILIAR = "familiar"
NOVEL = "novel things"
LATER = "novel things drawn later"
LOOKED_AT = "novel things that choices were made with"
UNTRAINED = (NOVEL, LATER, LOOKED_AT)
DETECTORS = ("scenes", "scenes-1", "scenes-2")  # trained in the same way
SEEDS = {"validation": 10, "test": 20}  # of scenes: the first of each; the detectors were trained on seed 0
TRAINED = 14_000  # pictures of seed 0, the first, on which every one of `DETECTORS` was trained
STARTS = 5  # first pictures of seeds among these


@dataclass(frozen=True)
class PictureSet:
    """Images in the detector's input format, and their objects; training was on the first `known` classes."""

    images: Tensor
    things: list[BoxTargets]
    known: int

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class World:
    """The pictures of one detector."""

    name: str
    detector: tuple[str, ...]  # names of the weights: its own, and of the other members of an ensemble
    classes: tuple[str, ...]  # names of its classes
    fit: PictureSet  # among its training pictures
    validation: PictureSet
    tests: dict[str, PictureSet]  # the others are compared with `FAMILIAR`

    def photometric_variants(self, count: int) -> PictureSet:
        """Photometric variants of the first validation pictures, which calibrate every method."""
        changed = [photometric_variants(image[None]) for image in self.validation.images[:count]]
        things = [one for one in self.validation.things[:count] for _ in range(VARIANTS)]
        images = torch.cat([one for each in changed for one in each])
        return PictureSet(images, things, self.validation.known)


def make_scenes(*, seed: int, fitted: int, validated: int, tested: int, jobs: int = 1) -> World:
    """Rendered world: many pictures in carry style to fit on, some in carry, flight and novel styles to test.
    Each seed has its own pictures and tests another detector; the others are members of its ensemble."""
    carry = {"fit": (fitted, "carry", 0, first_fitted(seed, fitted))}
    carry["validation"] = (validated, "carry", SEEDS["validation"] + seed, 0)
    styles = {FAMILIAR: "carry", "flight": "flight", NOVEL: "unknown", LATER: "later", LOOKED_AT: "novel"}
    tests = {name: (tested, style, SEEDS["test"] + seed, 0) for name, style in styles.items()}
    drawn = {name: _labelled(one, len(CLASSES)) for name, one in _rendered({**carry, **tests}, jobs).items()}
    turn = seed % len(DETECTORS)
    own = drawn.pop("fit"), drawn.pop("validation")
    return World("scenes", DETECTORS[turn:] + DETECTORS[:turn], CLASSES, *own, tests=drawn)


def first_fitted(seed: int, fitted: int) -> int:
    """Index of the first picture to which the error bar of a seed is fitted; all were training pictures."""
    return seed % STARTS * (TRAINED - fitted) // (STARTS - 1)


Request = tuple[int, str, int, int]  # pictures, style, seed, and number of the first


def _rendered(requests: dict[str, Request], jobs: int) -> dict[str, Scenes]:
    if jobs == 1:
        return {name: _render(request) for name, request in requests.items()}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return dict(zip(requests, pool.map(_render, requests.values()), strict=True))


def _render(request: Request) -> Scenes:
    n, style, seed, first = request
    return scenes(n, style, seed=seed, first=first)


def make_cells() -> World:
    """World of photographs: BCCD with its own split, and all raccoons."""
    parts = [load_photographs("bccd", part) for part in ("train", "val", "test")]
    fit, validation, test = (_labelled(part, len(part.kinds)) for part in parts)
    tests = {FAMILIAR: test, "raccoons": _labelled(load_photographs("raccoon", "all"), 0)}
    return World("cells", ("cells",), parts[0].kinds, fit, validation, tests)


def _labelled(source: Any, known: int) -> PictureSet:
    """Picture set of `Scenes` or `Photographs`; the detector was trained on the first `known` classes."""
    return PictureSet(pixels(source.images), list(map(BoxTargets, source.boxes, source.labels)), known)


def counted(pictures: PictureSet, names: Sequence[str]) -> dict[str, int]:
    """Numbers of pictures, and of objects by class."""
    labels = [int(k) for one in pictures.things for k in one.labels]
    kinds = {name: labels.count(i) for i, name in enumerate(names)} if pictures.known else {}
    return {"pictures": len(pictures), "things": len(labels), **kinds}
