"""Rendered scenes: the same numbers give the same pictures, and boxes are around the things."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from trustgp_experiments.datasets import scene_picture
from trustgp_experiments.datasets import scenes as drawn
from trustgp_experiments.datasets.scene_objects import LATER, UNKNOWN, block
from trustgp_experiments.datasets.scene_picture import Camera, random_ground, towards, view
from trustgp_experiments.datasets.scenes import CLASSES, NAMES, Scenes, scenes

SUN = np.array([0.0, 0.6, 0.8])
# of the release before there were unknown kinds: weighted means of pixels, sums of boxes, and labels
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
}


def camera(height: float = 3.0, distance: float = 8.0, side: int = 64) -> Camera:
    pitch = float(np.arctan2(height, distance))
    return Camera(np.array([-distance, 0.0, height]), 0.0, pitch, 0.0, float(side), side)


@pytest.mark.parametrize("style", BEFORE)
def test_older_styles_give_the_pictures_that_they_gave(style):
    rendered = scenes(4, style, seed=3, side=64, first=7)
    weights = torch.linspace(1.0, 2.0, rendered.images[0].numel(), dtype=torch.float64)
    numbers = [float((image.double().flatten() * weights).mean()) for image in rendered.images]
    numbers += [float(box.double().sum()) for box in rendered.boxes]
    assert numbers == pytest.approx(BEFORE[style][0], abs=0.01)
    assert [labels.tolist() for labels in rendered.labels] == BEFORE[style][1]


def check_equal(one: Scenes, other: Scenes) -> None:
    for first, second in zip(vars(one).values(), vars(other).values(), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("style", drawn.STYLES)
def test_a_picture_is_the_same_however_many_are_asked_for_and_its_boxes_can_be_seen(style):
    many, one = scenes(12, style, seed=3, side=48), scenes(1, style, seed=3, side=48, first=2)
    check_equal(Scenes(many.images[2:3], many.boxes[2:3], many.labels[2:3]), one)
    assert many.images.shape == (12, 3, 48, 48)
    assert many.images.dtype == torch.uint8
    assert not torch.equal(many.images[0], scenes(1, style, seed=4, side=48).images[0])
    boxes = torch.cat(many.boxes)
    assert 0 <= float(boxes.min()) < float(boxes.max()) <= 48
    assert bool(((boxes[:, 2:] - boxes[:, :2]).amax(dim=1) >= scene_picture.MIN_BOX).all())


@pytest.mark.parametrize(("style", "kinds"), [("unknown", UNKNOWN), ("later", LATER)])
def test_a_style_of_unknown_kinds_has_these_only_and_all_of_them(style, kinds):
    labels = torch.cat(scenes(60, style, side=48).labels).tolist()
    assert {NAMES[i] for i in labels} - set(CLASSES) == set(kinds)


@pytest.mark.parametrize("name", [*UNKNOWN, *LATER])
def test_a_thing_is_seen_and_its_box_fits_its_pixels(name):
    """Its pixels are those that change with its colour."""
    for seed in range(3):
        rng = np.random.default_rng([seed, 8])
        parts = [part.placed(np.zeros(3), 2.1 * seed, 1.0) for part in drawn.KINDS[name](rng)]
        ground = random_ground(np.random.default_rng(seed))
        setting = camera(2.0, 7.0, 96), towards(50, 1.0 + seed), 0.0, ground
        painted = ([replace(part, colour=(c, c, c)) for part in parts] for c in (0.0, 1.0))
        (dark, (box,), _), (bright, _, _) = (view([(name, parts)], *setting) for parts in painted)
        mask = np.abs(dark - bright).max(axis=2) > 0.02
        rows, columns = np.nonzero(mask)
        around = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert around == pytest.approx(box, abs=1.5)
        assert mask.sum() > max(60, 0.15 * (box[2] - box[0]) * (box[3] - box[1]))


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="style='walk'; allowed are carry, flight, novel"):
        scenes(1, "walk")
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


def test_a_shadow_falls_away_from_the_sun_and_what_is_behind_another_is_hidden():
    outline = scene_picture.shadows([block((0, 0, 0.5), (1, 1, 1), (1, 1, 1))], SUN)[0]
    assert outline[:, 2] == pytest.approx(0)
    assert outline[:, 1].min() == pytest.approx(-0.5 - 0.6 / 0.8)
    assert outline[:, 1].max() == pytest.approx(0.5)
    tall, small = block((0, 0, 1), (0.1, 4, 2), (1, 1, 1)), block((2, 0, 0.25), (0.5, 0.5, 0.5), (1, 1, 1))
    seen = scene_picture.faces([[tall], [small]], camera(1.0), SUN)
    assert [face.distance for face in seen] == sorted((face.distance for face in seen), reverse=True)
    front, behind = scene_picture.shares(seen, 2, 64)
    assert front == 1.0
    assert behind < 0.2
