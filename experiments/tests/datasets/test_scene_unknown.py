"""Kinds that no choice was made with: they can be seen, their boxes fit, and older pictures are as before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from trustgp_experiments.datasets.scene_objects import Part
from trustgp_experiments.datasets.scene_picture import Camera, random_ground, towards, view
from trustgp_experiments.datasets.scene_unknown import UNKNOWN
from trustgp_experiments.datasets.scenes import CLASSES, NAMES, Scenes, flight, scenes

SIDE = 96
# of the commit before there were unknown kinds: weighted means of pixels, sums of boxes, and labels
BEFORE = {
    "carry": (
        [171.083, 145.227, 150.608, 91.484, 379.381, 407.764, 118.142, 279.833],
        [[0, 0, 0], [1, 0, 1], [0], [0, 0]],
    ),
    "flight": (
        [142.706, 113.628, 112.915, 102.372, 450.626, 144.313, 129.324, 349.457],
        [[1, 1, 1], [1], [0], [1, 1, 1]],
    ),
    "novel": (
        [123.315, 150.713, 128.563, 142.138, 141.54, 245.153, 117.949, 238.674],
        [[2], [4, 1], [2], [3, 0]],
    ),
    "path": (
        [140.598, 129.392, 113.627, 131.005, 253.502, 266.581, 469.217, 131.207],
        [[0, 1], [0, 1], [0, 1, 4], [4]],
    ),
}


def checksum(found: Scenes) -> tuple[list[float], list[list[int]]]:
    """Numbers that are alike on every machine, and on which every pixel tells."""
    weights = torch.linspace(1.0, 2.0, found.images[0].numel(), dtype=torch.float64)
    pixels = [float((image.double().flatten() * weights).mean()) for image in found.images]
    return [*pixels, *(float(box.double().sum()) for box in found.boxes)], [k.tolist() for k in found.labels]


@pytest.mark.parametrize("style", BEFORE)
def test_older_styles_give_the_pictures_that_they_gave(style):
    path = style == "path"  # over one world
    numbers, labels = checksum(
        flight(4, seed=2, side=64) if path else scenes(4, style, seed=3, side=64, first=7)
    )
    assert numbers == pytest.approx(BEFORE[style][0], abs=0.01)
    assert labels == BEFORE[style][1]


def test_the_unknown_style_has_these_kinds_only_and_all_of_them():
    found = [label for labels in scenes(60, "unknown", side=48).labels for label in labels.tolist()]
    assert {NAMES[i] for i in found} - set(CLASSES) == set(UNKNOWN)


def placed(name: str, seed: int) -> list[Part]:
    rng = np.random.default_rng([seed, 8])
    parts, yaw = UNKNOWN[name](rng), rng.uniform(0, 2 * np.pi)
    return [part.placed(np.zeros(3), yaw, 1.0) for part in parts]


def seen(name: str, seed: int) -> tuple[np.ndarray, list[float]]:
    """Which pixels show a thing, bool [side, side], and its box: those that change with its colour."""
    camera = Camera(np.array([-7.0, 0.0, 3.0]), 0.0, float(np.arctan2(2.0, 7.0)), 0.0, 0.95 * SIDE, SIDE)
    sun, ground, parts = (
        towards(50, 1.0 + seed),
        random_ground(np.random.default_rng(seed)),
        placed(name, seed),
    )
    shots = []
    for colour in ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)):
        image, (box,), _ = view(
            [(name, [replace(p, colour=colour) for p in parts])], camera, sun, 0.0, ground
        )
        shots.append(image)
    return np.abs(shots[0] - shots[1]).max(axis=2) > 0.02, box


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_thing_is_seen_and_its_box_fits_its_pixels(name, seed):
    mask, box = seen(name, seed)
    rows, columns = np.nonzero(mask)
    around = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert around == pytest.approx(box, abs=1.5)
    assert mask.sum() > 60
    assert mask.sum() > 0.15 * (box[2] - box[0]) * (box[3] - box[1])
