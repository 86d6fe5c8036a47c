"""The training script of the detectors: its augmentation and its steps."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="detectors come from transformers: pip install trustgp[detection]")
from trustgp_experiments.training import detector as script
from trustgp_experiments.training.detector import augmented, labels_of
from trustgp_experiments.training.detector_network import detector, pixels


def labels(boxes):
    return [{"class_labels": torch.zeros(len(one)).long(), "boxes": one} for one in boxes]


def test_a_mirrored_picture_has_mirrored_boxes():
    images = torch.zeros(40, 3, 16, 16, dtype=torch.uint8)
    images[:, :, 2:6, 1:5] = 255  # left, above
    boxes = torch.tensor([[[3 / 16, 4 / 16, 4 / 16, 4 / 16]]]).repeat(40, 1, 1)
    torch.manual_seed(0)
    moved, kept = augmented(images, labels(boxes), cells=False)
    places = torch.cat([one["boxes"] for one in kept])
    for picture, (x, y, w, h) in zip(moved.mean(dim=1), places.tolist(), strict=True):
        bright = (picture > picture.mean()).nonzero().float()
        assert float(bright[:, 1].mean() + 0.5) == pytest.approx(16 * x, abs=0.1)
        assert float(bright[:, 0].mean() + 0.5) == pytest.approx(16 * y, abs=0.1)
        assert (w, h) == pytest.approx((0.25, 0.25))
    assert len({round(x, 3) for x in places[:, 0].tolist()}) == 2


def test_boxes_that_an_enlargement_cuts_off_are_dropped():
    images = torch.zeros(60, 3, 16, 16, dtype=torch.uint8)
    boxes = torch.tensor([[[0.03, 0.03, 0.06, 0.06], [0.5, 0.5, 0.2, 0.2]]]).repeat(60, 1, 1)
    torch.manual_seed(0)
    kept = [one["boxes"] for one in augmented(images, labels(boxes), cells=True)[1]]
    assert {len(one) for one in kept} == {1, 2}
    assert all(float(one.min()) >= 0 and float(one[-1, 2:].min()) > 0.19 for one in kept)


def test_steps_lower_the_loss_of_a_few_pictures():
    torch.manual_seed(0)
    train, _ = script.rendered_scenes(2, 1, 1)
    how = {"rate": 1e-3, "batch": 2, "cells": False}
    training = script.DetectorTraining(detector(2), train.images, labels_of(train), **how)
    losses = [training.step(step + 100, 0.0) for step in range(6)]
    assert min(losses[3:]) < losses[0]
    assert script.mean_loss(training.average, pixels(train.images), labels_of(train)) > 0
