"""A COCO file and its folder of pictures, read one picture at a time."""

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
from .pictures import BOX, CATEGORY, CROWD, LISTS, BoxTargets, pixel_values

PILLOW = 'Pillow reads the pictures; try: pip install "trustgp[detection]"'
SECTIONS = ("images", "annotations", "categories")
NEEDED = (
    "It needs lists images, with 'id' and 'file_name', categories, with 'id' and 'name', and annotations, "
    "with 'image_id', 'category_id' and 'bbox', left, top, width, height."
)
Prepare = Callable[[Tensor], Any]  # of a picture from 0 to 255, uint8 [3, height, width]


@dataclass(frozen=True)
class CocoPicture:
    """One picture of a COCO file, whose pixels are not read yet."""

    path: Path
    size: tuple[Any, Any]  # height and width; None: the file does not name them
    boxes: Tensor  # left, top, right, bottom in its pixels, [k, 4]
    labels: Tensor  # classes, int64, [k]


@dataclass(frozen=True, eq=False)
class CocoScenes(Dataset):
    """Pairs (picture, BoxTargets) of a COCO file, read on access; made by `coco_scenes`."""

    pictures: Sequence[CocoPicture]
    classes: Sequence[tuple[int, str]]  # number and name
    prepare: Prepare

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, BoxTargets]:
        """The prepared picture, [channels, height, width], and its targets, in pixels of that picture."""
        image = _picture(one := self.pictures[index])
        prepared, (height, width) = _prepared(self.prepare(image), one.path.name), image.shape[1:]
        inside = torch.minimum(one.boxes.clamp_min(0.0), one.boxes.new_tensor([width, height] * 2))
        if bool((inside[:, 2:] <= inside[:, :2]).any()):
            raise ValueError(f"{one.path.name}: a box lies outside of the picture, {width} x {height}.")
        scale = inside.new_tensor([prepared.shape[2] / width, prepared.shape[1] / height] * 2)
        return prepared, BoxTargets(inside * scale, one.labels)


def coco_scenes(
    annotations_path: str | Path, images_folder: str | Path, *, prepare: Prepare, labels: dict | None = None
) -> CocoScenes:
    """Pictures and targets of a COCO file, for `trustgp.detection.fit`: a Dataset that reads one at a time.

    The file is read and checked at once. Crowds are left out; empty boxes too, with a warning.

    Args:
        annotations_path: The JSON file, with "images", "annotations" and "categories".
        images_folder: The folder with the pictures that the file names.
        prepare: Function from a picture, uint8 [3, height, width], 0 to 255, to the detector's input: a
            tensor or a processor's mapping. It may resize the picture (boxes follow), not crop or pad it.
        labels: The detector's class of each category, by its name or id, such as `detector.config.label2id`;
            None as a class leaves a category out. None: the ids are the classes.

    Examples:
        >>> scenes = trustgp.detection.coco_scenes("boxes.json", ".", prepare=lambda picture: picture / 255)
    """
    optional_package("PIL.Image", PILLOW)
    path, folder = Path(annotations_path), Path(images_folder)
    images, annotations, categories = _content(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; pass the one with the pictures of {path.name}.")
    used = {row[CATEGORY] for rows in annotations.values() for row in rows}
    classes = _classes(named := {k: name for k, name in categories.items() if k in used}, labels, path)
    pictures = []
    for key, image in images.items():
        rows = [row for row in annotations.get(key, []) if classes[row[CATEGORY]] is not None]
        boxes = torch.tensor([row[BOX] for row in rows], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        numbers = torch.tensor([classes[row[CATEGORY]] for row in rows], dtype=torch.int64)
        size = image.get("height"), image.get("width")
        pictures.append(CocoPicture(folder / image["file_name"], size, boxes, numbers))
    root = folder.resolve()
    if outside := [one.path for one in pictures if not one.path.resolve().is_relative_to(root)]:
        what = f"{path.name} names {outside[0]}, which is not in {folder}"
        raise ValueError(f"{what}; pass a file whose pictures are inside of its folder.")
    if missing := [one.path.name for one in pictures if not one.path.is_file()]:
        what = f"{len(missing)} of {len(pictures)} pictures of {path.name} are not in {folder}"
        raise FileNotFoundError(f"{what}, the first is {missing[0]}.")
    return CocoScenes(pictures, [(c, named[key]) for key, c in classes.items() if c is not None], prepare)


def _content(path: Path) -> tuple[dict[Any, dict], dict[Any, list[dict]], dict[Any, str]]:
    """Images by id, annotations by image id, and category names by id, after checks of the file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; pass a COCO file of annotations.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        images, annotations, categories = (content[name] for name in SECTIONS)
        pictures = {row["id"]: row for row in images if isinstance(row["file_name"], str)}
        names = {row["id"]: str(row["name"]) for row in categories}
        if not pictures or len(pictures) != len(images) or len(names) != len(categories):
            raise ValueError("ids of images and categories must be unique, and there must be a picture")
        return pictures, _annotations(annotations, pictures, names, path), names
    except (KeyError, TypeError, ValueError) as error:  # not UTF-8, no JSON, or an entry that lacks a key
        raise ValueError(f"{path} is no COCO file: {error!r}. {NEEDED}") from error


def _annotations(rows: list[dict], images: Mapping, names: Mapping, path: Path) -> dict[Any, list[dict]]:
    kept, empty = {}, 0
    for place, row in enumerate(rows):
        box, crowd = row[BOX], row.get(CROWD, 0)
        if row["image_id"] not in images or row[CATEGORY] not in names:
            raise ValueError(f"annotation {place} is of an image or category that the file does not list")
        if len(box) != 4 or not all(type(value) in (int, float) and math.isfinite(value) for value in box):
            raise ValueError(f"annotation {place} has the {BOX} {box}")
        if not isinstance(crowd, int) or crowd not in (0, 1):
            raise ValueError(f"annotation {place} has the {CROWD} {crowd!r}; 0 or 1 is needed")
        empty += min(box[2:]) <= 0 and not crowd
        if min(box[2:]) > 0 and not crowd:
            kept.setdefault(row["image_id"], []).append(row)
    if empty:
        warn_user(f"{path.name}: {empty} boxes are empty; they are left out.")
    return kept


def _classes(names: Mapping[Any, str], labels: Mapping | None, path: Path) -> dict[Any, int | None]:
    """The detector's class of each category id; None: the category is left out."""
    given = {key: key for key in names} if labels is None else labels
    classes = {key: given.get(key, given.get(name, "missing")) for key, name in names.items()}
    for key, value in classes.items():
        if not isinstance(value, int | None) or isinstance(value, bool):
            what = f"{path}: category {names[key]!r}, id {key!r}, has the class {value!r}; pass labels= with"
            raise ValueError(f"{what} a number (None: omit it) for each, such as detector.config.label2id.")
    return classes


def _picture(one: CocoPicture) -> Tensor:
    """Pixels from 0 to 255, uint8 [3, height, width]; raise ValueError if the file names another size."""
    library = optional_package("PIL.Image", PILLOW)
    try:
        with library.open(one.path) as file:
            pixels = file.convert("RGB")
    except (OSError, SyntaxError, ValueError, library.DecompressionBombError) as error:
        raise ValueError(f"{one.path} cannot be read as a picture: {error}") from error
    width, height = pixels.size
    if None not in one.size and one.size != (height, width):
        what = f"{one.path.name} is {width} x {height} pixels, but {one.size[1]} x {one.size[0]}"
        raise ValueError(f"{what} in the COCO file; boxes belong to another version of it.")
    values = torch.frombuffer(bytearray(pixels.tobytes()), dtype=torch.uint8)
    return values.reshape(height, width, 3).permute(2, 0, 1)


def _prepared(given: Any, name: str) -> Tensor:
    """The result of `prepare` as a tensor [channels, height, width]."""
    values: Any = pixel_values(given) if isinstance(given, Mapping) else given
    if (isinstance(values, LISTS) or (isinstance(values, Tensor) and values.ndim == 4)) and len(values) == 1:
        values = values[0]
    if not isinstance(values, Tensor) or values.ndim != 3:
        kind = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"prepare gave {kind} of {name}; a tensor [channels, height, width] is needed.")
    return values
