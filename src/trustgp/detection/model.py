"""The fitted detection model: a detector's boxes and classes, and their uncertainty."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data.quantities import size_text
from ..data.torch_modes import cpu_default
from ..data.trees import state_tensors
from ..export.detector_file import DetectionRunner
from ..likelihoods.base import NoveltyThreshold, ReferenceScores
from ..likelihoods.detections import Detections
from ..metrics.boxes import corners
from ..state.model_state import FittedModel, of_state
from .adapter import (
    Detection,
    Detector,
    DetectorOutputs,
    QueryRows,
    kept,
    mean_inside,
    probabilities,
    with_background,
)
from .export import DetectorSource
from .picture_pass import HeldOut, PicturePass, chunked
from .pictures import Pictures, as_pictures, finite_pictures, for_each
from .scenes import SceneStream, as_scenes
from .state import DetectorState, save_detector


class DetectionModel(FittedModel):
    """A detector and its error bar, made by `trustgp.detection.fit` or `trustgp.load`: the uncertainty of its
    classes and box edges, and the novelty of each detection and picture.

    Examples:
        >>> for one in detections.predict(pictures):
        ...     edges, novel = one.std, one.is_novel
    """

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        "compress": "its error bar is one matrix for each class, and nothing of that can be left out",
        "export.Graph": "trustgp.export_onnx, trustgp.compile and trustgp.export.traced take it",
    }
    state: DetectorState  # `threshold` replaces it
    size: tuple[int, int] = of_state("size", "Height and width of the pictures.")
    settings: Detection = of_state("settings", "The options of the fit.")

    def __init__(self, state: DetectorState) -> None:
        super().__init__()
        self.network, self.state = state.network, state
        self.training = False

    @property
    def nbytes(self) -> int:
        """Memory of the error bar in bytes, without the network."""
        return sum(tensor.nbytes for tensor in state_tensors(self.state))

    @torch.no_grad()
    @cpu_default()
    def predict(self, images: Any) -> list[Detections]:
        """Predict the detections of each picture.

        Args:
            images: A batch [n, channels, height, width] as the detector takes it, one picture, a list (its
                sizes may differ if they did in `fit`), or a Hugging Face processor's output. A picture with
                NaN or infinity has `valid` False and no detections, and does not affect the others.
        """
        detector = self.state.detector
        pictures = as_pictures(images, channels=detector.channels, size=self.state.only_size)
        valid = finite_pictures(pictures)
        finite = pictures if bool(valid.all()) else [pictures[i] for i in valid.nonzero().flatten().tolist()]
        answers = iter(for_each(finite, lambda batch: self._predict(detector, batch, detector(batch))))
        return [next(answers) if fine else self._invalid for fine in valid.tolist()]

    @property
    def _invalid(self) -> Detections:
        place, labels = self.state.detector.place, self.state.detector.labels
        empty, boxes, chances = place.new_zeros(0), place.new_zeros(0, 4), place.new_zeros(0, labels + 1)
        shared = {**self._shared, "valid": False, "picture_novelty": 1.0}
        return Detections(boxes, boxes, empty.long(), empty, chances, empty, **shared)

    @property
    def _shared(self) -> dict[str, Any]:
        state, fitted = self.state, self.novelty_threshold
        limits = [ReferenceScores.of(s, None).threshold for s in (state.held_scores, state.held_pictures)]
        if fitted is not None:
            limits[0] = float(fitted.threshold)
            with suppress(ValueError):  # pictures are too few for it
                rate = float(fitted.false_alarm)
                limits[1] = float(NoveltyThreshold.fit(state.held_pictures, rate).threshold)
        return {"df": float(state.edges.df), "threshold": limits[0], "picture_threshold": limits[1]}

    def _predict(self, detector: Detector, images: Tensor, outputs: DetectorOutputs) -> list[Detections]:
        state, shared = self.state, self._shared
        chances = probabilities(outputs.logits, detector.labels)
        image, query = kept(chances, outputs.boxes, state.settings)
        size = outputs.boxes.new_tensor([images.shape[3], images.shape[2]] * 2)
        boxes = (corners(outputs.boxes) * size)[image, query]
        confidence, labels = chances[image, query].max(dim=1)
        features = outputs.features[image, query]
        variances = state.detections.variances((features, mean_inside(outputs, image, query)), labels)
        whole = outputs.features.mean(dim=1), outputs.cells.mean(dim=(1, 2))
        pictures = state.pictures.variances(whole, image.new_zeros(len(images)))
        logits = with_background(outputs.logits[image, query], detector.labels)
        variance, picture = variances[:, 0], pictures[:, 0]
        calibrated = state.temperature(logits, variance).to(boxes)
        local = state.local(features, outputs.boxes[image, query])
        std = state.edges.std(variance, picture[image], local).to(boxes)
        arrays = (boxes, std, labels, confidence, calibrated, state.detections(variances).to(boxes))
        sizes = torch.bincount(image, minlength=len(images)).tolist()
        parts = zip(*(array.split(sizes) for array in arrays), strict=True)
        sums = outputs.logits.sum(dim=(1, 2)) + outputs.boxes.sum(dim=(1, 2)) + pictures.sum(dim=1)
        novelty = state.pictures(pictures).tolist()
        each = zip(parts, torch.isfinite(sums).tolist(), novelty, strict=True)
        return [Detections(*part, valid=valid, picture_novelty=new, **shared) for part, valid, new in each]

    @torch.no_grad()
    @cpu_default()
    def threshold(self, scenes: Any = None, *, false_alarm: float = 0.01) -> float:
        """Fit the novelty threshold that `is_novel` uses from now on.

        A new detection that matches a target, exchangeable with those used here, lies above the threshold
        with probability `false_alarm` at most. Pictures have a threshold of their own, fitted to the same
        rate if there are enough of them. Both are saved with the model.

        Args:
            scenes: Familiar pictures and their targets, as for `trustgp.detection.fit`, used neither to train
                the detector nor for the fit. None: those of the last call, or the fit's held-out pictures.
            false_alarm: Rate in (0, 1); at least 1 / false_alarm - 1 detections must match a target.
        """
        state, scores = self.state, self.held_scores
        if scenes is not None:
            detector = state.detector
            stream = SceneStream(scenes, detector, size=state.only_size, name="scenes")
            made = PicturePass(detector, state.settings, HeldOut(every=1, max_varied=0))
            for chunk in chunked(stream.scenes()):
                made.include(chunk)
            rows = QueryRows.joined(made.held_out_rows)
            detected = rows.matched[rows.kept[rows.matched]]
            variances = state.detections.variances((rows.features, rows.inside), rows.predicted)
            scores = state.detections(variances[detected])
            NoveltyThreshold.fit(scores, false_alarm)  # may raise, before anything is replaced
            whole = state.pictures.variances((rows.pictures, rows.cells), rows.one_class)
            held_pictures = state.pictures(whole)
            self.state = replace(state, held_scores=scores, held_pictures=held_pictures)
        return self._with_threshold(scores, false_alarm)

    def read_scenes(self, given: Any, *, name: str, foreign: bool = False) -> tuple[Pictures, Any]:
        """Read and check pictures and their targets as `fit` does, for `trustgp.evaluate`. Foreign pictures
        may lack targets (None); labels of unknown classes begin after the detector's."""
        return as_scenes(given, self.state.detector, name=name, size=self.state.only_size, foreign=foreign)

    def export_source(self) -> DetectorSource:
        """Export source for `trustgp.export_onnx` and `trustgp.compile`."""
        return DetectorSource(self, (self._shared["threshold"], self._shared["picture_threshold"]))

    def watch(self) -> DetectionRunner:
        """Runner of the model for `trustgp.Monitor`, with one reading per picture."""
        return DetectionRunner(self)

    def save(self, path: str | Path) -> None:
        """Write the error bar atomically to one file, which does not contain the detector."""
        save_detector(self.state, path)

    def __repr__(self) -> str:
        (height, width), state = self.size, self.state
        widths = " and ".join(f"{own.centre.shape[1]:,}" for own in state.detections.gaussians)
        held_out = f"{len(state.held_scores):,} held-out detections, {len(state.held_pictures):,} pictures"
        facts = {
            "detector": f"{type(state.network).__name__}, {state.detector.labels:,} classes",
            "pictures": f"{height} x {width} pixels, height x width{', and others' if state.mixed else ''}",
            "features": f"{', '.join((*state.names, *state.cells[:1]))}: {widths} numbers",
            "rows": f"{state.rows:,} queries that matched a target",
            "size": size_text(self.nbytes),
            "calibration": held_out,
        }
        return "\n".join([type(self).__name__, *(f"  {name}: {fact}" for name, fact in facts.items())])
