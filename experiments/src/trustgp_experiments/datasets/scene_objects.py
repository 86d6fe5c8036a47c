"""Objects on the ground of a scene: convex parts with flat faces, in metres."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Colour = Point = tuple[float, float, float]

WHITE, GREY, DARK = (0.85, 0.85, 0.82), (0.5, 0.5, 0.52), (0.13, 0.13, 0.14)
GOLD, BLUE, RED, GREEN = (0.80, 0.60, 0.18), (0.12, 0.16, 0.42), (0.65, 0.16, 0.10), (0.28, 0.42, 0.25)
ORANGE, YELLOW, TEAL = (0.85, 0.42, 0.08), (0.85, 0.75, 0.15), (0.15, 0.45, 0.48)
WOOD, PALE, BLACK = (0.58, 0.38, 0.16), (0.72, 0.76, 0.82), (0.06, 0.06, 0.07)
UPRIGHT = np.array([0.0, 0.0, 1.0])


@dataclass(frozen=True)
class Part:
    """A convex body."""

    points: Array  # its corners, [k, 3], z upwards
    faces: list[list[int]]  # corners of each, anticlockwise as seen from outside
    colour: Colour  # from 0 to 1

    def placed(self, at: Array, yaw: float, size: float) -> Part:
        """Part turned about the upright axis, scaled, and moved to `at`."""
        c, s = np.cos(yaw), np.sin(yaw)
        turn = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        return Part(size * self.points @ turn.T + at, self.faces, self.colour)


def frustum(low: Point, high: Point, radii: tuple[float, float], colour: Colour, sides: int = 8) -> Part:
    """A cylinder or cone between two points; four sides make a beam."""
    start, end = np.array(low), np.array(high)
    axis = (end - start) / np.linalg.norm(end - start)
    first = np.cross(axis, UPRIGHT if abs(axis[2]) < 0.9 else np.array([1.0, 0.0, 0.0]))
    first /= np.linalg.norm(first)
    second = np.cross(axis, first)
    angle = np.arange(sides) * 2 * np.pi / sides + np.pi / sides
    ring = np.cos(angle)[:, None] * first + np.sin(angle)[:, None] * second
    points = np.concatenate([start + radii[0] * ring, end + radii[1] * ring])
    around = [[i, (i + 1) % sides, sides + (i + 1) % sides, sides + i] for i in range(sides)]
    return Part(points, [*around, list(range(sides))[::-1], list(range(sides, 2 * sides))], colour)


def block(centre: Point, size: Point, colour: Colour) -> Part:
    """A box along the axes."""
    around = ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5))
    corners = np.array([[x, y, z] for z in (-0.5, 0.5) for x, y in around])
    faces = [[3, 2, 1, 0], [4, 5, 6, 7], [0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [3, 0, 4, 7]]
    return Part(corners * np.array(size) + np.array(centre), faces, colour)


def ball(centre: Point, radius: float, colour: Colour, rough: Array | None = None) -> Part:
    """A ball of flat faces; `rough` moves its 26 corners in or out."""
    angle, circles = np.arange(8) * np.pi / 4, [(np.sqrt(1 - z * z), z) for z in (-0.7, 0.0, 0.7)]
    rings = [np.stack([r * np.cos(angle), r * np.sin(angle), np.full(8, z)], axis=1) for r, z in circles]
    points = np.concatenate([-UPRIGHT[None], *rings, UPRIGHT[None]]) * (
        1.0 if rough is None else rough[:, None]
    ) * radius + np.array(centre)
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
    panel, camera = (
        block((-0.35, 0, 1.02), (1.3, 1.7, 0.06), BLUE),
        block((0.7, 0.25, 1.83), (0.26, 0.5, 0.2), WHITE),
    )
    return [*parts, panel, frustum((0.65, 0.25, 0.95), (0.65, 0.25, 1.75), (0.06, 0.06), GREY, 6), camera]


def lander(rng: np.random.Generator) -> list[Part]:
    """An eight-sided body on four legs, with an engine and a dish."""
    parts = [frustum((0, 0, 0.9), (0, 0, 1.9), (1.2, 1.0), _tinted(GOLD, rng))]
    parts.append(frustum((0, 0, 1.9), (0, 0, 2.4), (0.7, 0.55), GREY))
    parts.append(frustum((0, 0, 0.35), (0, 0, 0.9), (0.5, 0.25), DARK))
    for c, s in _around(4, np.pi / 4):
        parts.append(frustum((2.0 * c, 2.0 * s, 0.08), (0.95 * c, 0.95 * s, 1.5), (0.07, 0.09), GREY, 5))
        parts.append(frustum((2.0 * c, 2.0 * s, 0.0), (2.0 * c, 2.0 * s, 0.1), (0.35, 0.3), WHITE, 7))
    return [*parts, frustum((0.2, 0.1, 2.5), (0.45, 0.2, 2.85), (0.08, 0.5), WHITE)]


def rock(rng: np.random.Generator) -> list[Part]:
    """A rough boulder with two smaller ones on it, banded."""
    parts: list[Part] = []
    shade = float(rng.uniform(0.3, 0.55))
    for k, (radius, height) in enumerate(((1.0, 0.6), (0.7, 1.3), (0.4, 1.9))):
        colour = (shade + 0.1 * k, shade * (0.9 + 0.1 * k), shade * 0.75)
        at = (float(rng.normal(0, 0.25)), float(rng.normal(0, 0.25)), height)
        parts.append(ball(at, radius, colour, rng.uniform(0.7, 1.15, 26)))
    return parts


def astronaut(rng: np.random.Generator) -> list[Part]:
    """Legs, trunk, a pack, arms, a helmet and its visor."""
    lift, sides = float(rng.uniform(-0.3, 0.3)), (-1, 1)
    arms = [((0, 0.5 * side, 1.5), (0.35, 0.75 * side, 0.9 + lift)) for side in sides]
    return [
        *(block((lift * side, 0.2 * side, 0.45), (0.3, 0.28, 0.9), WHITE) for side in sides),
        block((0, 0, 1.25), (0.45, 0.75, 0.75), WHITE),
        block((-0.4, 0, 1.3), (0.35, 0.65, 0.85), GREY),
        *(frustum(low, high, (0.14, 0.11), WHITE, 6) for low, high in arms),
        ball((0.05, 0, 1.85), 0.3, WHITE),
        block((0.28, 0, 1.85), (0.12, 0.35, 0.28), GOLD),
    ]


def tracked_rover(rng: np.random.Generator) -> list[Part]:
    """A rover of another kind: tracks, a low red body with a dome, an arm."""
    reach = float(rng.uniform(0.8, 1.5))
    return [
        *(block((0, 0.65 * side, 0.3), (2.0, 0.4, 0.55), DARK) for side in (-1, 1)),
        frustum((0, 0, 0.45), (0, 0, 0.85), (1.0, 0.75), RED, 6),
        ball((-0.2, 0, 0.95), 0.45, GREEN),
        frustum((0.5, 0, 0.85), (1.0, 0, reach + 0.4), (0.09, 0.07), GREY, 5),
        frustum((1.0, 0, reach + 0.4), (1.7, 0.2, reach), (0.07, 0.05), GREY, 5),
    ]


def _around(count: int, start: float = 0.0) -> list[tuple[float, float]]:
    """Cosine and sine of `count` directions, evenly spaced over the circle."""
    angles = np.arange(count) * 2 * np.pi / count + start
    return [(float(np.cos(angle)), float(np.sin(angle))) for angle in angles]


def _one_of(colours: tuple[Colour, ...], rng: np.random.Generator) -> Colour:
    return colours[int(rng.integers(len(colours)))]


def crate(rng: np.random.Generator) -> list[Part]:
    """A box in a frame of beams, and sometimes a smaller one on it."""
    colour, length = _one_of((WOOD, GREEN, TEAL), rng), float(rng.uniform(1.4, 2.0))
    parts = _framed((0.0, 0.0, 0.6), (length, 1.3, 1.2), colour)
    if rng.uniform() < 0.5:
        parts += _framed((0.1, 0.05, 1.56), (0.9, 0.8, 0.7), _one_of((WOOD, YELLOW), rng))
    return parts


def _framed(centre: Point, size: Point, colour: Colour) -> list[Part]:
    """A block with a beam along each upright edge and each edge of its lid."""
    (x, y, z), (length, width, height) = centre, size
    beam, dark = 0.14, (colour[0] * 0.45, colour[1] * 0.45, colour[2] * 0.45)
    parts = [block(centre, size, colour)]
    for side in (-0.5, 0.5):
        for end in (-0.5, 0.5):
            parts.append(block((x + end * length, y + side * width, z), (beam, beam, height), dark))
        parts.append(block((x, y + side * width, z + height / 2), (length + beam, beam, beam), dark))
        parts.append(block((x + side * length, y, z + height / 2), (beam, width + beam, beam), dark))
    return parts


def antenna(rng: np.random.Generator) -> list[Part]:
    """A mast on three legs with a large dish."""
    parts, height = [], float(rng.uniform(1.6, 2.4))
    for c, s in _around(3):
        parts.append(frustum((0.8 * c, 0.8 * s, 0.0), (0.0, 0.0, 0.6 * height), (0.06, 0.06), YELLOW, 4))
    parts.append(frustum((0.0, 0.0, 0.4), (0.0, 0.0, height), (0.09, 0.07), GREY, 6))
    lift = float(rng.uniform(0.2, 0.9))
    c, s = float(np.cos(lift)), float(np.sin(lift))
    ends = [(0.15 + reach * c, 0.0, height + reach * s) for reach in (0.0, 0.15, 0.42)]
    parts.append(frustum(ends[0], ends[1], (0.15, 0.6), PALE, 12))
    parts.append(frustum(ends[1], ends[2], (0.6, 1.0), PALE, 12))
    feed = (ends[2][0] + 0.35 * c, 0.0, ends[2][2] + 0.35 * s)
    return [*parts, frustum(ends[2], feed, (0.05, 0.1), RED, 5)]


def tyre(rng: np.random.Generator) -> list[Part]:
    """A large striped ring, upright and leaning."""
    radius, thick, lean, pieces = 0.85, 0.26, float(rng.uniform(-0.35, 0.35)), 14
    colour = _one_of((ORANGE, YELLOW, RED), rng)

    def at(piece: float) -> Point:
        angle = 2 * np.pi * piece / pieces
        x, up = radius * float(np.cos(angle)), radius * float(np.sin(angle))
        return x, up * float(np.sin(lean)), radius + thick + up * float(np.cos(lean))

    colours = [colour if piece % 2 else BLACK for piece in range(pieces)]
    return [frustum(at(i), at(i + 1.12), (thick, thick), colours[i], 8) for i in range(pieces)]


def drone(rng: np.random.Generator) -> list[Part]:
    """A body on skids, with four arms and a rotor at the end of each."""
    colour, turn = _one_of((ORANGE, TEAL, RED), rng), float(rng.uniform(0, np.pi))
    parts = [frustum((0.0, 0.0, 0.5), (0.0, 0.0, 0.85), (0.42, 0.3), colour, 6)]
    for side in (-0.35, 0.35):
        parts.append(block((0.0, side, 0.05), (1.1, 0.08, 0.08), DARK))
        parts += [block((x, side, 0.28), (0.07, 0.07, 0.46), DARK) for x in (-0.3, 0.3)]
    for k, (c, s) in enumerate((1.15 * c, 1.15 * s) for c, s in _around(4, np.pi / 4)):
        parts.append(frustum((0.2 * c, 0.2 * s, 0.7), (c, s, 0.8), (0.08, 0.06), BLACK, 5))
        parts.append(frustum((c, s, 0.72), (c, s, 0.98), (0.12, 0.1), GREY, 6))
        wide = 0.6 * np.array([np.cos(turn + k), np.sin(turn + k)])
        low, high = (c - wide[0], s - wide[1], 1.02), (c + wide[0], s + wide[1], 1.02)
        parts.append(frustum(low, high, (0.07, 0.07), WHITE, 4))
    return parts


def flag(rng: np.random.Generator) -> list[Part]:
    """A pole with a cloth of two colours that waves."""
    height, waves = float(rng.uniform(2.2, 3.0)), rng.uniform(-0.22, 0.22, 5)
    parts = [frustum((0.0, 0.0, 0.0), (0.0, 0.0, 0.2), (0.4, 0.3), GREY)]
    parts.append(frustum((0.0, 0.0, 0.2), (0.0, 0.0, height), (0.05, 0.05), WHITE, 6))
    first, second = _one_of((RED, BLUE, ORANGE), rng), _one_of((WHITE, YELLOW), rng)
    across = np.concatenate([[0.0], waves])
    for k in range(5):
        ends = np.array([[0.06 + 0.34 * (k + i), across[k + i]] for i in (0, 1)])
        for colour, low, high in ((first, 0.5, 0.0), (second, 1.0, 0.5)):
            parts.append(_panel(ends, (height - low, height - high), colour))
    return parts


def _panel(ends: np.ndarray, heights: tuple[float, float], colour: Colour) -> Part:
    """An upright sheet between two points of the ground, [2, 2]."""
    along = (ends[1] - ends[0]) / np.linalg.norm(ends[1] - ends[0])
    thick = 0.02 * np.array([-along[1], along[0]])
    around = np.stack([ends[0] - thick, ends[1] - thick, ends[1] + thick, ends[0] + thick])
    points = np.concatenate([np.column_stack([around, np.full(4, z)]) for z in heights])
    return Part(points, block((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), colour).faces, colour)


def habitat(rng: np.random.Generator) -> list[Part]:
    """A dome with a stripe, a lamp on top and a tunnel to enter by."""
    stripe = _one_of((TEAL, RED, ORANGE), rng)
    rings = ((1.5, 0.0), (1.5, 0.45), (1.38, 0.75), (1.1, 1.15), (0.6, 1.45), (0.12, 1.55))
    colours = (PALE, stripe, PALE, PALE, PALE)
    parts = [
        frustum((0.0, 0.0, low), (0.0, 0.0, high), (wide, narrow), colour, 12)
        for (wide, low), (narrow, high), colour in zip(rings, rings[1:], colours, strict=False)
    ]
    reach = float(rng.uniform(1.9, 2.4))
    parts.append(frustum((1.3, 0.0, 0.42), (reach, 0.0, 0.42), (0.5, 0.5), WHITE, 8))
    parts.append(frustum((reach, 0.0, 0.42), (reach + 0.06, 0.0, 0.42), (0.38, 0.38), DARK, 8))
    return [*parts, ball((0.0, 0.0, 1.65), 0.14, YELLOW)]


def tent(rng: np.random.Generator) -> list[Part]:
    """A ridge tent with a dark door, poles and pegs."""
    colour, length, height = _one_of((ORANGE, GREEN, BLUE), rng), float(rng.uniform(1.8, 2.6)), 1.4
    outline = ((-1.0, 0.0), (1.0, 0.0), (0.0, height))
    around = [[x, y, z] for x in (0.5 * length, -0.5 * length) for y, z in outline]
    faces = [[0, 1, 2], [5, 4, 3], [1, 4, 5, 2], [3, 0, 2, 5], [0, 3, 4, 1]]
    parts = [Part(np.array(around), faces, colour)]
    front, outline = 0.5 * length + 0.01, ((-0.45, 0.0), (0.45, 0.0), (0.0, 1.05))
    door = np.array([[front + x, y, z] for x in (0.0, 0.02) for y, z in outline])
    parts.append(Part(door, [[2, 1, 0], [3, 4, 5], [0, 1, 4, 3], [1, 2, 5, 4], [2, 0, 3, 5]], DARK))
    for end in (-0.5, 0.5):
        x = end * length
        parts.append(frustum((x, 0.0, height), (x, 0.0, height + 0.35), (0.04, 0.04), GREY, 5))
        parts += [block((1.2 * x, side, 0.08), (0.1, 0.1, 0.16), YELLOW) for side in (-1.2, 1.2)]
    return parts


def tank(rng: np.random.Generator) -> list[Part]:
    """A lying cylinder with rounded ends on two saddles, with a band, a valve and a ladder."""
    colour, reach = _one_of((WHITE, RED, TEAL), rng), float(rng.uniform(0.9, 1.3))
    ends = ((-reach - 0.35, 0.35), (-reach, 0.75), (reach, 0.75), (reach + 0.35, 0.35))
    parts = [
        frustum((low, 0.0, 1.05), (high, 0.0, 1.05), (wide, narrow), colour, 12)
        for (low, wide), (high, narrow) in pairwise(ends)
    ]
    parts.append(frustum((-0.15, 0.0, 1.05), (0.15, 0.0, 1.05), (0.79, 0.79), YELLOW, 12))
    parts += [block((x, 0.0, 0.22), (0.3, 1.2, 0.44), GREY) for x in (-0.7 * reach, 0.7 * reach)]
    parts.append(frustum((0.5 * reach, 0.0, 1.75), (0.5 * reach, 0.0, 2.05), (0.15, 0.22), BLACK, 6))
    parts += [block((x, -0.85, 0.95), (0.06, 0.06, 1.9), DARK) for x in (-0.55, -0.2)]
    return [*parts, *(block((-0.375, -0.85, 0.3 * k), (0.35, 0.06, 0.06), DARK) for k in range(1, 7))]


def solar_array(rng: np.random.Generator) -> list[Part]:
    """A row of leaning panels, dark with pale frames, on posts."""
    lean, count = float(rng.uniform(0.35, 0.9)), int(rng.integers(2, 4))
    c, s = float(np.cos(lean)), float(np.sin(lean))
    parts = []
    for k in range(count):
        middle = 1.05 * (k - 0.5 * (count - 1))
        for wide, tall, thick, colour in ((1.0, 1.7, 0.06, PALE), (0.86, 1.56, 0.12, BLUE)):
            sheet = block((0.0, 0.0, 0.0), (tall, wide, thick), colour)
            turn = np.array([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])
            parts.append(Part(sheet.points @ turn.T + np.array([0.0, middle, 1.15]), sheet.faces, colour))
        parts.append(frustum((0.0, middle, 0.0), (0.0, middle, 1.1), (0.08, 0.08), GREY, 5))
        parts.append(block((0.0, middle, 0.06), (0.9, 0.25, 0.12), GREY))
    return parts


def drill(rng: np.random.Generator) -> list[Part]:
    """A tower of four leaning beams with rungs, a bit in its middle and an engine beside it."""
    height, colour = float(rng.uniform(2.4, 3.2)), _one_of((RED, YELLOW, GREEN), rng)
    feet = [(0.75 * c, 0.75 * s) for c, s in _around(4, np.pi / 4)]
    parts = [frustum((x, y, 0.0), (0.2 * x, 0.2 * y, height), (0.07, 0.05), colour, 4) for x, y in feet]
    for share in (0.25, 0.5, 0.75):
        near, up = 1.0 - 0.8 * share, share * height
        for (x, y), (u, v) in zip(feet, feet[1:] + feet[:1], strict=True):
            parts.append(frustum((near * x, near * y, up), (near * u, near * v, up), (0.04, 0.04), colour, 4))
    parts.append(frustum((0.0, 0.0, 0.0), (0.0, 0.0, 0.5), (0.03, 0.16), DARK, 6))
    parts.append(frustum((0.0, 0.0, 0.5), (0.0, 0.0, height), (0.09, 0.09), GREY, 6))
    parts.append(block((0.0, 0.0, height), (0.4, 0.4, 0.2), BLACK))
    return [*parts, block((1.2, 0.0, 0.35), (0.7, 0.9, 0.7), _one_of((ORANGE, PALE), rng))]


Things = dict[str, Callable[[np.random.Generator], list[Part]]]
KNOWN: Things = {"rover": rover, "lander": lander}
NOVEL: Things = {"rock": rock, "astronaut": astronaut, "tracked rover": tracked_rover}
# no choice was made while looking at these: they are unknown to the method, not only to the detector
UNKNOWN: Things = {"crate": crate, "antenna": antenna, "tyre": tyre}
UNKNOWN |= {"drone": drone, "flag": flag, "habitat": habitat}
# drawn before novelty became a pool of measures, and scored once, after every choice
LATER: Things = {"tent": tent, "tank": tank, "solar array": solar_array, "drill": drill}
