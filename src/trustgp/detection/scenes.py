"""Pictures and what is in them, as a user has them: checked, and read one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from .adapter import Detector
from .box_formats import PictureBoxes, checked_corners
from .coco import CocoScenes
from .pictures import LISTS, Pictures, as_pictures, finite_pictures, pixel_values, shape_of
from .things import Things, as_things, box_format, is_annotations

Lot = tuple[Any, list[Any]]  # pictures, a tensor or a list, and the things of each, as they come
Part = tuple[Pictures, list[Things]]  # the same, checked
CHECKED = 32  # pictures of a Dataset that are checked together


@dataclass(frozen=True)
class Scene:
    """A picture and what is in it; boxes are left, top, right, bottom in pixels."""

    number: int  # among those that were given
    image: Tensor  # [channels, height, width]
    things: Things


class SceneStream:
    """Pictures and their things, read and checked as they come.

    Of a Dataset or DataLoader the first picture or batch is read at once, so that what is wrong with it is
    told before any work; what is in memory is checked as a whole.

    Args:
        given: A pair (images, things), a processor's mapping with "pixel_values" and "labels", or a Dataset
            or DataLoader of such pairs or mappings. What images may be is told in `as_pictures`, what the
            things of one in `as_things`.
        detector: Its channels, classes and their names count.
        name: For errors.
        size: Height and width that pictures must have; None: any.
        unknown: Whether things may be of classes that the detector does not know.
    """

    def __init__(
        self,
        given: Any,
        detector: Detector,
        *,
        name: str,
        size: tuple[int, int] | None = None,
        unknown: bool = False,
    ) -> None:
        if not unknown:
            _check_names(given, detector, name)
        self._given, self._detector, self._name = given, detector, name
        self._size, self._unknown = size, unknown
        self._parts = self._read(0)
        first = next(self._parts, None)
        if first is None:
            raise ValueError(f"{name} holds no pictures.")
        self.first: Part | None = first
        self.total = _total(given, len(first[0]))

    def parts(self) -> Iterator[Part]:
        """All pictures, as they come; once."""
        if self.first is not None:
            first, self.first = self.first, None  # it need not be kept
            yield first
        yield from self._parts

    def scenes(self, start: int = 0) -> Iterator[Scene]:
        """One by one, once; without those before `start`, which a Dataset does not read."""
        number = 0
        if start and _is_indexed(self._given):
            self.first, self._parts, number = None, self._read(start), start
        for images, things in self.parts():
            for image, one in zip(images, things, strict=True):
                if number >= start:
                    yield Scene(number, image, one)
                number += 1

    def _read(self, start: int) -> Iterator[Part]:
        first = start
        for images, things in _lots(self._given, self._detector.channels, self._name, start):
            if len(images):
                checked = self._checked(images, things, first)
                first += len(images)
                yield checked

    def _checked(self, pictures: Any, things: list[Any], first: int) -> Part:
        detector, name = self._detector, self._name
        try:
            images = as_pictures(pictures, channels=detector.channels, size=self._size)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        if len(things) != len(images):
            raise ValueError(f"{name} has {len(images)} pictures, but things for {len(things)}.")
        sides = [(int(one.shape[-2]), int(one.shape[-1])) for one in images]
        names, most = class_names(detector), None if self._unknown else detector.labels
        read = [
            as_things(one, side, names, most, f"{name}, picture {i}")
            for i, (one, side) in enumerate(zip(things, sides, strict=True), start=first)
        ]
        boxes = [
            PictureBoxes(one.boxes, box_format(one), side) for one, side in zip(read, sides, strict=True)
        ]
        corners = checked_corners(boxes, name, first=first)
        broken = [first + i for i, fine in enumerate(finite_pictures(images).tolist()) if not fine]
        if broken:
            raise ValueError(
                f"{name}: {len(broken)} pictures hold NaN or infinity, the first is {broken[0]}; drop them."
            )
        return images, [Things(box, one.labels, "xyxy") for box, one in zip(corners, read, strict=True)]


def as_scenes(
    given: Any,
    detector: Detector,
    *,
    name: str,
    size: tuple[int, int] | None = None,
    unknown: bool = False,
) -> Part:
    """All pictures and their things at once: see `SceneStream`."""
    parts = list(SceneStream(given, detector, name=name, size=size, unknown=unknown).parts())
    if len(parts) == 1:
        return parts[0]
    pictures = as_pictures([image for images, _ in parts for image in images], channels=detector.channels)
    return pictures, [one for _, things in parts for one in things]


def class_names(detector: Detector) -> dict[int, str]:
    """Names of the detector's classes by number; empty: it has none."""
    config = getattr(detector.network, "config", None)
    named = getattr(config, "id2label", None) or {}
    return {int(number): str(label) for number, label in named.items()}


def _is_indexed(given: Any) -> bool:
    """Whether this is a Dataset whose pictures can be asked for by number."""
    return isinstance(given, Dataset) and not isinstance(given, IterableDataset)


def _total(given: Any, first: int) -> int | None:
    """How many pictures there are; None: that is seen at the end."""
    rows = given.dataset if isinstance(given, DataLoader) else given
    if isinstance(rows, IterableDataset):
        return None
    return len(rows) if isinstance(rows, Dataset) else first  # type: ignore[arg-type]


def _lots(given: Any, channels: int, name: str, start: int = 0) -> Iterator[Lot]:
    """Pictures and things as they come, some at a time; of a Dataset, which can be asked for any, the first
    is alone."""
    if isinstance(given, DataLoader):
        yield from (_lot(batch, name) for batch in _batches(given, name))
    elif isinstance(given, Dataset):
        indexed = _is_indexed(given)
        rows: Any = (given[i] for i in range(start, len(given))) if indexed else iter(given)  # type: ignore
        for size in chain([1], repeat(CHECKED)):
            some = [_lot(row, name) for row in islice(rows, size)]
            if not some:
                return
            yield [one for images, _ in some for one in images], [one for _, all in some for one in all]
    elif isinstance(given, Mapping):
        yield _lot(given, name)
    else:
        yield _pair(given, channels, name)


def _batches(given: DataLoader, name: str) -> Iterator[Any]:
    try:
        yield from given
    except TypeError as error:
        if "collate" not in str(error):
            raise
        raise ValueError(
            f"{name}: the DataLoader cannot stack things; pass collate_fn=lambda rows: tuple(zip(*rows)), or "
            "the Dataset itself."
        ) from error


def _lot(row: Any, name: str) -> Lot:
    """Of one row of a Dataset, or one batch of a DataLoader: a pair, or a processor's mapping."""
    if isinstance(row, Mapping):
        if "labels" not in row:
            raise ValueError(
                f"{name} has {', '.join(map(repr, row))}, but no 'labels': what is in a picture."
            )
        row = row, row["labels"]
    if not isinstance(row, LISTS) or len(row) < 2:
        raise ValueError(
            f"{name} gives a {type(row).__name__}; pairs (picture, things) or a processor's mappings with "
            "'pixel_values' and 'labels' are needed."
        )
    try:
        images = pixel_values(row[0]) if isinstance(row[0], Mapping) else row[0]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    many = isinstance(images, LISTS) or len(shape_of(images) or ()) == 4
    images = images if many else [images]
    alone = not many or (len(images) == 1 and is_annotations(row[1]))
    return images, _each(row[1], alone)


def _each(things: Any, alone: bool) -> list[Any]:
    """The things of each picture; those of a picture that is alone may be in a list of one, or not."""
    if isinstance(things, LISTS) and (not alone or (len(things) == 1 and not is_annotations(things))):
        return list(things)
    return [things]


def _pair(given: Any, channels: int, name: str) -> Lot:
    if not isinstance(given, LISTS) or len(given) != 2:
        kind = type(given).__name__
        raise ValueError(
            f"{name} is a {kind}; (images, things), a processor's mapping, a Dataset or DataLoader is needed."
        )
    images, things = given
    pictures = isinstance(images, (*LISTS, Mapping)) or len(shape_of(images) or ()) == 4
    if not pictures or not isinstance(things, LISTS):
        kinds = ", ".join(f"a {type(one).__name__.lower()} {shape_of(one) or ''}".rstrip() for one in given)
        raise ValueError(
            f"{name} is ({kinds}); images are a tensor [n, {channels}, height, width], a list or a "
            "processor's mapping, things a list with one entry a picture."
        )
    return _lot(given, name) if isinstance(images, Mapping) else (images, list(things))


def _check_names(given: Any, detector: Detector, name: str) -> None:
    """Of a COCO file its classes are known before a picture is read: they must be the detector's."""
    while isinstance(given, (DataLoader, Subset)):
        given = given.dataset
    if not isinstance(given, CocoScenes):
        return
    names = class_names(detector)
    numbers = {label: number for number, label in names.items()}
    for number, category in given.classes:
        own = numbers.get(category, number)
        if 0 <= number < detector.labels and own == number:
            continue
        called = f" ({names[number]!r})" if number in names else ""
        raise ValueError(
            f"{name}: category {category!r} is class {number}{called}; the detector knows 0 to "
            f"{detector.labels - 1}, {list(names.values())[:9]}. Pass coco_scenes(..., labels=...), each "
            "name with its class, such as detector.config.label2id."
        )
