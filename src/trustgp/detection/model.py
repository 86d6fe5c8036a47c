"""A detector with an error bar: boxes and classes unchanged, with how sure they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..likelihoods.class_prediction import ClassPrediction
from ..likelihoods.detections import Detections
from ..likelihoods.novelty import NoveltyThreshold
from ..metrics.boxes import corners
from ..state.frozen_module import FrozenModule
from .detector import Detector
from .files import save_detector
from .query_rows import PICTURES, kept, known_rows, probabilities
from .runner import DetectionRunner
from .scenes import as_pictures, as_scenes, finite_pictures
from .settings import Detection
from .state import DetectorState
from .traced import RecordedAnswers


class DetectionModel(FrozenModule):
    """A detector and its error bar: how sure its classes are, and, from the same kernel, its edges.

    Made by `trustgp.fit(detector, ..., likelihood=trustgp.Detection())` or `trustgp.load`.

    Args:
        state: All that is known; `threshold` replaces it.
        record: Whether the error bar is recorded as a graph; see `traced`.
    """

    def __init__(self, state: DetectorState, *, record: bool = False) -> None:
        super().__init__()
        self.network, self.finding, self.state = state.network, state.finding, state
        self.training = False
        self._recorded = RecordedAnswers(state) if record else None

    @property
    def held_scores(self) -> Tensor:
        """Novelty of the held-out detections that have found a thing, float64, [k]."""
        return self.state.held_scores

    @property
    def alarm(self) -> NoveltyThreshold | None:
        """The threshold of the novelty; None before `threshold` was called."""
        return self.state.threshold

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        return self.state.size

    @property
    def settings(self) -> Detection:
        """What the user said."""
        return self.state.settings

    @property
    def nbytes(self) -> int:
        """What the error bar holds in memory, the network itself not counted."""
        return self.finding.nbytes

    def forward(self, images: Any) -> list[Detections]:
        """The same as `predict`."""
        return self.predict(images)

    @torch.no_grad()
    def predict(self, images: Any) -> list[Detections]:
        """Detections of each picture.

        Args:
            images: As the detector takes them, [n, channels, height, width], one of them, or a list. Of one
                that holds NaN or infinity `valid` is False; the others come out as if it were not there.
        """
        detector = self.state.detector
        pictures = as_pictures(images, channels=detector.channels, size=self.state.size)
        good = finite_pictures(pictures)
        fine = pictures if bool(good.all()) else pictures[good]
        parts = fine.split(PICTURES) if len(fine) else ()
        found = iter([one for part in parts for one in self._predict(detector, part)])
        return [next(found) if fine else self._unknown() for fine in good.tolist()]

    def traced(self) -> DetectionModel:
        """The same model with its error bar recorded as a graph: exact to rounding, and faster for few rows.

        Takes a few seconds. Boxes and classes are the detector's own all the same.
        """
        return DetectionModel(self.state, record=True)

    def _told(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Of each row the probabilities of the classes, and the novelty."""
        if self._recorded is not None:
            return self._recorded(rows)
        said = self.finding.predict(rows)
        assert isinstance(said, ClassPrediction)
        return said.probabilities, said.score

    def _predict(self, detector: Detector, images: Tensor) -> list[Detections]:
        seen = detector(images)
        labels = self.network.config.num_labels
        chances = probabilities(seen.logits, labels)
        image, query = kept(chances, self.state.settings)
        size = seen.boxes.new_tensor([images.shape[3], images.shape[2]] * 2)
        boxes = (corners(seen.boxes) * size)[image, query]
        confidence, kind = chances[image, query].max(dim=1)
        told, score = chances.new_zeros(0, labels + 1), boxes.new_zeros(0)
        if len(image):
            told, score = self._told(seen.rows(self.state.names, image, query))
        std = self.state.edges.std(score).to(boxes)
        sizes = torch.bincount(image, minlength=len(images)).tolist()
        parts = zip(*(p.split(sizes) for p in (boxes, std, kind, confidence, told, score)), strict=True)
        sound = torch.isfinite(seen.logits.sum(dim=(1, 2)) + seen.boxes.sum(dim=(1, 2))).tolist()
        return [
            Detections(*lot, valid=valid, _threshold=self._limit)
            for lot, valid in zip(parts, sound, strict=True)
        ]

    def _unknown(self) -> Detections:
        """Of a picture that holds NaN."""
        place = self.state.detector.place
        empty, four = place.new_zeros(0), place.new_zeros(0, 4)
        kinds, told = empty.long(), place.new_zeros(0, self.network.config.num_labels + 1)
        return Detections(four, four, kinds, empty, told, empty, False, self._limit)

    @property
    def _limit(self) -> float | None:
        return None if self.alarm is None else float(self.alarm.threshold)

    @torch.no_grad()
    def threshold(self, scenes: Any = None, *, false_alarm: float = 0.01) -> float:
        """Fit the threshold of the novelty; from now on detections have `is_novel`.

        A new detection that has found a thing like those it is fitted on lies above it with probability
        `false_alarm` at most, however many there are. It is saved with the model.

        Args:
            scenes: Familiar pictures and their things, as for `trustgp.fit`, that neither the detector nor
                the experts have seen. None: those passed to the fit as `validation`.
            false_alarm: In (0, 1); it takes at least 1 / false_alarm - 1 detections that have found a thing.
        """
        state, scores = self.state, self.held_scores
        if scenes is not None:
            detector = state.detector
            known = {"channels": detector.channels, "labels": self.network.config.num_labels}
            images, things = as_scenes(scenes, **known, size=state.size, name="scenes")
            rows = known_rows(detector, state.names, images, things, state.settings)
            scores = self.finding.predict(rows.inputs).score.cpu().double()[rows.sure]
        found = NoveltyThreshold.fit(scores, false_alarm)
        self.state = replace(state, threshold=found)
        return float(found.threshold)

    def watch(self) -> DetectionRunner:
        """The model as `trustgp.Monitor` takes it: one answer a picture."""
        return DetectionRunner(self)

    def save(self, path: str | Path) -> None:
        """Write the error bar to one file, whole or not at all; the detector is not in it."""
        save_detector(self.state, path)

    def _apply(self, fn, recurse: bool = True) -> DetectionModel:
        super()._apply(fn, recurse)
        if self._recorded is not None:  # a graph keeps to its device
            self._recorded = RecordedAnswers(self.state)
        return self
