"""The film of the flight: every frame is there, small, and says what the monitor says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import trustgp
from trustgp.detection import Detections
from trustgp.detection.runner import DetectionRunner
from trustgp_experiments.studies.detection.film import SIDE, STRIP, VERDICTS, draw_frame
from trustgp_experiments.studies.detection.flight import flight_gif

Image = pytest.importorskip("PIL.Image")


class Detector:
    """Stands for a fitted model: finds one box, as novel as its turn says."""

    size = (48, 48)
    alarm = None

    def __init__(self, *novelty: float) -> None:
        self.novelty = novelty
        self.pictures: list[torch.Tensor] = []

    def predict(self, images: torch.Tensor) -> list[Detections]:
        images = images if images.ndim == 4 else images[None]
        return [self._one(image) for image in images]

    def _one(self, image: torch.Tensor) -> Detections:
        if not any(torch.equal(image, seen) for seen in self.pictures):
            self.pictures.append(image)
        turn = next(k for k, seen in enumerate(self.pictures) if torch.equal(image, seen))
        return found(self.novelty[turn % len(self.novelty)])


def found(*novelty: float) -> Detections:
    k = len(novelty)
    box, score = torch.tensor([[10.0, 12.0, 30.0, 40.0]]).repeat(k, 1), torch.tensor(novelty)
    std, chances = torch.ones(k, 4), torch.full((k, 3), 1 / 3)
    return Detections(box, std, torch.zeros(k, dtype=torch.int64), chances[:, 0], chances, score)


def badge(frame) -> tuple[int, ...]:
    """Colour of the verdict, left of its text."""
    return frame.convert("RGB").getpixel((12, SIDE + 29))


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[k : k + 2], 16) for k in (1, 3, 5))


def test_every_frame_carries_the_verdict_of_the_monitor(tmp_path):
    model = Detector(0.01, 0.02, 0.5, 0.01, 0.01, 0.01)
    monitor = trustgp.Monitor(DetectionRunner(model), threshold=0.1, std=5.0, patience=1)
    target = tmp_path / "flight.gif"
    said = flight_gif(model, target, threshold=0.1, monitor=monitor, frames=6, fps=5)
    assert [verdict.status for verdict in said] == ["ok", "ok", "novel", "ok", "ok", "ok"]
    assert target.stat().st_size < 25_000 * 6
    with Image.open(target) as film:
        assert film.n_frames == 6
        assert film.size == (SIDE, SIDE + STRIP)
        for k, verdict in enumerate(said):
            film.seek(k)
            assert film.info["duration"] == 200
            assert badge(film) == pytest.approx(rgb(VERDICTS[verdict.status]), abs=3)


def test_a_runner_tells_the_largest_novelty_and_deviation_of_each_picture():
    model = Detector(0.2)
    said = DetectionRunner(model)(torch.rand(3, 3, 48, 48))
    assert said["novelty"].tolist() == pytest.approx([0.2] * 3)
    assert said["variance"].tolist() == [[1.0]] * 3
    assert said["mean"].tolist() == [[1.0]] * 3


def test_a_box_is_drawn_where_it_is_in_the_colour_of_its_novelty():
    black = torch.zeros(3, 48, 48, dtype=torch.uint8)
    options = {"frames": 4, "names": ("rover",), "threshold": 0.1}
    frame = np.asarray(draw_frame(black, found(0.1), "ok", [0.1], **options))
    scale = SIDE / 48
    middle = round(26 * scale)
    for x in (round(10 * scale), round(30 * scale)):
        assert frame[middle, x].tolist() == list(rgb("#f6d55c"))
    assert frame[middle, round(20 * scale)].tolist() == [0, 0, 0]
    empty = np.asarray(draw_frame(black, found(), "uncertain", [0.1, 0.0], **options))
    assert not empty[:SIDE].any()


@pytest.mark.parametrize("options", [{"frames": 1}, {"fps": 0.0}])
def test_a_film_needs_frames_and_a_speed(tmp_path, options):
    with pytest.raises(ValueError, match="at least 2 frames"):
        flight_gif(Detector(0.1), tmp_path / "a.gif", threshold=0.1, monitor=lambda frame: None, **options)
