"""Promise 28: a camera that sees nothing, or sees it wrongly scaled, is not called ok."""

import pytest
import torch

import trustgp

pytest.importorskip("transformers", reason="detectors come from transformers: pip install trustgp[detection]")
from trustgp_experiments.datasets.scenes import scenes
from trustgp_experiments.training.detector_error_bar import load_error_bar
from trustgp_experiments.training.detector_network import pixels

BLIND = {  # what arrives in place of pictures from 0 to 255, or of pixels that are scaled as they should be
    "black": torch.zeros_like,
    "white": lambda images: torch.full_like(images, 255),
    "grey": lambda images: torch.full_like(images, 128),
    "noise": lambda images: torch.randint(256, images.shape, generator=torch.Generator().manual_seed(0)),
    "BGR": lambda images: images.flip(1),
    "0 to 255": lambda images: images.float(),
    "0 to 1": lambda images: images.float() / 255,
}


@pytest.fixture(scope="module")
def watched():
    """The packaged detector, with a threshold, and familiar pictures to which it was not fitted."""
    return load_error_bar(), scenes(6, first=31_000).images


def verdicts(model, frames):
    """Each of a fresh monitor: one latches."""
    return [trustgp.Monitor(model.watch(), std=1e6)(frame).status for frame in frames]


@pytest.mark.parametrize("name", BLIND)
def test_a_camera_that_sees_nothing_or_on_another_scale_is_not_ok(watched, name):
    model, images = watched
    frames = BLIND[name](images)
    assert "ok" not in verdicts(model, frames if frames.is_floating_point() else pixels(frames))


def test_familiar_pictures_are(watched):
    model, images = watched
    assert verdicts(model, pixels(images)).count("ok") >= 4
