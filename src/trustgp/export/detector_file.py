"""A detector's file, opened: pictures in, detections out, as `DetectionModel.predict` gives them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..data.tensor_file import ArtifactError
from ..likelihoods.base import NoveltyThreshold
from ..likelihoods.detection_runner import DetectionRunner
from ..likelihoods.detections import Detections
from ..metrics.selection import select_detections

LIKELIHOOD = "Detection"  # what such a file says it is
ABSENT = "none"
ANSWERS = (
    *("boxes", "std", "labels", "confidence", "probabilities", "novelty"),  # of each query
    *("picture_novelty", "valid"),  # of each picture
)


@dataclass(frozen=True, kw_only=True)
class DetectorFacts:
    """What makes detections of the arrays of all queries: part of the file's metadata."""

    picture: tuple[int, int, int]  # channels, height and width of what it takes
    classes: tuple[str, ...]  # their names; empty: not known
    confidence_threshold: float  # a query counts from here on
    most: int  # detections of a picture
    suppression: float | None  # overlap from which one of two boxes is dropped
    df: float  # degrees of freedom of the edges' errors
    novelty_threshold: float | None  # of a detection
    picture_threshold: float | None  # of a picture

    def texts(self) -> dict[str, str]:
        """By name, as a file holds them."""
        held = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: ABSENT if value is None else json.dumps(value) for name, value in held.items()}

    @classmethod
    def read(cls, metadata: Mapping[str, str], where: str) -> DetectorFacts:
        """The same from a file; raise where it does not make sense."""
        try:
            texts = {one.name: metadata[one.name] for one in fields(cls)}
            held: dict[str, Any] = {name: _value(text) for name, text in texts.items()}
            channels, height, width = (int(size) for size in held.pop("picture"))
            classes = tuple(str(name) for name in held.pop("classes"))
            found = cls(picture=(channels, height, width), classes=classes, **held)
            sane = found.most >= 1 and min(found.picture) >= 1 and 0 < found.confidence_threshold < 1
            shares = (found.suppression, found.novelty_threshold, found.picture_threshold)
            sane = sane and found.df > 2 and all(one is None or math.isfinite(one) for one in shares)
        except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise ArtifactError(f"{where}: its metadata are damaged or unknown ({error!r}).") from error
        if not sane:
            raise ArtifactError(f"{where}: its metadata do not fit together.")
        return found


def _value(text: str) -> Any:
    """Of a text of the metadata; None: there is none."""
    return None if text == ABSENT else json.loads(text)


class ExportedDetector:
    """A detector in a file of `export_onnx` or `compile`: called with pictures, it gives the `Detections` of
    each. `run` gives the arrays of all queries by name; `facts` hold what makes detections of them."""

    def __init__(self, run: Any, where: str) -> None:
        self.run, self.metadata = run, run.metadata
        self.facts = DetectorFacts.read(self.metadata, where)
        missing = set(ANSWERS) - set(run.output_names)
        if missing:
            raise ArtifactError(f"{where}: has no answer {min(missing)!r}; export the model again.")

    @property
    def novelty_threshold(self) -> NoveltyThreshold | None:
        """The threshold of the novelty, with its false alarms; None: none was fitted."""
        if self.metadata["threshold"] == ABSENT:
            return None
        told = (torch.tensor(float(self.metadata[name])) for name in ("threshold", "false_alarm"))
        return NoveltyThreshold(*told)

    def predict(self, images: Any) -> list[Detections]:
        """Detections of each picture, [n, channels, height, width], one of them, or a list."""
        pictures = self._pictures(images)
        if not len(pictures):
            return []
        found = {name: torch.as_tensor(value) for name, value in self.run(pictures).items()}
        facts, lots = self.facts, [found[name] for name in Detections.ARRAYS]
        image, query = select_detections(
            *(found[name] for name in ("confidence", "labels", "boxes")),
            threshold=facts.confidence_threshold,
            most=facts.most,
            suppression=facts.suppression,
        )
        limits = {"_threshold": facts.novelty_threshold, "_picture_threshold": facts.picture_threshold}
        each = zip(found["valid"].tolist(), found["picture_novelty"].tolist(), strict=True)
        return [
            Detections(
                *(lot[i, query[image == i]] for lot in lots),
                valid=valid,
                picture_novelty=novelty,
                df=facts.df,
                **limits,
            )
            for i, (valid, novelty) in enumerate(each)
        ]

    def __call__(self, images: Any) -> list[Detections]:
        """The same as `predict`."""
        return self.predict(images)

    def watch(self) -> DetectionRunner:
        """As `trustgp.Monitor` takes it: one answer a picture."""
        return DetectionRunner(self)

    def _pictures(self, images: Any) -> Tensor:
        """Pictures [n, channels, height, width] of the file's size."""
        if isinstance(images, (list, tuple)):
            images = torch.stack([torch.as_tensor(one) for one in images]) if images else torch.zeros(0)
        pictures = torch.as_tensor(images)
        pictures = pictures[None] if pictures.ndim == 3 else pictures
        if pictures.numel() and tuple(pictures.shape[1:]) != self.facts.picture:
            raise ValueError(
                f"pictures are {tuple(pictures.shape)}; the file takes [n, channels, height, width] with "
                f"{self.facts.picture}."
            )
        return pictures

    def __repr__(self) -> str:
        channels, height, width = self.facts.picture
        return f"ExportedDetector({channels} x {height} x {width} to Detections, {self.run!r})"


def as_served(run: Any, where: str) -> Any:
    """What an opened file is for: a detector's gives detections, any other the arrays as they are."""
    return ExportedDetector(run, where) if run.metadata.get("likelihood") == LIKELIHOOD else run
