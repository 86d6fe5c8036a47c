"""Rendered scenes: the same numbers give the same pictures, and boxes are where the things are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trustgp_experiments.datasets.scene_objects import block
from trustgp_experiments.datasets.scene_picture import LEAST, Camera, faces, shadows, shares
from trustgp_experiments.datasets.scenes import STYLES, scenes

SUN = np.array([0.0, 0.6, 0.8])


def camera(height: float = 3.0, distance: float = 8.0, side: int = 64) -> Camera:
    pitch = float(np.arctan2(height, distance))
    return Camera(np.array([-distance, 0.0, height]), 0.0, pitch, 0.0, float(side), side)


@pytest.mark.parametrize("style", STYLES)
def test_a_picture_is_the_same_whoever_asks_for_how_many(style):
    many, one = scenes(4, style, seed=3, side=48), scenes(1, style, seed=3, side=48, first=2)
    assert torch.equal(many.images[2], one.images[0])
    assert torch.equal(many.boxes[2], one.boxes[0])
    assert torch.equal(many.labels[2], one.labels[0])
    assert many.images.shape == (4, 3, 48, 48)
    assert many.images.dtype == torch.uint8
    assert not torch.equal(many.images[0], scenes(1, style, seed=4, side=48).images[0])


@pytest.mark.parametrize("style", STYLES)
def test_boxes_lie_in_the_picture_and_are_large_enough_to_see(style):
    found = scenes(12, style, side=64)
    boxes = torch.cat(found.boxes)
    assert len(boxes) > 0
    assert float(boxes.min()) >= 0
    assert float(boxes.max()) <= 64
    assert bool(((boxes[:, 2:] - boxes[:, :2]).amax(dim=1) >= LEAST).all())


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="style='walk'; allowed are carry, flight, novel"):
        scenes(1, "walk")
    with pytest.raises(ValueError, match="side=4"):
        scenes(1, side=4)
    assert len(scenes(0)) == 0


def test_a_point_ahead_is_seen_in_the_middle_and_the_ground_where_its_ray_meets_it():
    view = camera()
    pixels, depth = view.seen(np.zeros((1, 3)))
    assert pixels[0] == pytest.approx([32, 32])
    assert depth[0] == pytest.approx(np.hypot(3, 8))
    places, distance = view.ground()
    back, _ = view.seen(np.array([[*places[40, 20], 0.0]]))
    assert back[0] == pytest.approx([20.5, 40.5])
    assert distance[40, 20] == pytest.approx(np.linalg.norm(np.array([*places[40, 20], 0.0]) - view.at))
    assert np.isinf(camera(1.0, 50.0).ground()[1][0, 0])  # above the horizon


def test_a_shadow_falls_away_from_the_sun_as_far_as_its_height_says():
    outline = shadows([block((0, 0, 0.5), (1, 1, 1), (1, 1, 1))], SUN)[0]
    assert outline[:, 2] == pytest.approx(0)
    assert outline[:, 1].min() == pytest.approx(-0.5 - 0.6 / 0.8)
    assert outline[:, 1].max() == pytest.approx(0.5)


def test_what_stands_behind_another_is_hidden():
    tall, small = block((0, 0, 1), (0.1, 4, 2), (1, 1, 1)), block((2, 0, 0.25), (0.5, 0.5, 0.5), (1, 1, 1))
    seen = faces([[tall], [small]], camera(1.0), SUN)
    assert [face.distance for face in seen] == sorted((face.distance for face in seen), reverse=True)
    front, behind = shares(seen, 2, 64)
    assert front == 1.0
    assert behind < 0.2
