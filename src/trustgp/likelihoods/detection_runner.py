"""Detections of pictures as a monitor takes them: one answer a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from .detections import Detections


class PredictsPictures(Protocol):
    """A detector with an error bar: a `DetectionModel`, or a file of it that was opened."""

    @property
    def novelty_threshold(self) -> Any:
        """The threshold of the novelty that was fitted; None: none was."""
        ...

    def predict(self, images: Any) -> list[Detections]:
        """Detections of each picture."""
        ...


class DetectionRunner:
    """A `DetectionModel` as a `PredictionSource` (see `trustgp.monitor.readings`), for `trustgp.Monitor`.

    Of a picture `mean` is how many things are found in it, `variance` that of their least sure edge in square
    pixels, 0 where nothing is found. `novelty` is r / (1 + r), where r is the largest novelty of a detection,
    or of the picture itself, over its threshold: 0.5 is the threshold of both. What was found in the pictures
    of the last call is kept as `found`, so that a robot need not run the detector twice.
    """

    THRESHOLD = 0.5

    def __init__(self, model: PredictsPictures) -> None:
        self.model = model
        self.found: list[Detections] = []

    @property
    def metadata(self) -> Mapping[str, Any]:
        """With the threshold, where one was fitted: it is the monitor's."""
        return {} if self.model.novelty_threshold is None else {"threshold": self.THRESHOLD}

    def __call__(self, images: Tensor, /) -> dict[str, Tensor]:
        """By name: "mean" and "variance" [n, 1], "novelty" and "valid" [n]."""
        if isinstance(images, Tensor) and images.ndim != 4:
            raise ValueError(f"pictures are {tuple(images.shape)}; [n, channels, height, width] is needed.")
        self.found = found = self.model.predict(images)
        told = [{**one.summary, "valid": one.valid, "over": one.over_threshold} for one in found]
        columns = ([one[name] for one in told] for name in ("over", "std", "valid"))
        over, std, valid = (torch.tensor(column, dtype=torch.float64) for column in columns)
        return {
            "mean": torch.tensor([[float(len(one))] for one in found]).reshape(-1, 1),
            "variance": std.square()[:, None],
            "novelty": over / (1.0 + over),
            "valid": valid.bool() & torch.isfinite(std) & torch.isfinite(over),
        }
