"""The film of the flight: every frame is there, small, and shows the verdict of the monitor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import trustgp
from trustgp.detection import DetectionRunner, Detections

Image = pytest.importorskip("PIL.Image")
from trustgp_experiments.core.flight_film import LIMITS, VERDICTS, blind_frames, flight_gif, flown, why  # noqa: E402


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
    kinds, limits = torch.zeros(k, dtype=torch.int64), {"threshold": 0.1, "picture_threshold": 0.1}
    return Detections(box, std, kinds, chances[:, 0], chances, score, picture_novelty=picture, **limits)


def badge(frame) -> dict[str, int]:
    """How many pixels of the strip above the picture have the colour of each verdict."""
    strip = np.asarray(frame.convert("RGB"))[:25].reshape(-1, 3).astype(int)
    return {status: int((abs(strip - rgb(c)).max(axis=1) <= 3).sum()) for status, c in VERDICTS.items()}


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[k : k + 2], 16) for k in (1, 3, 5))


def test_every_frame_carries_the_verdict_of_the_monitor(tmp_path):
    model = Detector(0.01, 0.02, 0.5, 0.01, 0.01, 0.01)
    target = tmp_path / "flight.gif"
    verdicts = flight_gif(model, target, frames=6)
    assert [verdict.status for verdict in verdicts] == ["ok", "ok", "novel", "novel", "novel", "ok"]
    assert [verdict.quiet for verdict in verdicts] == [None, None, 0, 1, 2, None]
    assert len(model.pictures) == 6  # each goes through the detector once
    assert target.stat().st_size < 25_000 * 6
    with Image.open(target) as film:
        assert film.n_frames == 6
        for k, verdict in enumerate(verdicts):
            film.seek(k)
            shown = badge(film)
            assert shown.pop(verdict.status) > 500
            assert not any(shown.values())


def test_the_cause_of_a_verdict_is_named():
    runner = Detector(0.01, 0.5, 0.01).watch()
    monitor, verdicts, causes = trustgp.Monitor(runner, **LIMITS), [], []
    for _ in range(3):
        verdicts.append(monitor(torch.rand(3, 48, 48)))
        causes.append(why(verdicts[-1], runner.detections[0]))
    assert causes == ["ok", "novel: what is found", "novel, held"]
    novel = verdicts[1]
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
