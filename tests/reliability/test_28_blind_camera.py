"""Promise 28: a camera that sees nothing, or sees it wrongly scaled, is not called ok."""

from __future__ import annotations

import pytest
import torch

import trustgp

pytest.importorskip("transformers", reason="detectors come from transformers: pip install trustgp[detection]")
from trustgp_experiments.datasets.scenes import scenes
from trustgp_experiments.training.detector_network import pixels, trained

BLIND = {  # what arrives in place of pictures from 0 to 255
    "black": torch.zeros_like,
    "white": lambda images: torch.full_like(images, 255),
    "grey": lambda images: torch.full_like(images, 128),
    "noise": lambda images: torch.randint(256, images.shape, generator=torch.Generator().manual_seed(0)),
    "BGR": lambda images: images.flip(1),
}
SCALES = {"0 to 255": lambda images: images.float(), "0 to 1": lambda images: images.float() / 255}


@pytest.fixture(scope="module")
def watched():
    """A detector with a threshold, and familiar pictures that it has not seen."""

    def drawn(n: int, first: int):
        found = scenes(n, first=first)
        return found.images, list(map(trustgp.Things, found.boxes, found.labels))

    (images, things), (held, there) = drawn(60, 0), drawn(60, 30_000)
    model = trustgp.fit(
        trained("scenes"),
        (pixels(images), things),
        likelihood=trustgp.Detection(),
        validation=(pixels(held), there),
        progress=False,
    )
    model.threshold(false_alarm=0.02)
    return model, drawn(6, 31_000)[0]


def verdicts(model, frames):
    """Each of a fresh monitor: one latches."""
    return [trustgp.Monitor(model.watch(), std=1e6)(frame).status for frame in frames]


@pytest.mark.parametrize("name", BLIND)
def test_a_camera_that_sees_nothing_is_not_ok(watched, name):
    model, images = watched
    assert "ok" not in verdicts(model, pixels(BLIND[name](images)))


@pytest.mark.parametrize("name", SCALES)
def test_pictures_of_another_scale_are_not_ok(watched, name):
    model, images = watched
    assert "ok" not in verdicts(model, SCALES[name](images))


def test_familiar_pictures_are(watched):
    model, images = watched
    assert verdicts(model, pixels(images)).count("ok") >= 4
