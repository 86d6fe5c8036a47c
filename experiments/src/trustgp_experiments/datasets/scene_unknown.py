"""Further things that stand on the ground of a scene, in metres: no choice of ours was made while looking at
them, so that they are unknown to the method, and not only to the detector."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .scene_objects import BLUE, DARK, GREEN, GREY, RED, WHITE, Colour, Part, Point, ball, block, frustum

ORANGE, YELLOW, TEAL = (0.85, 0.42, 0.08), (0.85, 0.75, 0.15), (0.15, 0.45, 0.48)
WOOD, PALE, BLACK = (0.58, 0.38, 0.16), (0.72, 0.76, 0.82), (0.06, 0.06, 0.07)


def _one_of(colours: tuple[Colour, ...], rng: np.random.Generator) -> Colour:
    return colours[int(rng.integers(len(colours)))]


def crate(rng: np.random.Generator) -> list[Part]:
    """A box in a frame of beams, and at times a smaller one on it."""
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
    for angle in np.arange(3) * 2 * np.pi / 3:
        c, s = float(np.cos(angle)), float(np.sin(angle))
        parts.append(frustum((0.8 * c, 0.8 * s, 0.0), (0.0, 0.0, 0.6 * height), (0.06, 0.06), YELLOW, 4))
    parts.append(frustum((0.0, 0.0, 0.4), (0.0, 0.0, height), (0.09, 0.07), GREY, 6))
    lift = float(rng.uniform(0.2, 0.9))
    c, s = float(np.cos(lift)), float(np.sin(lift))
    ends = [(0.15 + reach * c, 0.0, height + reach * s) for reach in (0.0, 0.15, 0.42)]
    parts.append(frustum(ends[0], ends[1], (0.15, 0.6), PALE, 12))
    parts.append(frustum(ends[1], ends[2], (0.6, 1.0), PALE, 12))
    feed = (ends[2][0] + 0.35 * c, 0.0, ends[2][2] + 0.35 * s)
    parts.append(frustum(ends[2], feed, (0.05, 0.1), RED, 5))
    return parts


def tyre(rng: np.random.Generator) -> list[Part]:
    """A large ring that stands upright and leans, striped."""
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
    for k, angle in enumerate(np.arange(4) * np.pi / 2 + np.pi / 4):
        c, s = 1.15 * float(np.cos(angle)), 1.15 * float(np.sin(angle))
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
    """An upright sheet between two places of the ground, [2, 2]."""
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
    parts.append(ball((0.0, 0.0, 1.65), 0.14, YELLOW))
    return parts


UNKNOWN: dict[str, Callable[[np.random.Generator], list[Part]]] = {
    **{"crate": crate, "antenna": antenna, "tyre": tyre},
    **{"drone": drone, "flag": flag, "habitat": habitat},
}
