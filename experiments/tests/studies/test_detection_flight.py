"""The film of the flight: every frame is there, small, and shows the verdict of the monitor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import trustgp
from trustgp.detection import DetectionRunner, Detections

Image = pytest.importorskip("PIL.Image")
from trustgp_experiments.core.flight_film import (  # noqa: E402
    LIMITS,
    VERDICTS,
    blind_frames,
    flight_gif,
    flown,
    latch_text,
    why,
)


class Detector:
    """In place of a fitted model: finds one box, as novel as its turn."""

    size = (48, 48)
    novelty_threshold = 0.1

    def __init__(self, *novelty: float) -> None:
        self.novelty = novelty
        self.pictures: list[torch.Tensor] = []

    def predict(self, images: torch.Tensor) -> list[Detections]:
        images = images if images.ndim == 4 else images[None]
        return [self._one(image) for image in images]

    def _one(self, image: torch.Tensor) -> Detections:
        self.pictures.append(image)
        return found(self.novelty[(len(self.pictures) - 1) % len(self.novelty)])

    def watch(self) -> DetectionRunner:
        return DetectionRunner(self)


def found(*novelty: float, picture: float = 0.01) -> Detections:
    k = len(novelty)
    box, score = torch.tensor([[10.0, 12.0, 30.0, 40.0]]).repeat(k, 1), torch.tensor(novelty)
    std, chances = torch.ones(k, 4), torch.full((k, 3), 1 / 3)
    kinds, limits = torch.zeros(k, dtype=torch.int64), {"_threshold": 0.1, "_picture_threshold": 0.1}
    return Detections(box, std, kinds, chances[:, 0], chances, score, picture_novelty=picture, **limits)


def badge(frame) -> dict[str, int]:
    """How many pixels of the strip above the picture have the colour of each verdict."""
    strip = np.asarray(frame.convert("RGB"))[:25].reshape(-1, 3).astype(int)
    return {status: int((abs(strip - rgb(c)).max(axis=1) <= 3).sum()) for status, c in VERDICTS.items()}


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[k : k + 2], 16) for k in (1, 3, 5))


def judged(*novelty: float):
    """A monitor with the limits of the film, its verdicts on such pictures, and the detections."""
    runner = Detector(*novelty).watch()
    monitor, pairs = trustgp.Monitor(runner, **LIMITS), []
    for _ in novelty:
        verdict = monitor(torch.rand(3, 48, 48))
        pairs.append((verdict, runner.detections[0]))
    return monitor, pairs


def test_every_frame_carries_the_verdict_of_the_monitor(tmp_path):
    model = Detector(0.01, 0.02, 0.5, 0.01, 0.01, 0.01)
    target = tmp_path / "flight.gif"
    verdicts = flight_gif(model, target, frames=6, fps=5)
    assert [verdict.status for verdict in verdicts] == ["ok", "ok", "novel", "novel", "novel", "ok"]
    assert [verdict.quiet for verdict in verdicts] == [None, None, 0, 1, 2, None]
    assert len(model.pictures) == 6  # each goes through the detector once
    assert target.stat().st_size < 25_000 * 6
    with Image.open(target) as film:
        assert film.n_frames == 6
        for k, verdict in enumerate(verdicts):
            film.seek(k)
            assert film.info["duration"] == 200
            shown = badge(film)
            assert shown.pop(verdict.status) > 500
            assert not any(shown.values())


def test_the_latch_is_described_as_the_monitor_has_it():
    monitor, pairs = judged(0.01, 0.5, 0.01, 0.095, 0.01, 0.01, 0.01)
    assert [latch_text(verdict, monitor) for verdict, _ in pairs] == [
        "no alarm",
        "alarm on: 3 calm frames in a row will end it",
        "alarm held: calm frame 1 of the 3 that end it",
        "alarm held: not below the lower line yet (0 of 3)",
        "alarm held: calm frame 1 of the 3 that end it",
        "alarm held: calm frame 2 of the 3 that end it",
        "no alarm",
    ]
    invalid = monitor(torch.full((3, 48, 48), torch.nan))
    assert latch_text(invalid, monitor) == "values are NaN or infinite"


def test_the_cause_of_a_verdict_is_named():
    _, pairs = judged(0.01, 0.5, 0.01)
    assert [why(*pair) for pair in pairs] == ["ok", "novel: what is found", "novel, held"]
    novel = pairs[1][0]
    assert why(novel, found(picture=0.5)) == "novel: the picture"
    assert why(novel, found(0.5, picture=0.5)) == "novel: the picture and what is found"


def test_the_camera_is_blind_for_some_frames_and_the_film_has_it_in_words():
    images, shown = flown(48, side=32)
    blind = blind_frames(48)
    assert len(blind) == 6
    for i, image in enumerate(images):
        assert (not bool(image.any())) == (i in blind) == ("blind" in shown[i])
    assert shown[0] == "as in training"
    assert shown[-1] == "a vehicle never trained on"
    assert "from high up, low sun, haze" in shown


@pytest.mark.parametrize("options", [{"frames": 1}, {"fps": 0.0}])
def test_a_film_needs_frames_and_a_speed(tmp_path, options):
    with pytest.raises(ValueError, match="at least 2 frames"):
        flight_gif(Detector(0.1), tmp_path / "a.gif", **options)
