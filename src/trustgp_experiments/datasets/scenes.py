"""Pictures of a planet's ground with a rover and a lander, seen from a drone, and where they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .scene_objects import KNOWN, NOVEL, Part
from .scene_picture import random_ground, taken, towards, view
from .scene_view import Camera

CLASSES = tuple(KNOWN)
NAMES = (*KNOWN, *NOVEL)
STYLES = ("carry", "flight", "novel")


@dataclass(frozen=True)
class SceneStyle:
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


CARRY = SceneStyle((1.5, 6.0), (5.0, 13.0), 0.05, (25.0, 70.0), (0.0, 0.02), (0.0, 0.0), (0.8, 1.2))
FLIGHT = SceneStyle((7.0, 14.0), (2.0, 9.0), 0.35, (8.0, 22.0), (0.01, 0.05), (0.0, 6.0), (0.6, 1.3))


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
    return gathered(found, side)


def gathered(found: list[tuple[NDArray[np.uint8], list, list]], side: int) -> Scenes:
    """Pictures [side, side, 3] with their boxes and labels."""
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
    sun = towards(rng.uniform(*look.sun), rng.uniform(0, 2 * np.pi))
    haze, ground = rng.uniform(*look.haze), random_ground(rng)
    image, boxes, names = view(things, camera, sun, haze, ground)
    return taken(image, rng.uniform(*look.blur), rng), boxes, [NAMES.index(name) for name in names]


def _camera(look: SceneStyle, rng: np.random.Generator, side: int) -> Camera:
    """Looks at the origin, nearly."""
    height, distance, yaw = rng.uniform(*look.height), rng.uniform(*look.distance), rng.uniform(0, 2 * np.pi)
    at = np.array([-distance * np.cos(yaw), -distance * np.sin(yaw), height])
    pitch = np.arctan2(height - 0.8, distance) + rng.normal(0, 0.04)
    return Camera(at, yaw + rng.normal(0, 0.05), pitch, rng.uniform(-look.roll, look.roll), 0.95 * side, side)


def _things(
    style: str, look: SceneStyle, camera: Camera, rng: np.random.Generator
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
