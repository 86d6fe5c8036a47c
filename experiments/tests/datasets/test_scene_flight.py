"""The rendered flight: one world, a camera that moves smoothly, and boxes in every frame."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trustgp_experiments.datasets.scenes import (
    AWAY,
    CLASSES,
    KNOTS,
    NAMES,
    PATH,
    PLACES,
    flight,
    flight_camera,
    path,
)


def test_the_same_numbers_give_the_same_frames():
    one, again, other = flight(3, side=48), flight(3, side=48), flight(3, side=48, seed=1)
    assert torch.equal(one.images, again.images)
    assert one.images.shape == (3, 3, 48, 48)
    assert one.images.dtype == torch.uint8
    assert not torch.equal(one.images, other.images)
    assert len(flight(0)) == 0


def test_it_begins_with_known_things_alone_and_ends_with_a_novel_one():
    for novel in ("tracked rover", "rock"):
        found = flight(12, side=64, novel=novel)
        assert {NAMES[i] for i in found.labels[0].tolist()} == set(CLASSES)
        assert [NAMES[i] for i in found.labels[-1].tolist()] == [novel]
        assert all(len(labels) for labels in found.labels)


def test_the_path_goes_through_its_knots_and_never_beyond_them():
    np.testing.assert_allclose(path(KNOTS), PATH, atol=1e-12)
    along = path(np.linspace(0, 1, 500))
    assert (along >= PATH.min(axis=0) - 1e-9).all()
    assert (along <= PATH.max(axis=0) + 1e-9).all()
    steps = np.abs(np.diff(along, axis=0)) / np.ptp(PATH, axis=0)
    assert steps.max() < 0.02  # of the whole range, from one of 500 frames to the next


def test_boxes_lie_around_the_things_that_stand_there():
    side = 64
    frames, places = flight(5, side=side), PLACES | {"tracked rover": AWAY}
    for where, boxes, labels in zip(path(np.linspace(0, 1, 5)), frames.boxes, frames.labels, strict=True):
        for box, label in zip(boxes.numpy(), labels.tolist(), strict=True):
            pixel, _ = flight_camera(where, side).seen(np.array([[*places[NAMES[label]], 0.9]]))
            inside = np.clip(pixel[0], 0, side)
            assert (box[:2] <= inside + 1).all()
            assert (box[2:] >= inside - 1).all()


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="frames=-1"):
        flight(-1)
    with pytest.raises(ValueError, match="novel='cow'; allowed are rock, astronaut, tracked rover"):
        flight(1, novel="cow")
