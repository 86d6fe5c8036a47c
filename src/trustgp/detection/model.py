"""A detector with an error bar: boxes and classes unchanged, with how sure they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..class_prediction import ClassPrediction
from ..metrics.boxes import corners
from ..model import UncertaintyModel
from ..novelty import Alarm
from .detections import Detections
from .edges import Edges
from .pictures import as_pictures, as_scenes, finite_pictures
from .rows import PICTURES, kept, known_rows, probabilities
from .settings import Detection
from .splitting import Detector
from .watching import Watch


class DetectionModel(nn.Module):
    """A detector and its error bar: how sure its classes are, and, from the same kernel, its edges.

    Made by `trustgp.fit(detector, ..., likelihood=trustgp.Detection())` or `trustgp.load`.

    Args:
        network: A private copy of the detector.
        finding: Fitted on rows, each a query of a picture: is there anything, and what?
        edges: How far off the edges are.
        names: Of the tensors that go into the decoder's last layer and differ from picture to picture.
        size: Height and width of the pictures.
        settings: What the user said.
        held_scores: Novelty of the held-out detections that have found a thing, float64, [k]; None: there
            were none.
        alarm: The threshold of the novelty; None before `threshold` was called.
    """

    def __init__(
        self,
        network: Any,
        finding: UncertaintyModel,
        edges: Edges,
        names: tuple[str, ...],
        size: tuple[int, int],
        settings: Detection,
        held_scores: Tensor | None = None,
        alarm: Alarm | None = None,
    ) -> None:
        super().__init__()
        self.network, self.finding, self.edges = network, finding, edges
        self.names, self.size, self.settings = names, size, settings
        self.held_scores = torch.zeros(0, dtype=torch.float64) if held_scores is None else held_scores
        self.alarm = alarm
        self.training = False

    @property
    def alone(self) -> bool:
        """Whether a row needs its own query only."""
        return bool(self.finding.network.get_submodule("tail").each)

    @property
    def detector(self) -> Detector:
        """The network, as rows are made with it."""
        return Detector(self.network, alone=self.alone, whole=self.settings.whole)

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
        detector = self.detector
        pictures = as_pictures(images, channels=detector.channels, size=self.size)
        good = finite_pictures(pictures)
        fine = pictures if bool(good.all()) else pictures[good]
        parts = fine.split(PICTURES) if len(fine) else ()
        found = iter([one for part in parts for one in self._predict(detector, part)])
        return [next(found) if fine else self._unknown() for fine in good.tolist()]

    def traced(self) -> DetectionModel:
        """The same model with its error bar recorded as a graph: exact to rounding, and faster for few rows.

        Takes a few seconds. Boxes and classes are the detector's own all the same.
        """
        from .tracing import TracedModel

        return TracedModel(self)

    def _told(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Of each row the probabilities of the classes, and the novelty."""
        said = self.finding.predict(rows)
        assert isinstance(said, ClassPrediction)
        return said.probabilities, said.score

    def _predict(self, detector: Detector, images: Tensor) -> list[Detections]:
        seen = detector(images)
        labels = self.network.config.num_labels
        chances = probabilities(seen.logits, labels)
        image, query = kept(chances, self.settings)
        size = seen.boxes.new_tensor([images.shape[3], images.shape[2]] * 2)
        boxes = (corners(seen.boxes) * size)[image, query]
        confidence, kind = chances[image, query].max(dim=1)
        told, score = chances.new_zeros(0, labels + 1), boxes.new_zeros(0)
        if len(image):
            told, score = self._told(seen.rows(self.names, image, query))
        std = self.edges.std(score).to(boxes)
        sizes = torch.bincount(image, minlength=len(images)).tolist()
        parts = zip(*(p.split(sizes) for p in (boxes, std, kind, confidence, told, score)), strict=True)
        sound = torch.isfinite(seen.logits.sum(dim=(1, 2)) + seen.boxes.sum(dim=(1, 2))).tolist()
        return [
            Detections(*lot, valid=valid, _threshold=self._limit)
            for lot, valid in zip(parts, sound, strict=True)
        ]

    def _unknown(self) -> Detections:
        """Of a picture that holds NaN."""
        place = self.detector.place
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
        scores = self.held_scores
        if scenes is not None:
            detector = self.detector
            known = {"channels": detector.channels, "labels": self.network.config.num_labels}
            images, things = as_scenes(scenes, **known, size=self.size, name="scenes")
            rows = known_rows(detector, self.names, images, things, self.settings)
            scores = self.finding.predict(rows.inputs).score.cpu().double()[rows.sure]
        self.alarm = Alarm.fit(scores, false_alarm)
        return float(self.alarm.threshold)

    def watch(self) -> Watch:
        """The model as `trustgp.Monitor` takes it: one answer a picture."""
        return Watch(self)

    def save(self, path: str | Path) -> None:
        """Write the error bar to one file, whole or not at all; the detector is not in it."""
        from .files import save_detector

        save_detector(self, path)

    def train(self, mode: bool = True) -> DetectionModel:
        """Does nothing: the detector stays as it was fitted."""
        return self

    def _apply(self, fn, recurse: bool = True) -> DetectionModel:
        """Move to another device; the precision stays as it was fitted."""
        if fn(torch.empty(0, dtype=torch.float64)).dtype != torch.float64:
            raise TypeError("a fitted model keeps its precision; move it with .to(device) only.")
        super()._apply(fn, recurse)
        return self
