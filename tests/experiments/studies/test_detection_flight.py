"""The film of the flight: every frame is there, small, and says what the monitor says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import trustgp
from trustgp.detection import DetectionRunner, Detections
from trustgp_experiments.studies.detection.study import VERDICTS, draw_frame, flight_gif

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


def badge(frame) -> dict[str, int]:
    """How many pixels of the strip above the picture have the colour of each verdict."""
    strip = np.asarray(frame.convert("RGB"))[:25].reshape(-1, 3).astype(int)
    return {status: int((abs(strip - rgb(c)).max(axis=1) <= 3).sum()) for status, c in VERDICTS.items()}


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
        for k, verdict in enumerate(said):
            film.seek(k)
            assert film.info["duration"] == 200
            shown = badge(film)
            assert shown.pop(verdict.status) > 500
            assert not any(shown.values())


def test_a_runner_tells_the_largest_novelty_and_deviation_of_each_picture():
    model = Detector(0.2)
    said = DetectionRunner(model)(torch.rand(3, 3, 48, 48))
    assert said["novelty"].tolist() == pytest.approx([0.2 / 1.2] * 3)
    assert said["variance"].tolist() == [[1.0]] * 3
    assert said["mean"].tolist() == [[1.0]] * 3


def test_a_box_is_drawn_where_it_is_in_the_colour_of_its_novelty():
    black = torch.zeros(3, 48, 48, dtype=torch.uint8)
    options = {"frames": 4, "threshold": 0.1}
    frames = [draw_frame(black, one, "ok", [0.1], **options) for one in (found(0.1), found())]
    full, empty = (np.asarray(frame).astype(int) for frame in frames)
    rows, columns = (np.flatnonzero((empty == 0).all(axis=2).any(axis=k)) for k in (1, 0))  # the picture
    (top, left), scale = (rows[0], columns[0]), (columns[-1] + 1 - columns[0]) / 48
    middle = round(top + 26 * scale)
    for x in (10, 30):
        near = full[middle, round(left + x * scale) - 2 : round(left + x * scale) + 3]
        assert abs(near - rgb("#f6d55c")).max(axis=1).min() <= 3
    assert full[middle, round(left + 20 * scale)].tolist() == [0, 0, 0]
    assert empty[middle, columns].max() == 0


@pytest.mark.parametrize("options", [{"frames": 1}, {"fps": 0.0}])
def test_a_film_needs_frames_and_a_speed(tmp_path, options):
    with pytest.raises(ValueError, match="at least 2 frames"):
        flight_gif(Detector(0.1), tmp_path / "a.gif", threshold=0.1, monitor=lambda frame: None, **options)
