"""A short flight over one world: past what a detector knows, up into haze, and down to a novel thing."""

from __future__ import annotations

import numpy as np

from .scene_objects import KNOWN, NOVEL, Array, Part
from .scene_picture import blurred, exposed, random_ground, towards, view
from .scene_view import Camera
from .scenes import NAMES, Scenes, gathered

KNOTS = np.array([0.0, 0.3, 0.5, 0.62, 0.85, 1.0])  # of the flight
# at each knot: what is looked at (x, y), from how far, how high, from which side (degrees), roll (radians),
# height of the sun (degrees), haze for each metre, motion blur in pixels
PATH = np.array(
    [
        [0.0, 0.0, 9.5, 2.8, -120.0, 0.00, 45.0, 0.008, 0.0],
        [0.0, 0.0, 8.5, 3.2, -75.0, 0.00, 42.0, 0.010, 0.0],
        [0.3, 0.2, 5.0, 10.5, -40.0, 0.22, 11.0, 0.040, 3.0],
        [2.5, 1.8, 5.0, 11.0, -15.0, 0.28, 9.0, 0.045, 4.0],
        [7.0, 5.0, 6.5, 3.0, 45.0, 0.03, 40.0, 0.010, 0.0],
        [7.0, 5.0, 6.0, 2.4, 85.0, 0.00, 42.0, 0.010, 0.0],
    ]
)
PLACES = {"rover": (1.4, -1.6), "lander": (-1.3, 1.7)}
AWAY = (7.0, 5.0)  # where the novel thing stands
SUN = 0.9  # where it stands, in radians about the upright axis


def flight(frames: int, *, seed: int = 0, side: int = 128, novel: str = "tracked rover") -> Scenes:
    """Frames of a camera that moves smoothly over one world; the same numbers give the same frames.

    First it looks at a rover and a lander as in the style "carry", then from high up, with a low sun, haze,
    motion blur and a rolled horizon, and in the end at a thing on which no detector was trained.

    Args:
        frames: How many, evenly spaced from the beginning to the end of the flight.
        seed: Of the ground, of the things, and of the camera's noise.
        side: In pixels.
        novel: What that thing is: "tracked rover" (a second kind of rover), "astronaut" or "rock".
    """
    if novel not in NOVEL:
        raise ValueError(f"novel={novel!r}; allowed are {', '.join(NOVEL)}.")
    if frames < 0 or side < 16:
        raise ValueError(
            f"frames={frames}, side={side}; frames must not be negative, and a side has at least 16 pixels."
        )
    rng = np.random.default_rng([seed, 3])
    ground, things = random_ground(rng), _things(novel, rng)
    found = []
    for i, where in enumerate(path(np.linspace(0.0, 1.0, frames))):
        _, _, _, _, _, _, height, haze, blur = where
        image, boxes, names = view(things, _camera(where, side), towards(height, SUN), haze, ground)
        noise = np.random.default_rng([seed, 3, i]).normal(0, 0.01, image.shape)
        picture = exposed(blurred(image, blur, 0.4), 1.0, noise, 0.25)
        found.append((picture, boxes, [NAMES.index(name) for name in names]))
    return gathered(found, side)


def path(times: Array) -> Array:
    """The columns of `PATH` at times in [0, 1], shape [n, 9]: through every knot, without overshooting."""
    from scipy.interpolate import PchipInterpolator

    return PchipInterpolator(KNOTS, PATH, axis=0)(times)


def _camera(where: Array, side: int) -> Camera:
    x, y, distance, height, from_, roll = where[:6]
    yaw = np.radians(from_)
    at = np.array([x - distance * np.cos(yaw), y - distance * np.sin(yaw), height])
    return Camera(at, yaw, float(np.arctan2(height - 0.8, distance)), roll, 0.95 * side, side)


def _things(novel: str, rng: np.random.Generator) -> list[tuple[str, list[Part]]]:
    found = []
    for name, place in (PLACES | {novel: AWAY}).items():
        parts = (KNOWN | NOVEL)[name](rng)
        at, yaw = np.array([*place, 0.0]), rng.uniform(0, 2 * np.pi)
        found.append((name, [part.placed(at, yaw, 1.0) for part in parts]))
    return found
