"""A detector with an error bar: boxes and classes unchanged, with how sure they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from ..data.quantities import size_text
from ..likelihoods.base import NoveltyThreshold, ReferenceScores
from ..likelihoods.detection_runner import DetectionRunner
from ..likelihoods.detections import Detections
from ..metrics.boxes import corners
from ..state.model_state import FittedModel, of_state
from .adapter import Detector, DetectorOutputs
from .export import DetectorSource
from .foreign_scenes import foreign_scenes
from .picture_pass import HeldOut, PicturePass, lots
from .pictures import Pictures, as_pictures, finite_pictures, for_each
from .query_rows import Detection, QueryRows, kept, probabilities, with_background
from .scenes import SceneStream, as_scenes
from .state import DetectorState, novelty_of, save_detector
from .things import Things

SIZE = "its error bar is one matrix for each class"


class DetectionModel(FittedModel):
    """A detector and its error bar: how sure its classes and its edges are, and how familiar a picture is.

    Made by `trustgp.fit(detector, ..., likelihood=trustgp.Detection())` or `trustgp.load`.
    """

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        "compress": f"{SIZE}, and nothing of that can be left out",
        "export.Graph": "trustgp.export_onnx, trustgp.compile and trustgp.export.traced take it",
    }
    state: DetectorState  # all that is known; `threshold` replaces it
    size: tuple[int, int] = of_state("size", "Height and width of the pictures.")
    settings: Detection = of_state("settings", "What the user said.")

    def __init__(self, state: DetectorState) -> None:
        super().__init__()
        self.network, self.state = state.network, state
        self.training = False

    @property
    def nbytes(self) -> int:
        """What the error bar holds in memory, the network itself not counted."""
        return self.state.readout.nbytes + self.state.pictures.nbytes

    @torch.no_grad()
    def predict(self, images: Any) -> list[Detections]:
        """Detections of each picture.

        Args:
            images: As the detector takes them, [n, channels, height, width], one of them, a list, whose sizes
                may differ where they did in `fit`, or what a Hugging Face processor gives. Of one that holds
                NaN or infinity `valid` is False; the others come out as if it were not there.
        """
        detector = self.state.detector
        pictures = as_pictures(images, channels=detector.channels, size=self.state.only_size)
        valid = finite_pictures(pictures)
        finite = pictures if bool(valid.all()) else [pictures[i] for i in valid.nonzero().flatten().tolist()]
        found = iter(for_each(finite, lambda batch: self._predict(detector, batch, detector(batch))))
        return [next(found) if fine else self._nothing for fine in valid.tolist()]

    @property
    def _nothing(self) -> Detections:
        """Of a picture that is not finite."""
        detector = self.state.detector
        place, labels = detector.place, detector.labels
        empty, four, told = place.new_zeros(0), place.new_zeros(0, 4), place.new_zeros(0, labels + 1)
        shared = {**self._shared, "valid": False, "picture_novelty": 1.0}
        return Detections(four, four, empty.long(), empty, told, empty, **shared)

    @property
    def _shared(self) -> dict[str, Any]:
        """What all pictures have in common."""
        state, alarm = self.state, self.novelty_threshold
        limits = [
            ReferenceScores.of(scores, None).threshold for scores in (state.held_scores, state.held_pictures)
        ]
        if alarm is not None:
            limits = [float(alarm.threshold), _limit(state.held_pictures, float(alarm.false_alarm))]
        names = ("_threshold", "_picture_threshold")
        return {"df": float(state.edges.df), **dict(zip(names, limits, strict=True))}

    def _predict(self, detector: Detector, images: Tensor, seen: DetectorOutputs) -> list[Detections]:
        state, shared = self.state, self._shared
        chances = probabilities(seen.logits, detector.labels)
        image, query = kept(chances, seen.boxes, state.settings)
        size = seen.boxes.new_tensor([images.shape[3], images.shape[2]] * 2)
        boxes = (corners(seen.boxes) * size)[image, query]
        confidence, kind = chances[image, query].max(dim=1)
        unknown = state.readout(seen.seen[image, query], kind)
        whole = state.pictures(seen.seen.mean(dim=1), image.new_zeros(len(images)))
        logits = with_background(seen.logits[image, query], detector.labels)
        told = state.temperature(logits, unknown).to(boxes)
        std = state.edges.std(unknown, whole[image]).to(boxes)
        novelty = novelty_of(unknown).to(boxes)
        sizes = torch.bincount(image, minlength=len(images)).tolist()
        parts = zip(*(p.split(sizes) for p in (boxes, std, kind, confidence, told, novelty)), strict=True)
        sound = torch.isfinite(seen.logits.sum(dim=(1, 2)) + seen.boxes.sum(dim=(1, 2)) + whole).tolist()
        each = zip(parts, sound, novelty_of(whole).tolist(), strict=True)
        return [Detections(*lot, valid=fine, picture_novelty=new, **shared) for lot, fine, new in each]

    @torch.no_grad()
    def threshold(self, scenes: Any = None, *, false_alarm: float = 0.01) -> float:
        """Fit the threshold of the novelty, by which `is_novel` goes from now on.

        A new detection that has found a thing like those it is fitted on lies above it with probability
        `false_alarm` at most, however many there are; and so does a picture, above one of its own, where
        there are enough of them. They are saved with the model.

        Args:
            scenes: Familiar pictures and their things, as for `trustgp.fit`, that neither the detector nor
                the experts have seen. None: those passed to the fit as `validation`.
            false_alarm: In (0, 1); it takes at least 1 / false_alarm - 1 detections that have found a thing.
        """
        state, scores = self.state, self.held_scores
        if scenes is not None:
            detector = state.detector
            stream = SceneStream(scenes, detector, size=state.only_size, name="scenes")
            made = PicturePass(detector, state.settings, HeldOut(every=1, most=0))
            for lot in lots(stream.scenes()):
                made.take(lot)
            rows = QueryRows.joined(made.held)
            scores, seen = novelty_of(state.readout(rows.seen, rows.kinds)[rows.sure]), rows.pictures
            whole = novelty_of(state.pictures(seen, torch.zeros(len(seen), dtype=torch.int64)))
            NoveltyThreshold.fit(scores, false_alarm)  # before anything is replaced
            self.state = replace(state, held_pictures=whole)
        return self._with_threshold(scores, false_alarm)

    def read_scenes(
        self, given: Any, *, name: str, foreign: bool = False
    ) -> tuple[Pictures, list[Things] | None]:
        """Pictures and their things, read and checked as `fit` does it: for `trustgp.evaluate`.

        Args:
            given: As for `trustgp.fit`.
            name: What it is called in errors.
            foreign: They may come without things (None), or with things of classes that the detector does not
                know, whose labels begin where its own end.
        """
        read = foreign_scenes if foreign else as_scenes
        return read(given, self.state.detector, name=name, size=self.state.only_size)

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a fit is one pass."""
        raise ValueError("a DetectionModel has no update: a fit is one pass; fit again with all pictures.")

    def conformal(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: what a detector finds is no row with a target."""
        raise ValueError(
            "a DetectionModel has no conformal: detections are no rows with a target each; use "
            "Detections.interval(level)."
        )

    def export_source(self) -> DetectorSource:
        """What `trustgp.export_onnx` and `trustgp.compile` write to a file."""
        limits = self._shared["_threshold"], self._shared["_picture_threshold"]
        return DetectorSource(self.state, limits, lambda state, images: type(self)(state).predict(images))

    def watch(self) -> DetectionRunner:
        """The model as `trustgp.Monitor` takes it: one answer a picture."""
        return DetectionRunner(self)

    def save(self, path: str | Path) -> None:
        """Write the error bar to one file, whole or not at all; the detector is not in it."""
        save_detector(self.state, path)

    def __repr__(self) -> str:
        (height, width), state = self.size, self.state
        facts = {
            "detector": f"{type(state.network).__name__}, {len(state.readout.centre):,} classes",
            "pictures": f"{height} x {width} pixels, height x width"
            + (", and others" if state.mixed else ""),
            "seen": f"{', '.join(state.names)}: {state.readout.centre.shape[1]:,} numbers",
            "rows": f"{state.rows:,} queries that had found a thing",
            "size": size_text(self.nbytes),
            "calibration": f"{len(state.held_scores):,} detections in {len(state.held_pictures):,} held-out "
            "pictures",
        }
        return "\n".join([type(self).__name__, *(f"  {name}: {said}" for name, said in facts.items())])


def _limit(scores: Tensor, false_alarm: float) -> float | None:
    """The threshold of pictures for so many false alarms; None: there are too few."""
    try:
        return float(NoveltyThreshold.fit(scores, false_alarm).threshold)
    except ValueError:
        return ReferenceScores.of(scores, None).threshold
