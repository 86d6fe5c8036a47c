"""One picture of a scene: things on a ground, in a light, through haze, as a camera takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .scene_objects import Array, Part
from .scene_view import METRES, TEXELS, Camera, Face, faces, shadows, shares, texture

LEAST = 6.0  # pixels of a box's longer side; what is smaller counts as not there
VISIBLE = 0.35  # of a thing: what others hide more of counts as not there
GROUNDS = 32  # textures
FINER = 2  # drawn so many times larger, for smooth edges


@dataclass(frozen=True)
class Ground:
    """What the things stand on, and the sky above.

    Args:
        soil, sky: Their colours, from 0 to 1, shape [3].
        shift: Of the texture, in metres, shape [2].
        number: Of the texture.
    """

    soil: Array
    sky: Array
    shift: Array
    number: int


def random_ground(rng: np.random.Generator) -> Ground:
    """One of many."""
    soil = np.array([0.62, 0.42, 0.30]) * rng.uniform(0.8, 1.1) + rng.normal(0, 0.03, 3)
    sky = np.array([0.80, 0.70, 0.60]) * rng.uniform(0.7, 1.1)
    return Ground(soil, sky, rng.uniform(0, METRES, 2), int(rng.integers(GROUNDS)))


def towards(height: float, angle: float) -> Array:
    """Unit vector to a sun so many degrees above the horizon; the angle about the upright axis in radians."""
    up = np.radians(height)
    return np.array([np.cos(up) * np.cos(angle), np.cos(up) * np.sin(angle), np.sin(up)])


def view(
    things: Sequence[tuple[str, list[Part]]], camera: Camera, sun: Array, haze: float, ground: Ground
) -> tuple[Array, list[list[float]], list[str]]:
    """What a camera sees: the picture from 0 to 1, [side, side, 3], boxes, and names of what is in them.

    Args:
        things: Names and parts.
        camera: Where it is, and where it looks.
        sun: Unit vector towards it.
        haze: How much of the light it takes, for each metre.
        ground: And sky.
    """
    seen = faces([parts for _, parts in things], camera, sun)
    cast = shadows([part for _, parts in things for part in parts], sun)
    image = _drawn(camera, seen, cast, sun, haze, ground)
    boxes, names = [], []
    for (name, parts), share in zip(things, shares(seen, len(things), camera.side), strict=True):
        box = _box(parts, camera)
        if box is not None and share >= VISIBLE:
            boxes.append(box)
            names.append(name)
    return image, boxes, names


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
    camera: Camera, seen: list[Face], cast: list[Array], sun: Array, haze: float, ground: Ground
) -> Array:
    """The picture from 0 to 1, shape [side, side, 3]."""
    from PIL import Image, ImageDraw

    side = camera.side
    sky = ground.sky
    places, distance = camera.ground()
    index = np.floor((places + ground.shift) / METRES * TEXELS).astype(np.int64) % TEXELS
    light = 0.3 + 0.75 * sun[2]
    shaded = texture(ground.number)[index[..., 0], index[..., 1]] * light
    dark = Image.new("L", (side * FINER, side * FINER), 0)
    pen = ImageDraw.Draw(dark)
    for outline in cast:
        pixels, depth = camera.seen(outline)
        if depth.min() > 0.3:
            pen.polygon([tuple(p) for p in pixels * FINER], fill=255)
    covered = np.asarray(dark.resize((side, side), Image.Resampling.BOX), dtype=np.float64) / 255
    soil = ground.soil * (shaded * (1 - 0.6 * covered))[..., None]
    clear = np.where(np.isfinite(distance), np.exp(-haze * np.minimum(distance, 1e4)), 0.0)[..., None]
    image = Image.fromarray(_bytes(soil * clear + sky * (1 - clear)))
    image = image.resize((side * FINER, side * FINER), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(image)
    for face in seen:
        veil = np.exp(-haze * face.distance)
        fill = _bytes(face.colour * veil + sky * (1 - veil))
        pen.polygon([tuple(p) for p in face.pixels * FINER], fill=tuple(fill.tolist()))
    return np.asarray(image.resize((side, side), Image.Resampling.BOX), dtype=np.float64) / 255


def taken(image: Array, blur: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """As a camera takes it: blurred along a line, with its gain and its noise."""
    if np.ceil(blur) > 1:
        image = blurred(image, blur, rng.uniform(0, 2 * np.pi))
    gain, noise = rng.uniform(0.85, 1.15), rng.normal(0, 0.015, image.shape)
    return exposed(image, gain, noise, rng.uniform(0.0, 0.5))


def blurred(image: Array, blur: float, along: float) -> Array:
    """The mean of pictures moved along a line, so many pixels in all; the angle in radians."""
    moved = [
        np.roll(image, (round(k * np.sin(along)), round(k * np.cos(along))), axis=(0, 1))
        for k in range(max(1, int(np.ceil(blur))))
    ]
    return np.mean(moved, axis=0)


def exposed(image: Array, gain: float, noise: Array, soft: float) -> NDArray[np.uint8]:
    """With a gain and noise, and out of focus by so many pixels; uint8."""
    from PIL import Image, ImageFilter

    taken = Image.fromarray(_bytes(image * gain + noise))
    return np.asarray(taken.filter(ImageFilter.GaussianBlur(soft)))


def _bytes(values: Array) -> NDArray[np.uint8]:
    return (np.clip(values, 0.0, 1.0) * 255).astype(np.uint8)
