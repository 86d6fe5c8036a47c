"""Rendering of a picture of a scene: lit objects on a ground, in haze, seen by a camera above it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError

from .scene_objects import Array, Part

TEXELS = 256  # along a side of the ground's texture
METRES = 24.0  # period of the texture
NEAR = 0.3  # closer faces are not drawn
MIN_BOX = 6.0  # pixels of a box's longer side; a smaller object counts as absent
VISIBLE = 0.35  # share of an object in the picture and not hidden; below, it counts as absent
GROUNDS = 32  # textures
FINER = 2  # factor of oversampling, for smooth edges


@dataclass(frozen=True)
class Camera:
    """A pinhole camera; angles, in radians, are of its line of sight."""

    at: Array  # position, z above the ground
    yaw: float  # about the upright axis
    pitch: float  # downwards
    roll: float  # about the line of sight
    focal: float  # in pixels
    side: int  # of the square image, in pixels

    @property
    def axes(self) -> Array:
        """Directions right, down and forward as rows, shape [3, 3]."""
        cy, sy, cp, sp = np.cos(self.yaw), np.sin(self.yaw), np.cos(self.pitch), np.sin(self.pitch)
        forward = np.array([cy * cp, sy * cp, -sp])
        right = np.array([sy, -cy, 0.0])
        down = np.cross(forward, right)
        cr, sr = np.cos(self.roll), np.sin(self.roll)
        return np.stack([cr * right + sr * down, cr * down - sr * right, forward])

    def seen(self, points: Array) -> tuple[Array, Array]:
        """Pixels [k, 2] and depths [k] of points [k, 3]."""
        local = (points - self.at) @ self.axes.T
        depth = np.maximum(local[:, 2], NEAR)
        return self.focal * local[:, :2] / depth[:, None] + self.side / 2, local[:, 2]

    def ground(self) -> tuple[Array, Array]:
        """Points [side, side, 2] where pixels' rays meet the ground, and their distances (inf: none)."""
        lines = (np.arange(self.side) + 0.5 - self.side / 2) / self.focal
        x, y = np.meshgrid(lines, lines)
        rays = np.stack([x, y, np.ones_like(x)], axis=-1) @ self.axes
        reach = -self.at[2] / np.minimum(rays[..., 2], -1e-6)
        distance = np.where(rays[..., 2] < -1e-4, reach * np.linalg.norm(rays, axis=-1), np.inf)
        return self.at[:2] + reach[..., None] * rays[..., :2], distance


@cache
def texture(number: int) -> Array:
    """Brightness around 1 of a ground with hills, craters and pebbles, [TEXELS, TEXELS]; it tiles."""
    rng = np.random.default_rng([1, number])
    lines = np.fft.fftfreq(TEXELS) * TEXELS
    power = np.hypot(lines[:, None], lines[None]) + 1.0
    noise = np.fft.fft2(rng.standard_normal((TEXELS, TEXELS)))
    rough = np.real(np.fft.ifft2(noise / power**1.1))
    brightness = 1.0 + 0.16 * rough / rough.std() + 0.05 * rng.standard_normal((TEXELS, TEXELS))
    grid = np.arange(TEXELS)
    for _ in range(rng.integers(4, 14)):
        centre, radius = rng.uniform(0, TEXELS, 2), rng.uniform(4, 18)
        offsets = [(grid - c + TEXELS / 2) % TEXELS - TEXELS / 2 for c in centre]
        off = np.hypot(offsets[0][:, None], offsets[1][None]) / radius
        slope = offsets[0][:, None] / radius * np.ones_like(off)
        rim = np.exp(-(((off - 1) / 0.15) ** 2))
        brightness += 0.35 * np.where(off < 1, slope, 0.0) - 0.2 * rim * np.sign(slope)
    return np.clip(brightness, 0.25, 1.9)


def shadows(parts: Sequence[Part], sun: Array) -> list[Array]:
    """Outlines of the shadows of parts on the ground, [k, 3] each; `sun` is a unit vector towards it."""
    outlines = []
    for part in parts:
        flat = part.points - part.points[:, 2:] / sun[2] * sun
        flat[:, 2] = 0.0
        with suppress(QhullError, ValueError):  # its points lie on a line
            outlines.append(flat[ConvexHull(flat[:, :2]).vertices])
    return outlines


@dataclass(frozen=True)
class Face:
    """One side of a part, as the camera sees it."""

    thing: int  # number of the object it belongs to
    distance: float  # in metres
    pixels: Array  # its corners                    [k, 2]
    colour: Array  # in this light, from 0 to 1     [3]


def faces(things: Sequence[Sequence[Part]], camera: Camera, sun: Array) -> list[Face]:
    """Faces turned to the camera, the farthest first, lit by the sun and slightly by the sky."""
    visible = []
    for thing, part in ((i, part) for i, parts in enumerate(things) for part in parts):
        pixels, depth = camera.seen(part.points)
        for corners in part.faces:
            outline = part.points[corners]
            normal = np.cross(outline[1] - outline[0], outline[2] - outline[0])
            length, centre = float(np.linalg.norm(normal)), outline.mean(axis=0)
            if length == 0.0 or depth[corners].min() < NEAR:
                continue
            normal = normal / length * np.sign((centre - part.points.mean(axis=0)) @ normal)
            if (camera.at - centre) @ normal > 0:
                light = 0.28 + 0.85 * max(0.0, float(normal @ sun))
                colour = np.clip(np.array(part.colour) * light, 0.0, 1.0)
                distance = float(np.linalg.norm(centre - camera.at))
                visible.append(Face(thing, distance, pixels[corners], colour))
    return sorted(visible, key=lambda face: -face.distance)


def shares(seen: Sequence[Face], things: int, side: int) -> list[float]:
    """Share in [0, 1] of the outline of each object that no other hides; `seen` comes from `faces`."""
    from PIL import Image, ImageDraw

    def counted(drawn: Sequence[Face]) -> NDArray[np.int64]:
        mask = Image.new("L", (side, side), 0)
        pen = ImageDraw.Draw(mask)
        for face in drawn:
            pen.polygon([tuple(p) for p in face.pixels], fill=face.thing + 1)
        return np.bincount(np.asarray(mask).ravel(), minlength=things + 1)

    together = counted(seen)
    single = [counted([face for face in seen if face.thing == i])[i + 1] for i in range(things)]
    return [float(together[i + 1] / max(1, single[i])) for i in range(things)]


@dataclass(frozen=True)
class Ground:
    """The ground below the objects, and the sky above; colours from 0 to 1."""

    soil: Array  # its colour                       [3]
    sky: Array  # its colour                        [3]
    shift: Array  # of the texture, in metres       [2]
    number: int  # of the texture


def random_ground(rng: np.random.Generator) -> Ground:
    """A random ground."""
    soil = np.array([0.62, 0.42, 0.30]) * rng.uniform(0.8, 1.1) + rng.normal(0, 0.03, 3)
    sky = np.array([0.80, 0.70, 0.60]) * rng.uniform(0.7, 1.1)
    return Ground(soil, sky, rng.uniform(0, METRES, 2), int(rng.integers(GROUNDS)))


def towards(height: float, angle: float) -> Array:
    """Unit vector to a sun `height` degrees above the horizon; `angle` about the upright axis, in radians."""
    up = np.radians(height)
    return np.array([np.cos(up) * np.cos(angle), np.cos(up) * np.sin(angle), np.sin(up)])


def view(
    things: Sequence[tuple[str, list[Part]]], camera: Camera, sun: Array, haze: float, ground: Ground
) -> tuple[Array, list[list[float]], list[str]]:
    """Picture of a camera from 0 to 1, [side, side, 3], boxes, and names of the objects in them.

    `things` are names and parts, `sun` is a unit vector towards it, `haze` absorbs light per metre.
    """
    seen = faces([parts for _, parts in things], camera, sun)
    cast = shadows([part for _, parts in things for part in parts], sun)
    image = _drawn(camera, seen, cast, sun, haze, ground)
    boxes, names = [], []
    for (name, parts), share in zip(things, shares(seen, len(things), camera.side), strict=True):
        pixels, depth = camera.seen(np.concatenate([part.points for part in parts]))
        whole = np.concatenate([pixels.min(axis=0), pixels.max(axis=0)])
        cut = np.clip(whole, 0, camera.side)
        sides, full = cut[2:] - cut[:2], whole[2:] - whole[:2]
        large = sides.max() >= MIN_BOX and np.prod(sides) >= VISIBLE * np.prod(full)
        if large and depth.min() >= NEAR and share >= VISIBLE:
            boxes.append(cut.tolist())
            names.append(name)
    return image, boxes, names


def _drawn(
    camera: Camera, seen: list[Face], cast: list[Array], sun: Array, haze: float, ground: Ground
) -> Array:
    """Picture from 0 to 1, shape [side, side, 3]."""
    from PIL import Image, ImageDraw

    side, sky = camera.side, ground.sky
    places, distance = camera.ground()
    index = np.floor((places + ground.shift) / METRES * TEXELS).astype(np.int64) % TEXELS
    light = 0.3 + 0.75 * sun[2]
    shaded = texture(ground.number)[index[..., 0], index[..., 1]] * light
    dark = Image.new("L", (side * FINER, side * FINER), 0)
    pen = ImageDraw.Draw(dark)
    for outline in cast:
        pixels, depth = camera.seen(outline)
        if depth.min() > NEAR:
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


def blurred(image: Array, blur: float, along: float) -> Array:
    """Mean of a picture moved by up to `blur` pixels at the angle `along`, in radians."""
    moved = [
        np.roll(image, (round(k * np.sin(along)), round(k * np.cos(along))), axis=(0, 1))
        for k in range(max(1, int(np.ceil(blur))))
    ]
    return np.mean(moved, axis=0)


def exposed(image: Array, gain: float, noise: Array, soft: float) -> NDArray[np.uint8]:
    """Picture with a gain and noise, out of focus by `soft` pixels, uint8."""
    from PIL import Image, ImageFilter

    taken = Image.fromarray(_bytes(image * gain + noise))
    return np.asarray(taken.filter(ImageFilter.GaussianBlur(soft)))


def _bytes(values: Array) -> NDArray[np.uint8]:
    return (np.clip(values, 0.0, 1.0) * 255).astype(np.uint8)
