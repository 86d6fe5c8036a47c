"""A user's pictures and targets, checked and read one after another."""

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from .adapter import Detector
from .coco import CocoScenes
from .pictures import LISTS, BoxTargets, Pictures, as_pictures, as_targets, finite_pictures, is_annotations

Size = tuple[int, int]
Part = tuple[Pictures, list[Any]]  # pictures, and BoxTargets or None of each
SOURCES = "(images, targets), a Hugging Face processor's mapping, or a Dataset or DataLoader of them"


@dataclass(frozen=True)
class Scene:
    """A picture and its targets."""

    index: int  # among those that were given
    image: Tensor  # [channels, height, width]
    targets: Any  # BoxTargets; None: foreign pictures without


class SceneStream:
    """Pictures and their targets, read and checked as they come.

    The first picture of a Dataset, or batch of a DataLoader, is read at once, so that an error in it is
    raised before any work; data in memory are checked as a whole. `given` is one of `SOURCES`. Pictures must
    have the `size` (height and width), if it is given. Foreign pictures may come without targets, or have
    targets of classes that the detector lacks.
    """

    def __init__(
        self, given: Any, detector: Detector, *, name: str, size: Size | None = None, foreign: bool = False
    ) -> None:
        if not foreign:
            _check_names(given, detector, name)
        self._given, self._detector, self.name = given, detector, name
        self._size, self._foreign = size, foreign
        parts = self._read(0)
        if (first := next(parts, None)) is None:
            raise ValueError(f"{name} holds no pictures.")
        self.first, self.parts = first, chain([first], parts)  # all pictures, as they come; once
        self.total = self._count(len(first[0]))  # None: unknown before the end

    def scenes(self, start: int = 0) -> Iterator[Scene]:
        """Yield the scenes from index `start` on, only once; a Dataset does not read those before it."""
        jump = start if _is_indexed(self._given) else 0
        parts, index = self._read(jump) if jump else self.parts, jump
        for images, targets in parts:
            for image, one in zip(images, targets, strict=True):
                if index >= start:
                    yield Scene(index, image, one)
                index += 1

    def _count(self, in_memory: int) -> int | None:
        given = self._given
        if isinstance(given.dataset if isinstance(given, DataLoader) else given, IterableDataset):
            return None
        if not isinstance(given, DataLoader):
            return len(given) if _is_indexed(given) else in_memory
        sampler = given.sampler  # it may omit or repeat rows
        if given.batch_size is None or not isinstance(sampler, Sized):
            return None
        return len(given) * given.batch_size if given.drop_last else len(sampler)

    def _read(self, start: int) -> Iterator[Part]:
        given, index, rows = self._given, start, [self._given]
        if _is_indexed(given):
            rows = (given[i] for i in range(start, len(given)))
        elif isinstance(given, DataLoader | IterableDataset):
            rows = given
        for row in rows:
            part = self._checked(*_pair(row, self.name, self._foreign), index)
            index += len(part[0])
            if len(part[0]):
                yield part

    def _checked(self, images: Any, targets: Any, first: int) -> Part:
        detector, name = self._detector, self.name
        try:
            pictures = as_pictures(images, channels=detector.channels, size=self._size)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        if len(pictures) and not bool((finite := finite_pictures(pictures)).all()):
            bad = [first + i for i in (~finite).nonzero().flatten().tolist()]
            raise ValueError(f"{name}: {len(bad)} pictures hold NaN or infinity, the first is {bad[0]}.")
        if targets is None:
            return pictures, [None] * len(pictures)
        # those of a single picture need no list around them
        several = isinstance(targets, LISTS) and not (len(pictures) == 1 and is_annotations(targets))
        each, num_labels = list(targets) if several else [targets], None if self._foreign else detector.labels
        if len(each) != len(pictures):
            raise ValueError(f"{name} has {len(pictures)} pictures, but targets of {len(each)}.")
        for i, one in enumerate(each):
            height, width = (int(side) for side in pictures[i].shape[-2:])
            each[i] = as_targets(one, (height, width), num_labels, f"{name}, picture {first + i}")
        return pictures, each


def as_scenes(given: Any, detector: Detector, **options: Any) -> tuple[Pictures, list[BoxTargets] | None]:
    """All pictures and their targets at once (None: no targets were given); see `SceneStream`."""
    parts = list(SceneStream(given, detector, **options).parts)
    pictures = parts[0][0]
    if len(parts) > 1:
        pictures = as_pictures([image for images, _ in parts for image in images], channels=detector.channels)
    targets: list[Any] = [one for _, each in parts for one in each]
    return pictures, None if targets[0] is None else targets


def _is_indexed(given: Any) -> bool:
    return isinstance(given, Dataset) and not isinstance(given, IterableDataset)


def _pair(given: Any, name: str, foreign: bool) -> tuple[Any, Any]:
    """Images and targets (None: none) of a row of a Dataset, a batch of a DataLoader, or all data."""
    if isinstance(given, Mapping) and "labels" in given:
        return given, given["labels"]
    tensors = isinstance(given, LISTS) and all(isinstance(one, Tensor) and one.ndim > 2 for one in given)
    if foreign and (isinstance(given, Tensor | Mapping) or tensors):  # a TensorDataset has rows of one
        return given[0] if tensors and len(given) == 1 else given, None
    if not isinstance(given, LISTS) or len(given) < 2:
        raise ValueError(f"{name} has a {type(given).__name__}; {SOURCES} is needed.")
    return given[0], given[1]


def _check_names(given: Any, detector: Detector, name: str) -> None:
    """Raise ValueError, before reading a picture, unless a COCO file's classes are the detector's."""
    while isinstance(given, (DataLoader, Subset)):
        given = given.dataset
    if not isinstance(given, CocoScenes):
        return
    config = getattr(detector.network, "config", None)
    names = {int(key): str(label) for key, label in (getattr(config, "id2label", None) or {}).items()}
    classes = {label: number for number, label in names.items()}
    for number, category in given.classes:
        if 0 <= number < detector.labels and classes.get(category, number) == number:
            continue
        what = f"{name}: category {category!r} is class {number} ({names.get(number)!r}); the detector has 0"
        what += f" to {detector.labels - 1}, {list(names.values())[:9]}"
        raise ValueError(f"{what}. Pass coco_scenes(..., labels=...), such as detector.config.label2id.")
