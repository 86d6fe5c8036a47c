"""A camera above the ground, and what it sees: faces, shadows, haze."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError

from .scene_objects import Array, Part

TEXELS = 256  # along a side of the ground's texture
METRES = 24.0  # after which the texture comes again
NEAR = 0.3  # what is closer is not drawn


@dataclass(frozen=True)
class Camera:
    """A pinhole.

    Args:
        at: Where it is, z above the ground.
        yaw, pitch, roll: Of the line of sight: about the upright axis, downwards, and about itself.
        focal: In pixels.
        side: Of the square image, in pixels.
    """

    at: Array
    yaw: float
    pitch: float
    roll: float
    focal: float
    side: int

    @property
    def axes(self) -> Array:
        """Right, down and forward as rows, shape [3, 3]."""
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
        """Where each pixel's ray meets the ground, [side, side, 2], and how far off; inf: it does not."""
        lines = (np.arange(self.side) + 0.5 - self.side / 2) / self.focal
        x, y = np.meshgrid(lines, lines)
        rays = np.stack([x, y, np.ones_like(x)], axis=-1) @ self.axes
        downward = np.minimum(rays[..., 2], -1e-6)
        reach = -self.at[2] / downward
        distance = np.where(rays[..., 2] < -1e-4, reach * np.linalg.norm(rays, axis=-1), np.inf)
        return self.at[:2] + reach[..., None] * rays[..., :2], distance


@cache
def texture(number: int) -> Array:
    """Hills, craters and pebbles of a ground, about 1, shape [TEXELS, TEXELS]; its edges meet."""
    rng = np.random.default_rng([1, number])
    lines = np.fft.fftfreq(TEXELS) * TEXELS
    power = np.hypot(lines[:, None], lines[None]) + 1.0
    noise = np.fft.fft2(rng.standard_normal((TEXELS, TEXELS)))
    rough = np.real(np.fft.ifft2(noise / power**1.1))
    fine = rng.standard_normal((TEXELS, TEXELS))
    found = 1.0 + 0.16 * rough / rough.std() + 0.05 * fine
    grid = np.arange(TEXELS)
    for _ in range(rng.integers(4, 14)):
        centre, radius = rng.uniform(0, TEXELS, 2), rng.uniform(4, 18)
        offsets = [(grid - c + TEXELS / 2) % TEXELS - TEXELS / 2 for c in centre]
        off = np.hypot(offsets[0][:, None], offsets[1][None]) / radius
        slope = offsets[0][:, None] / radius * np.ones_like(off)
        found += 0.35 * np.where(off < 1, slope, 0.0) - 0.2 * np.exp(-(((off - 1) / 0.15) ** 2)) * np.sign(
            slope
        )
    return np.clip(found, 0.25, 1.9)


def hull(points: Array) -> NDArray[np.int64]:
    """Corners of the convex hull of points in the plane, in order; empty where they lie on a line."""
    try:
        return ConvexHull(points).vertices.astype(np.int64)
    except (QhullError, ValueError):
        return np.zeros(0, dtype=np.int64)


def shadows(parts: Sequence[Part], sun: Array) -> list[Array]:
    """Outlines of the shadows on the ground, [k, 3] each.

    Args:
        parts: What throws them.
        sun: Unit vector towards it, upwards.
    """
    found = []
    for part in parts:
        flat = part.points - part.points[:, 2:] / sun[2] * sun
        flat[:, 2] = 0.0
        corners = hull(flat[:, :2])
        if len(corners):
            found.append(flat[corners])
    return found


@dataclass(frozen=True)
class Face:
    """One side of a part, as the camera sees it.

    Args:
        thing: Which one it belongs to.
        distance: In metres.
        pixels: Its corners, shape [k, 2].
        colour: In this light, from 0 to 1, shape [3].
    """

    thing: int
    distance: float
    pixels: Array
    colour: Array


def faces(things: Sequence[Sequence[Part]], camera: Camera, sun: Array) -> list[Face]:
    """What is turned to the camera, the farthest first; lit by the sun and, a little, by the sky."""
    found = []
    for thing, part in ((i, part) for i, parts in enumerate(things) for part in parts):
        pixels, depth = camera.seen(part.points)
        for corners in part.faces:
            outline = part.points[corners]
            normal = np.cross(outline[1] - outline[0], outline[2] - outline[0])
            length = float(np.linalg.norm(normal))
            centre = outline.mean(axis=0)
            if length == 0.0 or depth[corners].min() < NEAR:
                continue
            middle = part.points.mean(axis=0)
            normal = normal / length * np.sign((centre - middle) @ normal)
            if (camera.at - centre) @ normal <= 0:
                continue
            light = 0.28 + 0.85 * max(0.0, float(normal @ sun))
            colour = np.clip(np.array(part.colour) * light, 0.0, 1.0)
            found.append(Face(thing, float(np.linalg.norm(centre - camera.at)), pixels[corners], colour))
    return sorted(found, key=lambda face: -face.distance)


def shares(seen: Sequence[Face], things: int, side: int) -> list[float]:
    """Of each thing, how much of its outline no other hides, in [0, 1].

    Args:
        seen: As `faces` gives them.
        things: How many there are.
        side: Of the picture.
    """
    from PIL import Image, ImageDraw

    def counted(some: Sequence[Face]) -> NDArray[np.int64]:
        mask = Image.new("L", (side, side), 0)
        pen = ImageDraw.Draw(mask)
        for face in some:
            pen.polygon([tuple(p) for p in face.pixels], fill=face.thing + 1)
        return np.bincount(np.asarray(mask).ravel(), minlength=things + 1)

    together = counted(seen)
    alone = [counted([face for face in seen if face.thing == i])[i + 1] for i in range(things)]
    return [float(together[i + 1] / max(1, alone[i])) for i in range(things)]
