"""An opened file of a detector: pictures in, detections out, as in `DetectionModel.predict`."""

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
from ..likelihoods.detections import Detections
from ..metrics.boxes import select_detections

LIKELIHOOD = "Detection"  # in the metadata of such a file
ABSENT = "none"
ANSWERS = (*Detections.ARRAYS, "picture_novelty", "valid")  # outputs for each query, and for each picture


@dataclass(frozen=True, kw_only=True)
class DetectorFacts:
    """Metadata that are needed to select detections from the arrays of all queries."""

    picture: tuple[int, int, int]  # channels, height and width of its input
    classes: tuple[str, ...]  # their names; empty if unknown
    confidence_threshold: float  # minimum confidence of a detection
    most: int  # detections of a picture, at most
    suppression: float | None  # overlap from which one of two boxes is dropped
    df: float  # degrees of freedom of the edges' errors
    novelty_threshold: float | None  # of a detection
    picture_threshold: float | None  # of a picture

    def texts(self) -> dict[str, str]:
        """Facts as texts by name, in the form that a file stores."""
        return {name: ABSENT if value is None else json.dumps(value) for name, value in vars(self).items()}

    @classmethod
    def read(cls, metadata: Mapping[str, str], where: str) -> DetectorFacts:
        """Parse the facts from a file. Raise ArtifactError if they are damaged or inconsistent."""
        try:
            texts = {one.name: metadata[one.name] for one in fields(cls)}
            values: dict[str, Any] = {k: None if t == ABSENT else json.loads(t) for k, t in texts.items()}
            channels, height, width = (int(size) for size in values.pop("picture"))
            classes = tuple(str(name) for name in values.pop("classes"))
            facts = cls(picture=(channels, height, width), classes=classes, **values)
            sane = facts.most >= 1 and min(facts.picture) >= 1 and 0 < facts.confidence_threshold < 1
            shares = (facts.suppression, facts.novelty_threshold, facts.picture_threshold)
            sane = sane and facts.df > 2 and all(one is None or math.isfinite(one) for one in shares)
        except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise ArtifactError(f"{where}: its metadata are damaged or unknown ({error!r}).") from error
        if not sane:
            raise ArtifactError(f"{where}: its metadata do not fit together.")
        return facts


class ExportedDetector:
    """A detector in a file of `export_onnx` or `compile`: called with pictures, it returns the `Detections`
    of each. `run` returns the arrays of all queries by name; `facts` select the detections."""

    def __init__(self, run: Any, where: str) -> None:
        self.run, self.metadata = run, run.metadata
        self.facts = DetectorFacts.read(self.metadata, where)
        if missing := set(ANSWERS) - set(run.output_names):
            raise ArtifactError(f"{where}: has no answer {min(missing)!r}; export the model again.")

    @property
    def novelty_threshold(self) -> NoveltyThreshold | None:
        """Threshold of the novelty, with its bound of false alarms; None if none was fitted."""
        if self.metadata["threshold"] == ABSENT:
            return None
        values = [float(self.metadata[name]) for name in ("threshold", "false_alarm")]
        return NoveltyThreshold(*torch.tensor(values, dtype=torch.float32))

    def predict(self, images: Any) -> list[Detections]:
        """Detections of pictures [n, channels, height, width] of the file's size, one picture, or a list."""
        if isinstance(images, (list, tuple)):
            images = torch.stack([torch.as_tensor(one) for one in images]) if images else torch.zeros(0)
        pictures = given[None] if (given := torch.as_tensor(images)).ndim == 3 else given
        if pictures.numel() and tuple(pictures.shape[1:]) != self.facts.picture:
            shape = tuple(pictures.shape)
            raise ValueError(f"pictures are {shape}; the file takes [n, {str(self.facts.picture)[1:-1]}].")
        if not len(pictures):
            return []
        answers = {name: torch.as_tensor(value) for name, value in self.run(pictures).items()}
        facts, arrays = self.facts, [answers[name] for name in Detections.ARRAYS]
        select = {"threshold": facts.confidence_threshold, "suppress": facts.suppression}
        given = (answers[name] for name in ("confidence", "labels", "boxes"))
        image, query = select_detections(*given, most=facts.most, **select)
        limits = {"threshold": facts.novelty_threshold, "picture_threshold": facts.picture_threshold}
        chosen = [[array[i, query[image == i]] for array in arrays] for i in range(len(pictures))]
        each = zip(chosen, answers["valid"].tolist(), answers["picture_novelty"].tolist(), strict=True)
        return [Detections(*c, valid=v, picture_novelty=p, df=facts.df, **limits) for c, v, p in each]

    __call__ = predict

    def watch(self) -> DetectionRunner:
        """Source for `trustgp.Monitor` with one result per picture."""
        return DetectionRunner(self)

    def __repr__(self) -> str:
        channels, height, width = self.facts.picture
        return f"ExportedDetector({channels} x {height} x {width} to Detections, {self.run!r})"


class DetectionRunner:
    """A `DetectionModel`, or an opened file of it, as a `PredictionSource` (see `trustgp.monitor.readings`).

    For each picture `mean` is the number of detections and `variance` the largest variance of an edge in
    square pixels, 0 without detections. `novelty` is r / (1 + r), where r is the largest novelty of a
    detection, or of the picture itself, over its threshold: 0.5 is the threshold of both. `detections` are
    those of the last call, so that a robot need not run the detector twice.
    """

    THRESHOLD = 0.5

    def __init__(self, model: Any) -> None:
        self.model = model  # with `novelty_threshold` and `predict`
        self.detections: list[Detections] = []

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata for the monitor: the threshold, if one was fitted."""
        return {} if self.model.novelty_threshold is None else {"threshold": self.THRESHOLD}

    def __call__(self, images: Tensor, /) -> dict[str, Tensor]:
        """Readings by name: "mean" and "variance" [n, 1], "novelty" and "valid" [n]."""
        if isinstance(images, Tensor) and images.ndim != 4:
            raise ValueError(f"pictures are {tuple(images.shape)}; [n, channels, height, width] is needed.")
        self.detections = detections = self.model.predict(images)
        rows = [(len(one), one.summary["std"], one.over_threshold, one.valid) for one in detections]
        count, std, over, valid = torch.tensor(rows, dtype=torch.float64).reshape(-1, 4).unbind(dim=1)
        return {
            "mean": count.float()[:, None],
            "variance": std.square()[:, None],
            "novelty": over / (1.0 + over),
            "valid": valid.bool() & torch.isfinite(std) & torch.isfinite(over),
        }


def as_served(run: Any, where: str) -> Any:
    """Opened file as users call it: one of a detector returns detections, any other returns arrays."""
    return ExportedDetector(run, where) if run.metadata.get("likelihood") == LIKELIHOOD else run
