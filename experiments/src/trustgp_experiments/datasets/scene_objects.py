"""Things that stand on the ground of a scene: convex parts with flat faces, in metres."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Colour = Point = tuple[float, float, float]

WHITE, GREY, DARK = (0.85, 0.85, 0.82), (0.5, 0.5, 0.52), (0.13, 0.13, 0.14)
GOLD, BLUE, RED, GREEN = (0.80, 0.60, 0.18), (0.12, 0.16, 0.42), (0.65, 0.16, 0.10), (0.28, 0.42, 0.25)


@dataclass(frozen=True)
class Part:
    """A convex body."""

    points: Array  # its corners, [k, 3], z upwards
    faces: list[list[int]]  # of each its corners, in order around it, seen from outside against the clock
    colour: Colour  # from 0 to 1

    def placed(self, at: Array, yaw: float, size: float) -> Part:
        """Turned about the upright axis, made larger, and put there."""
        c, s = np.cos(yaw), np.sin(yaw)
        turn = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        return Part(size * self.points @ turn.T + at, self.faces, self.colour)


def frustum(low: Point, high: Point, radii: tuple[float, float], colour: Colour, sides: int = 8) -> Part:
    """A cylinder or cone between two points; four sides make a beam."""
    start, end = np.array(low), np.array(high)
    axis = (end - start) / np.linalg.norm(end - start)
    helper = np.array([0.0, 0.0, 1.0]) if abs(axis[2]) < 0.9 else np.array([1.0, 0.0, 0.0])
    first = np.cross(axis, helper)
    first /= np.linalg.norm(first)
    second = np.cross(axis, first)
    angle = np.arange(sides) * 2 * np.pi / sides + np.pi / sides
    ring = np.cos(angle)[:, None] * first + np.sin(angle)[:, None] * second
    points = np.concatenate([start + radii[0] * ring, end + radii[1] * ring])
    around = [[i, (i + 1) % sides, sides + (i + 1) % sides, sides + i] for i in range(sides)]
    caps = [list(range(sides))[::-1], list(range(sides, 2 * sides))]
    return Part(points, around + caps, colour)


def block(centre: Point, size: Point, colour: Colour) -> Part:
    """A box along the axes."""
    around = ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5))
    corners = np.array([[x, y, z] for z in (-0.5, 0.5) for x, y in around])
    faces = [[3, 2, 1, 0], [4, 5, 6, 7], [0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [3, 0, 4, 7]]
    return Part(corners * np.array(size) + np.array(centre), faces, colour)


def ball(centre: Point, radius: float, colour: Colour, rough: Array | None = None) -> Part:
    """A ball of flat faces; `rough` moves its 26 corners in or out."""
    rings, angle = [np.array([[0.0, 0.0, -1.0]])], np.arange(8) * np.pi / 4
    for z in (-0.7, 0.0, 0.7):
        wide = np.sqrt(1 - z * z)
        rings.append(np.stack([wide * np.cos(angle), wide * np.sin(angle), np.full(8, z)], axis=1))
    rings.append(np.array([[0.0, 0.0, 1.0]]))
    points = np.concatenate(rings) * (1.0 if rough is None else rough[:, None]) * radius + np.array(centre)
    faces = [[0, 1 + (i + 1) % 8, 1 + i] for i in range(8)]
    for ring in (1, 9):
        faces += [[ring + i, ring + (i + 1) % 8, ring + 8 + (i + 1) % 8, ring + 8 + i] for i in range(8)]
    faces += [[17 + i, 17 + (i + 1) % 8, 25] for i in range(8)]
    return Part(points, faces, colour)


def _tinted(colour: Colour, rng: np.random.Generator) -> Colour:
    red, green, blue = (float(rng.uniform(0.9, 1.1)) * part for part in colour)
    return red, green, blue


def rover(rng: np.random.Generator) -> list[Part]:
    """Six wheels, a body with a panel, a mast with a camera."""
    parts = [block((0, 0, 0.75), (1.7, 1.1, 0.4), _tinted(WHITE, rng))]
    for x in (-0.8, 0.0, 0.8):
        for y in (-0.75, 0.75):
            parts.append(frustum((x, y - 0.13, 0.28), (x, y + 0.13, 0.28), (0.28, 0.28), DARK))
        parts.append(block((x, 0, 0.42), (0.1, 1.3, 0.1), GREY))
    parts.append(block((-0.35, 0, 1.02), (1.3, 1.7, 0.06), BLUE))
    parts.append(frustum((0.65, 0.25, 0.95), (0.65, 0.25, 1.75), (0.06, 0.06), GREY, 6))
    parts.append(block((0.7, 0.25, 1.83), (0.26, 0.5, 0.2), WHITE))
    return parts


def lander(rng: np.random.Generator) -> list[Part]:
    """An eight-sided body on four legs, with an engine and a dish."""
    parts = [frustum((0, 0, 0.9), (0, 0, 1.9), (1.2, 1.0), _tinted(GOLD, rng))]
    parts.append(frustum((0, 0, 1.9), (0, 0, 2.4), (0.7, 0.55), GREY))
    parts.append(frustum((0, 0, 0.35), (0, 0, 0.9), (0.5, 0.25), DARK))
    for angle in np.arange(4) * np.pi / 2 + np.pi / 4:
        c, s = float(np.cos(angle)), float(np.sin(angle))
        parts.append(frustum((2.0 * c, 2.0 * s, 0.08), (0.95 * c, 0.95 * s, 1.5), (0.07, 0.09), GREY, 5))
        parts.append(frustum((2.0 * c, 2.0 * s, 0.0), (2.0 * c, 2.0 * s, 0.1), (0.35, 0.3), WHITE, 7))
    parts.append(frustum((0.2, 0.1, 2.5), (0.45, 0.2, 2.85), (0.08, 0.5), WHITE))
    return parts


def rock(rng: np.random.Generator) -> list[Part]:
    """A rough boulder with a smaller one on it, banded."""
    parts: list[Part] = []
    shade = float(rng.uniform(0.3, 0.55))
    for k, (radius, height) in enumerate(((1.0, 0.6), (0.7, 1.3), (0.4, 1.9))):
        colour = (shade + 0.1 * k, shade * (0.9 + 0.1 * k), shade * 0.75)
        at = (float(rng.normal(0, 0.25)), float(rng.normal(0, 0.25)), height)
        parts.append(ball(at, radius, colour, rng.uniform(0.7, 1.15, 26)))
    return parts


def astronaut(rng: np.random.Generator) -> list[Part]:
    """Legs, trunk, arms, a pack and a helmet."""
    lift = float(rng.uniform(-0.3, 0.3))
    parts = [block((lift * side, 0.2 * side, 0.45), (0.3, 0.28, 0.9), WHITE) for side in (-1, 1)]
    parts.append(block((0, 0, 1.25), (0.45, 0.75, 0.75), WHITE))
    parts.append(block((-0.4, 0, 1.3), (0.35, 0.65, 0.85), GREY))
    for side in (-1, 1):
        parts.append(frustum((0, 0.5 * side, 1.5), (0.35, 0.75 * side, 0.9 + lift), (0.14, 0.11), WHITE, 6))
    parts.append(ball((0.05, 0, 1.85), 0.3, WHITE))
    parts.append(block((0.28, 0, 1.85), (0.12, 0.35, 0.28), GOLD))
    return parts


def tracked_rover(rng: np.random.Generator) -> list[Part]:
    """A rover of another kind: tracks, a low red body with a dome, an arm."""
    parts = [block((0, 0.65 * side, 0.3), (2.0, 0.4, 0.55), DARK) for side in (-1, 1)]
    parts.append(frustum((0, 0, 0.45), (0, 0, 0.85), (1.0, 0.75), RED, 6))
    parts.append(ball((-0.2, 0, 0.95), 0.45, GREEN))
    reach = float(rng.uniform(0.8, 1.5))
    parts.append(frustum((0.5, 0, 0.85), (1.0, 0, reach + 0.4), (0.09, 0.07), GREY, 5))
    parts.append(frustum((1.0, 0, reach + 0.4), (1.7, 0.2, reach), (0.07, 0.05), GREY, 5))
    return parts


Things = dict[str, Callable[[np.random.Generator], list[Part]]]
KNOWN: Things = {"rover": rover, "lander": lander}
NOVEL: Things = {"rock": rock, "astronaut": astronaut, "tracked rover": tracked_rover}
