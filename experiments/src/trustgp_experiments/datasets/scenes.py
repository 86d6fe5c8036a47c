"""Pictures with boxes: rendered ones of a planet with a rover and a lander, and photographs.

Photographs are BCCD's blood cells, and raccoons, which are unknown to a detector of cells. Neither is part
of this package; their folder is named by ``TRUSTGP_DATA``.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .files import Folder
from .scene_objects import KNOWN, LATER, NOVEL, UNKNOWN, Array, Part
from .scene_picture import Camera, blurred, exposed, random_ground, towards, view

CLASSES = tuple(KNOWN)
KINDS = KNOWN | NOVEL | UNKNOWN | LATER
NAMES = tuple(KINDS)
# style numbers, which are part of the seeds
STYLES = {"carry": 0, "flight": 1, "novel": 2, "unknown": 4, "later": 5}
# kinds that no detector is trained on, by style
OTHERS = {"novel": tuple(NOVEL), "unknown": tuple(UNKNOWN), "later": tuple(LATER)}
Picture = tuple[NDArray[np.uint8], list[list[float]], list[str]]  # pixels, boxes, names


@dataclass(frozen=True)
class SceneStyle:
    """Viewpoint and light of pictures; each pair is a range."""

    height: tuple[float, float]  # of the camera, in metres
    distance: tuple[float, float]  # likewise
    roll: float  # of the camera, at most, in radians
    sun: tuple[float, float]  # its height above the horizon, in degrees
    haze: tuple[float, float]  # absorption of light per metre
    blur: tuple[float, float]  # length of the motion blur, in pixels
    size: tuple[float, float]  # of the objects, over their own


CARRY = SceneStyle((1.5, 6.0), (5.0, 13.0), 0.05, (25.0, 70.0), (0.0, 0.02), (0.0, 0.0), (0.8, 1.2))
FLIGHT = SceneStyle((7.0, 14.0), (2.0, 9.0), 0.35, (8.0, 22.0), (0.01, 0.05), (0.0, 6.0), (0.6, 1.3))


@dataclass(frozen=True)
class Scenes:
    """Pictures, boxes and labels; labels below `len(CLASSES)` are kinds that a detector is trained on."""

    images: Tensor  # from 0 to 255, uint8, [n, 3, height, width]
    boxes: tuple[Tensor, ...]  # left, top, right and bottom in pixels, float32, [k, 4]
    labels: tuple[Tensor, ...]  # object in each box, an index into `NAMES`, int64, [k]

    def __len__(self) -> int:
        return len(self.images)


def scenes(n: int, style: str = "carry", *, seed: int = 0, side: int = 128, first: int = 0) -> Scenes:
    """Pictures of a style; a picture depends on the seed and its number, not on ``n``.

    Styles are "carry": a rover and a lander as someone walks around them, to train on; "flight": these two
    from high up, with a low sun, haze and motion blur; "novel": as "carry", with an object that is neither,
    alone or with one of them; "unknown" and "later": as "novel", with kinds that no choice of the method
    has used, for reports. ``side`` is in pixels, ``first`` is the number of the first picture.
    """
    _check(style=(style, STYLES))
    seeds = [[seed, STYLES[style], first + i] for i in range(n)]
    return _gathered([_scene(style, np.random.default_rng(own), side) for own in seeds], side)


def _check(**chosen: tuple[str, Iterable[str]]) -> None:
    for name, (value, allowed) in chosen.items():
        if value not in allowed:
            raise ValueError(f"{name}={value!r}; allowed are {', '.join(allowed)}.")


def _gathered(pictures: list[Picture], side: int) -> Scenes:
    images = np.array([image for image, _, _ in pictures], dtype=np.uint8).reshape(-1, side, side, 3)
    numbers = [[NAMES.index(name) for name in names] for _, _, names in pictures]
    return Scenes(
        images=torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
        boxes=tuple(torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4) for _, boxes, _ in pictures),
        labels=tuple(torch.tensor(labels, dtype=torch.int64) for labels in numbers),
    )


def _scene(style: str, rng: np.random.Generator, side: int) -> Picture:
    """One picture, as a camera takes it: blurred along a line, with its gain and its noise."""
    look = FLIGHT if style == "flight" else CARRY
    height, distance, yaw = rng.uniform(*look.height), rng.uniform(*look.distance), rng.uniform(0, 2 * np.pi)
    tilt, swing, roll = rng.normal(0, 0.04), rng.normal(0, 0.05), rng.uniform(-look.roll, look.roll)
    camera = _camera(distance, height, yaw, roll, side)
    camera = replace(camera, pitch=camera.pitch + tilt, yaw=yaw + swing)
    things = _things(style, look, rng)
    sun = towards(rng.uniform(*look.sun), rng.uniform(0, 2 * np.pi))
    haze, ground = rng.uniform(*look.haze), random_ground(rng)
    image, boxes, names = view(things, camera, sun, haze, ground)
    blur = rng.uniform(*look.blur)
    if np.ceil(blur) > 1:
        image = blurred(image, blur, rng.uniform(0, 2 * np.pi))
    gain, noise = rng.uniform(0.85, 1.15), rng.normal(0, 0.015, image.shape)
    return exposed(image, gain, noise, rng.uniform(0.0, 0.5)), boxes, names


def _camera(distance: float, height: float, yaw: float, roll: float, side: int) -> Camera:
    """Camera that looks approximately at the origin."""
    away = distance * np.array([np.cos(yaw), np.sin(yaw)])
    pitch = float(np.arctan2(height - 0.8, distance))
    return Camera(np.array([*-away, height]), yaw, pitch, roll, 0.95 * side, side)


def _things(style: str, look: SceneStyle, rng: np.random.Generator) -> list[tuple[str, list[Part]]]:
    """Names and parts of random objects at a distance from each other."""
    names = list(rng.choice(list(KNOWN), rng.integers(1, 4)))
    if style in OTHERS:
        names = [*rng.choice(OTHERS[style], 1), *names[: rng.integers(0, 2)]]
    things, places = [], []
    for name in names:
        for _ in range(20):
            place = rng.uniform(-4.5, 4.5, 2) if places else rng.uniform(-1.5, 1.5, 2)
            if all(np.hypot(*(place - other)) > 3.6 for other in places):
                places.append(place)
                things.append(_thing(str(name), place, rng, look.size))
                break
    return things


def _thing(
    name: str, place: Array, rng: np.random.Generator, sizes: tuple[float, float]
) -> tuple[str, list[Part]]:
    """Object on the ground with a random direction, scaled by a factor in the range `sizes`."""
    parts, at = KINDS[name](rng), np.array([*place, 0.0])
    yaw, size = rng.uniform(0, 2 * np.pi), rng.uniform(*sizes)
    return name, [part.placed(at, yaw, size) for part in parts]


_FOLDERS = {
    "bccd": Folder("detection_bccd", "https://github.com/Shenggan/BCCD_Dataset"),
    "raccoon": Folder("detection_raccoon", "https://github.com/experiencor/raccoon_dataset"),
}
_KINDS = {"bccd": ("RBC", "WBC", "Platelets"), "raccoon": ("raccoon",)}
_PARTS = {"bccd": ("train", "val", "trainval", "test"), "raccoon": ("all",)}
SIZE = (144, 192)  # height and width of a picture
MIN_BOX = 1.0  # pixels of a box's shorter side, after the picture is resized


@dataclass(frozen=True)
class Photographs(Scenes):
    """Real pictures, boxes and labels; labels are indices into `kinds`."""

    kinds: tuple[str, ...]  # names of the classes


def load_photographs(name: str, part: str, root: str | Path | None = None) -> Photographs:
    """Read one part of a set of photographs, all brought to one size.

    The folder holds ``images/``, ``annotations.json`` (a list of {"file", "w", "h", "boxes": [[kind, left,
    top, right, bottom], ...]}) and, for cells, the lists ``train.txt``, ``val.txt``, ``trainval.txt`` and
    ``test.txt``. Parts of "bccd" are "train" (205 pictures in the source), "val" (87), "trainval" and "test"
    (72); of "raccoon" "all" (200). Pictures are stretched to `SIZE`.
    """
    _check(name=(name, _FOLDERS), part=(part, _PARTS.get(name, ())))
    folder = _FOLDERS[name]
    path = folder.path("annotations.json", root)
    try:
        entries = {entry["file"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))}
        if part != "all":
            listed = folder.path(f"{part}.txt", root).read_text(encoding="utf-8").split()
            entries = {f"{one}.jpg": entries[f"{one}.jpg"] for one in listed}
    except (json.JSONDecodeError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no list of all pictures ({error}); fetch it again.") from error
    images, boxes, labels = [], [], []
    for file, entry in entries.items():
        images.append(_picture(folder.path(f"images/{file}", root)))
        corners, kinds = _boxes(entry, _KINDS[name])
        whole = (corners[:, 2:] - corners[:, :2]).amin(dim=1) >= MIN_BOX
        boxes.append(corners[whole])
        labels.append(kinds[whole])
    pictures = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    return Photographs(pictures, tuple(boxes), tuple(labels), _KINDS[name])


def _picture(path: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize(SIZE[::-1], Image.Resampling.BOX))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error}); fetch it again from its source.") from error


def _boxes(entry: dict, kinds: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Boxes in pixels of the new size, clipped to the picture, and their labels."""
    rows = torch.tensor([box[1:] for box in entry["boxes"]], dtype=torch.float32).reshape(-1, 4)
    scale = torch.tensor([SIZE[1] / entry["w"], SIZE[0] / entry["h"]] * 2)
    edge = torch.tensor([SIZE[1], SIZE[0]] * 2, dtype=torch.float32)
    labels = torch.tensor([kinds.index(box[0]) for box in entry["boxes"]], dtype=torch.int64)
    return torch.minimum((rows * scale).clamp_min(0.0), edge), labels
