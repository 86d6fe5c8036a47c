"""A detector frame by frame: one answer a picture, as a monitor wants it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ..likelihoods.detections import Detections
from .state import DetectorState


class FittedDetector(Protocol):
    """What finds things in pictures: `trustgp.DetectionModel`, which stands above this file."""

    state: DetectorState

    def predict(self, images: Any) -> list[Detections]:
        """Detections of each picture."""
        ...


class DetectionRunner:
    """A `DetectionModel` as a `PredictionSource` (see `trustgp.monitor.readings`), for `trustgp.Monitor`.

    Of a picture `mean` is how many things are found in it, `variance` that of their least sure edge in square
    pixels, and `novelty` the largest of their novelties; all 0 where nothing is found.

    Args:
        model: Whose threshold, where it has one, is the monitor's.
    """

    def __init__(self, model: FittedDetector) -> None:
        self.model = model

    @property
    def metadata(self) -> Mapping[str, Any]:
        """With the threshold, where the model has one."""
        found = self.model.state.threshold
        return {} if found is None else {"threshold": float(found.threshold)}

    def __call__(self, images: Tensor, /) -> dict[str, Tensor]:
        """The answers to pictures [n, channels, height, width].

        Returns:
            "mean" and "variance" [n, 1], "novelty" and "valid" [n].
        """
        if isinstance(images, Tensor) and images.ndim != 4:
            raise ValueError(f"pictures are {tuple(images.shape)}; [n, channels, height, width] is needed.")
        found = self.model.predict(images)
        told = [one.summary for one in found]
        novelty = torch.tensor([one["novelty"] for one in told], dtype=torch.float64)
        std = torch.tensor([one["std"] for one in told], dtype=torch.float64)
        valid = torch.tensor([one.valid for one in found], dtype=torch.bool)
        return {
            "mean": torch.tensor([[float(len(one))] for one in found]).reshape(-1, 1),
            "variance": std.square()[:, None],
            "novelty": novelty,
            "valid": valid & torch.isfinite(std) & torch.isfinite(novelty),
        }
