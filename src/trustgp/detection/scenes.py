"""Pictures and what is in them, as a user has them: checked before any work starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from ..data.rows import finite_rows
from .adapter import Detector
from .box_formats import PictureBoxes, checked_corners
from .coco import CocoScenes
from .pictures import LISTS, as_pictures, pixel_values, shape_of
from .things import Things, as_things, box_format, is_annotations

Lot = tuple[Any, list[Any]]  # pictures, a tensor or a list, and the things of each, as they come


def as_scenes(
    given: Any,
    detector: Detector,
    *,
    name: str,
    size: tuple[int, int] | None = None,
    unknown: bool = False,
) -> tuple[Tensor, list[Things]]:
    """Pictures and their things, boxes as left, top, right, bottom in pixels.

    Args:
        given: A pair (images, things), a processor's mapping with "pixel_values" and "labels", or a Dataset
            or DataLoader of such pairs or mappings. What images may be is told in `as_pictures`, what the
            things of one in `as_things`.
        detector: Its channels, classes and their names count.
        name: For errors.
        size: Height and width that pictures must have; None: any.
        unknown: Whether things may be of classes that the detector does not know.
    """
    if not unknown:
        _check_names(given, detector, name)
    lots: list[Lot] = []
    first = None
    for lot in _lots(given, detector.channels, name):
        if not lots and len(lot[0]):  # what is wrong with the first is told before all are read
            first = _checked(*lot, detector, name, size, unknown)
        lots.append(lot)
    pictures = [image for images, _ in lots for image in images]
    if not pictures:
        raise ValueError(f"{name} holds no pictures.")
    if first is not None and len(lots) == 1:
        return first
    return _checked(pictures, [one for _, things in lots for one in things], detector, name, size, unknown)


def class_names(detector: Detector) -> dict[int, str]:
    """Names of the detector's classes by number; empty: it has none."""
    config = getattr(detector.network, "config", None)
    named = getattr(config, "id2label", None) or {}
    return {int(number): str(label) for number, label in named.items()}


def _checked(
    pictures: Any,
    things: list[Any],
    detector: Detector,
    name: str,
    size: tuple[int, int] | None,
    unknown: bool,
) -> tuple[Tensor, list[Things]]:
    try:
        images = as_pictures(pictures, channels=detector.channels, size=size)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if len(things) != len(images):
        raise ValueError(f"{name} has {len(images)} pictures, but things for {len(things)}.")
    sides, names = (int(images.shape[2]), int(images.shape[3])), class_names(detector)
    most = None if unknown else detector.labels
    read = [as_things(one, sides, names, most, f"{name}, picture {i}") for i, one in enumerate(things)]
    corners = checked_corners([PictureBoxes(one.boxes, box_format(one), sides) for one in read], name)
    broken = (~finite_rows(images)).nonzero().flatten().tolist()
    if broken:
        raise ValueError(
            f"{name}: {len(broken)} pictures hold NaN or infinity, the first is {broken[0]}; drop them."
        )
    return images, [Things(box, one.labels, "xyxy") for box, one in zip(corners, read, strict=True)]


def _lots(given: Any, channels: int, name: str) -> Iterator[Lot]:
    """Pictures and things, many at a time or one by one, as they come."""
    if isinstance(given, DataLoader):
        yield from (_lot(batch, name) for batch in _batches(given, name))
    elif isinstance(given, IterableDataset):
        yield from (_lot(row, name) for row in given)
    elif isinstance(given, Dataset):
        yield from (_lot(given[i], name) for i in range(len(given)))  # type: ignore[arg-type]
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
