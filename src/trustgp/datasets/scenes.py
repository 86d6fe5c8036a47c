"""Pictures of a planet's ground with a rover and a lander, seen from a drone, and where they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

from .scene_objects import KNOWN, NOVEL, Array, Part
from .scene_view import METRES, TEXELS, Camera, Face, faces, shadows, shares, texture

CLASSES = tuple(KNOWN)
NAMES = (*KNOWN, *NOVEL)
STYLES = ("carry", "flight", "novel")
LEAST = 6.0  # pixels of a box's longer side; what is smaller counts as not there
VISIBLE = 0.35  # of a thing: what others hide more of counts as not there
GROUNDS = 32  # textures
FINER = 2  # drawn so many times larger, for smooth edges


@dataclass(frozen=True)
class Style:
    """From where and in which light; each pair is a range.

    Args:
        height, distance: Of the camera, in metres.
        roll: Of the camera, at most, in radians.
        sun: Its height above the horizon, in degrees.
        haze: How much of the light it takes, for each metre.
        blur: Length of the motion blur, in pixels.
        size: Of the things, over their own.
    """

    height: tuple[float, float]
    distance: tuple[float, float]
    roll: float
    sun: tuple[float, float]
    haze: tuple[float, float]
    blur: tuple[float, float]
    size: tuple[float, float]


CARRY = Style((1.5, 6.0), (5.0, 13.0), 0.05, (25.0, 70.0), (0.0, 0.02), (0.0, 0.0), (0.8, 1.2))
FLIGHT = Style((7.0, 14.0), (2.0, 9.0), 0.35, (8.0, 22.0), (0.01, 0.05), (0.0, 6.0), (0.6, 1.3))


@dataclass(frozen=True)
class Scenes:
    """Pictures and what is in them.

    Args:
        images: From 0 to 255, uint8, shape [n, 3, side, side].
        boxes: Of each picture, left, top, right and bottom in pixels, float32, shape [k, 4].
        labels: What is in each box, an index into `NAMES`, int64, shape [k]; below `len(CLASSES)`: of a kind
            that detectors are trained on.
    """

    images: Tensor
    boxes: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.images)


def scenes(n: int, style: str = "carry", *, seed: int = 0, side: int = 128, first: int = 0) -> Scenes:
    """Pictures of a style; the same numbers give the same pictures, however many are asked for.

    Args:
        n: How many.
        style: "carry": a rover and a lander as someone walks around them, to train on. "flight": the same
            two from high up, with a low sun, haze and motion blur. "novel": as "carry", but a thing that is
            neither stands there, with one of them or without.
        seed: Of all pictures of a style.
        side: In pixels.
        first: Number of the first picture.
    """
    if style not in STYLES:
        raise ValueError(f"style={style!r}; allowed are {', '.join(STYLES)}.")
    if n < 0 or side < 16:
        raise ValueError(f"n={n}, side={side}; n must not be negative, and a side has at least 16 pixels.")
    found = [
        _scene(style, np.random.default_rng([seed, STYLES.index(style), first + i]), side) for i in range(n)
    ]
    images = np.stack([image for image, _, _ in found]) if found else np.zeros((0, side, side, 3), np.uint8)
    return Scenes(
        images=torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
        boxes=tuple(torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4) for _, boxes, _ in found),
        labels=tuple(torch.tensor(labels, dtype=torch.int64) for _, _, labels in found),
    )


def _scene(style: str, rng: np.random.Generator, side: int) -> tuple[NDArray[np.uint8], list, list]:
    """One picture, its boxes and its labels."""
    look = FLIGHT if style == "flight" else CARRY
    camera = _camera(look, rng, side)
    things = _things(style, look, camera, rng)
    height, angle = np.radians(rng.uniform(*look.sun)), rng.uniform(0, 2 * np.pi)
    sun = np.array([np.cos(height) * np.cos(angle), np.cos(height) * np.sin(angle), np.sin(height)])
    seen = faces([parts for _, parts in things], camera, sun)
    cast = shadows([part for _, parts in things for part in parts], sun)
    image = _drawn(camera, seen, cast, sun, rng.uniform(*look.haze), rng)
    boxes, labels = [], []
    for (name, parts), share in zip(things, shares(seen, len(things), side), strict=True):
        box = _box(parts, camera)
        if box is not None and share >= VISIBLE:
            boxes.append(box)
            labels.append(NAMES.index(name))
    return _taken(image, rng.uniform(*look.blur), rng), boxes, labels


def _camera(look: Style, rng: np.random.Generator, side: int) -> Camera:
    """Looks at the origin, nearly."""
    height, distance, yaw = rng.uniform(*look.height), rng.uniform(*look.distance), rng.uniform(0, 2 * np.pi)
    at = np.array([-distance * np.cos(yaw), -distance * np.sin(yaw), height])
    pitch = np.arctan2(height - 0.8, distance) + rng.normal(0, 0.04)
    return Camera(at, yaw + rng.normal(0, 0.05), pitch, rng.uniform(-look.roll, look.roll), 0.95 * side, side)


def _things(
    style: str, look: Style, camera: Camera, rng: np.random.Generator
) -> list[tuple[str, list[Part]]]:
    """Their names and parts, apart from each other."""
    names = list(rng.choice(list(KNOWN), rng.integers(1, 4)))
    if style == "novel":
        names = [*rng.choice(list(NOVEL), 1), *names[: rng.integers(0, 2)]]
    found, places = [], []
    for name in names:
        for _ in range(20):
            place = rng.uniform(-4.5, 4.5, 2) if places else rng.uniform(-1.5, 1.5, 2)
            if all(np.hypot(*(place - other)) > 3.6 for other in places):
                places.append(place)
                parts = (KNOWN | NOVEL)[name](rng)
                at, yaw, size = np.array([*place, 0.0]), rng.uniform(0, 2 * np.pi), rng.uniform(*look.size)
                found.append((str(name), [part.placed(at, yaw, size) for part in parts]))
                break
    return found


def _box(parts: list[Part], camera: Camera) -> list[float] | None:
    """Around what can be seen of a thing; None where that is hardly anything."""
    pixels, depth = camera.seen(np.concatenate([part.points for part in parts]))
    if depth.min() < 0.3:
        return None
    whole = np.concatenate([pixels.min(axis=0), pixels.max(axis=0)])
    cut = np.clip(whole, 0, camera.side)
    sides, full = cut[2:] - cut[:2], whole[2:] - whole[:2]
    if sides.max() < LEAST or np.prod(sides) < 0.35 * np.prod(full):
        return None
    return cut.tolist()


def _drawn(
    camera: Camera, seen: list[Face], cast: list[Array], sun: Array, haze: float, rng: np.random.Generator
) -> Array:
    """The picture from 0 to 1, shape [side, side, 3]."""
    side = camera.side
    soil = np.array([0.62, 0.42, 0.30]) * rng.uniform(0.8, 1.1) + rng.normal(0, 0.03, 3)
    sky = np.array([0.80, 0.70, 0.60]) * rng.uniform(0.7, 1.1)
    places, distance = camera.ground()
    shift, ground_number = rng.uniform(0, METRES, 2), int(rng.integers(GROUNDS))
    index = np.floor((places + shift) / METRES * TEXELS).astype(np.int64) % TEXELS
    light = 0.3 + 0.75 * sun[2]
    shaded = texture(ground_number)[index[..., 0], index[..., 1]] * light
    dark = Image.new("L", (side * FINER, side * FINER), 0)
    pen = ImageDraw.Draw(dark)
    for outline in cast:
        pixels, depth = camera.seen(outline)
        if depth.min() > 0.3:
            pen.polygon([tuple(p) for p in pixels * FINER], fill=255)
    covered = np.asarray(dark.resize((side, side), Image.Resampling.BOX), dtype=np.float64) / 255
    ground = soil * (shaded * (1 - 0.6 * covered))[..., None]
    clear = np.where(np.isfinite(distance), np.exp(-haze * np.minimum(distance, 1e4)), 0.0)[..., None]
    image = Image.fromarray(_bytes(ground * clear + sky * (1 - clear)))
    image = image.resize((side * FINER, side * FINER), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(image)
    for face in seen:
        veil = np.exp(-haze * face.distance)
        fill = _bytes(face.colour * veil + sky * (1 - veil))
        pen.polygon([tuple(p) for p in face.pixels * FINER], fill=tuple(fill.tolist()))
    return np.asarray(image.resize((side, side), Image.Resampling.BOX), dtype=np.float64) / 255


def _taken(image: Array, blur: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """As a camera takes it: blurred along a line, with its gain and its noise."""
    steps = int(np.ceil(blur))
    if steps > 1:
        along = rng.uniform(0, 2 * np.pi)
        moved = [
            np.roll(image, (round(k * np.sin(along)), round(k * np.cos(along))), axis=(0, 1))
            for k in range(steps)
        ]
        image = np.mean(moved, axis=0)
    image = image * rng.uniform(0.85, 1.15) + rng.normal(0, 0.015, image.shape)
    soft = Image.fromarray(_bytes(image)).filter(ImageFilter.GaussianBlur(rng.uniform(0.0, 0.5)))
    return np.asarray(soft)


def _bytes(values: Array) -> NDArray[np.uint8]:
    return (np.clip(values, 0.0, 1.0) * 255).astype(np.uint8)
