"""A COCO file and its folder of pictures, read one picture at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..data.user_warnings import optional_package, warn_user
from .box_formats import BoxFormat
from .pictures import LISTS, pixel_values, shape_of
from .things import BOX, CATEGORY, CROWD, Things

PILLOW = 'Pillow reads the pictures; try: pip install "trustgp[detection]"'
LISTED = ("images", "annotations", "categories")  # the parts of a file that count here
HALF = 0.5  # of a box: where less of it lies in the picture, it belongs to another one
Prepare = Callable[[Tensor], Any]  # of a picture from 0 to 255, uint8 [3, height, width]
Labels = Mapping[Any, int | None] | Sequence[str]


@dataclass(frozen=True)
class CocoPicture:
    """One picture of a file, not yet read."""

    path: Path
    size: tuple[int, int] | None  # height and width, where the file says them
    boxes: Tensor  # left, top, width, height in its pixels, [k, 4]
    labels: Tensor  # classes, int64, [k]


class CocoScenes(Dataset):
    """Pairs (picture, Things) of a COCO file, read when they are asked for; made by `coco_scenes`."""

    def __init__(
        self, pictures: Sequence[CocoPicture], classes: Sequence[tuple[int, str]], prepare: Prepare
    ) -> None:
        self.pictures, self.classes, self.prepare = tuple(pictures), tuple(classes), prepare

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, Things]:
        """The prepared picture, [channels, height, width], and what is in it, in pixels of that picture."""
        one = self.pictures[index]
        image = _picture(one)
        ready = _prepared(self.prepare(image), one.path.name)
        height, width = image.shape[1:]
        boxes = BoxFormat("xywh", False).corners(one.boxes, (height, width))
        edge = boxes.new_tensor([width, height] * 2)
        inside = torch.minimum(boxes.clamp_min(0.0), edge)
        kept = _areas(inside) / _areas(boxes)
        if bool((kept < HALF).any()):
            raise ValueError(
                f"{one.path.name}: box {one.boxes[kept < HALF][0].tolist()} (left, top, width, height) lies "
                f"outside of the picture, {width} x {height}."
            )
        scale = boxes.new_tensor([ready.shape[2] / width, ready.shape[1] / height] * 2)
        return ready, Things(inside * scale, one.labels, "xyxy")


def coco_scenes(
    annotations_path: str | Path,
    images_folder: str | Path,
    *,
    prepare: Prepare,
    labels: Labels | None = None,
    limit: int | None = None,
) -> CocoScenes:
    """Pictures and things of a COCO file, for `trustgp.fit` and others: a Dataset that reads them one by one.

    The file is read and checked at once; crowds are left out, and, with a warning, empty boxes.

    Args:
        annotations_path: The JSON file, with "images", "annotations" and "categories".
        images_folder: Where the pictures are that it names.
        prepare: From a picture from 0 to 255, uint8 [3, height, width], to what the detector takes, a tensor
            or what a processor returns. It may resize the whole picture, boxes go with it; not cut or pad.
        labels: The detector's class of each category, by its name or id, such as `detector.config.label2id`;
            None as a class leaves a category out. Or names in the order of the classes. None: the ids are
            the classes.
        limit: How many pictures to take, the first ones; None: all.
    """
    if not callable(prepare):
        raise TypeError(f"prepare is a {type(prepare).__name__}; a function of a picture is needed.")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ValueError(f"limit={limit!r}; a number of pictures from 1 on is needed, or None for all.")
    optional_package("PIL.Image", PILLOW)
    path, folder = Path(annotations_path), Path(images_folder)
    content = _content(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; pass the one with the pictures of {path.name}.")
    images = _by_id(content["images"], path, "image", "file_name")
    categories = {
        key: row["name"] for key, row in _by_id(content["categories"], path, "category", "name").items()
    }
    rows = _rows(content["annotations"], images, categories, path)
    images = dict(list(images.items())[:limit])
    rows = {key: rows.get(key, []) for key in images}
    used = {row[CATEGORY] for some in rows.values() for row in some}
    numbers = _classes({key: name for key, name in categories.items() if key in used}, labels, path)
    pictures = [_entry(image, folder, rows[key], numbers) for key, image in images.items()]
    missing = [one.path for one in pictures if not one.path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(pictures)} pictures of {path.name} are not in {folder}, the first is "
            f"{missing[0].name}."
        )
    known = [(number, categories[key]) for key, number in numbers.items() if number is not None]
    return CocoScenes(pictures, known, prepare)


def _content(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; pass a COCO file of annotations.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or no JSON
        raise ValueError(f"{path} is no JSON ({error}); it is cut, or another kind of file.") from error
    found = content if isinstance(content, dict) else {}
    absent = [name for name in LISTED if not isinstance(found.get(name), list)]
    if absent:
        raise ValueError(f"{path} has no list '{absent[0]}'; COCO files have {', '.join(LISTED)}.")
    if not found["images"]:
        raise ValueError(f"{path} lists no pictures.")
    return found


def _by_id(rows: list[Any], path: Path, what: str, field: str) -> dict[Any, dict]:
    """Entries of a file by their id; each has one of its own, and this field, a text."""
    found: dict[Any, dict] = {}
    for place, row in enumerate(rows):
        whole = isinstance(row, dict) and isinstance(row.get("id"), int | str)
        if not whole or not isinstance(row.get(field), str):
            raise ValueError(f"{path}: {what} {place} has no 'id' or no '{field}'.")
        if row["id"] in found:
            raise ValueError(f"{path}: {what} id {row['id']!r} stands twice.")
        found[row["id"]] = row
    return found


def _rows(rows: list[Any], images: Mapping, categories: Mapping, path: Path) -> dict[Any, list[dict]]:
    """Annotations by picture, without crowds and empty boxes."""
    found: dict[Any, list[dict]] = {}
    empty = []
    for place, row in enumerate(rows):
        where = f"{path}: annotation {row.get('id', place) if isinstance(row, dict) else place}"
        if not isinstance(row, dict) or not {"image_id", CATEGORY, BOX} <= row.keys():
            raise ValueError(f"{where} has no 'image_id', '{CATEGORY}' or '{BOX}'.")
        for field, known in (("image_id", images), (CATEGORY, categories)):
            if not isinstance(row[field], int | str) or row[field] not in known:
                raise ValueError(f"{where} has {field} {row[field]!r}, which the file does not list.")
        box = row[BOX]
        numbers = isinstance(box, list) and all(isinstance(v, int | float) and math.isfinite(v) for v in box)
        if not numbers or len(box) != 4:
            raise ValueError(f"{where} has the {BOX} {box!r}; left, top, width, height are needed.")
        if row.get(CROWD):
            continue
        if min(box[2:]) <= 0:
            empty.append(row.get("id", place))
            continue
        found.setdefault(row["image_id"], []).append(row)
    if empty:
        warn_user(f"{path.name}: {len(empty)} boxes are empty, the first of annotation {empty[0]}; left out.")
    return found


def _classes(categories: Mapping[Any, str], labels: Labels | None, path: Path) -> dict[Any, int | None]:
    """The detector's class of each category id; None: it is left out."""
    if labels is None:
        texts = [key for key in categories if isinstance(key, str)]
        if texts:
            raise ValueError(f"{path}: category id {texts[0]!r} is no class; pass labels={{name: class}}.")
        return {key: int(key) for key in categories}
    named = labels if isinstance(labels, Mapping) else {name: i for i, name in enumerate(labels)}
    strange = [value for value in named.values() if not isinstance(value, int | None)]
    if strange:
        raise ValueError(
            f"labels= maps to {strange[0]!r}; classes are numbers, as in detector.config.label2id."
        )
    for key, name in categories.items():
        if key not in named and name not in named:
            raise ValueError(
                f"{path}: category {name!r}, id {key!r}, is not in labels=, which has "
                f"{', '.join(map(repr, named))}; None as its class leaves it out."
            )
    return {key: named[key] if key in named else named[name] for key, name in categories.items()}


def _entry(image: dict, folder: Path, rows: list[dict], numbers: Mapping[Any, int | None]) -> CocoPicture:
    kept = [row for row in rows if numbers[row[CATEGORY]] is not None]
    boxes = torch.tensor([row[BOX] for row in kept], dtype=torch.float32).reshape(-1, 4)
    kinds = torch.tensor([numbers[row[CATEGORY]] for row in kept], dtype=torch.int64)
    size = (image["height"], image["width"]) if {"height", "width"} <= image.keys() else None
    return CocoPicture(folder / image["file_name"], size, boxes, kinds)


def _picture(one: CocoPicture) -> Tensor:
    """From 0 to 255, uint8 [3, height, width], of the size that the file says."""
    library = optional_package("PIL.Image", PILLOW)
    try:
        with library.open(one.path) as file:
            pixels = file.convert("RGB")
    except (OSError, SyntaxError, ValueError, library.DecompressionBombError) as error:
        raise ValueError(f"{one.path} cannot be read as a picture: {error}") from error
    width, height = pixels.size
    if one.size is not None and one.size != (height, width):
        raise ValueError(
            f"{one.path.name} is {width} x {height} pixels, the COCO file says {one.size[1]} x "
            f"{one.size[0]}; boxes belong to another version of it."
        )
    return (
        torch.frombuffer(bytearray(pixels.tobytes()), dtype=torch.uint8)
        .reshape(height, width, 3)
        .permute(2, 0, 1)
    )


def _prepared(given: Any, name: str) -> Any:
    """What `prepare` gave, as a tensor [channels, height, width]."""
    found: Any = pixel_values(given) if isinstance(given, Mapping) else given
    if isinstance(found, LISTS) and len(found) == 1:
        found = found[0]
    shape = shape_of(found) or ()
    if len(shape) == 4 and shape[0] == 1:
        found, shape = found[0], shape[1:]
    if len(shape) != 3:
        kind = shape or type(found).__name__
        raise ValueError(f"prepare gave {kind} of {name}; a tensor [channels, height, width] is needed.")
    return found


def _areas(boxes: Tensor) -> Tensor:
    """Of corners [k, 4], [k]; 0 where they are crossed."""
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp_min(0.0)
    return sides[:, 0] * sides[:, 1]
