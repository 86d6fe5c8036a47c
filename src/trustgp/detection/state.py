"""What a detector's error bar consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..likelihoods.novelty import NoveltyThreshold
from ..model import UncertaintyModel
from .detector import Detector
from .edge_noise import Edges
from .settings import Detection


@dataclass(frozen=True, eq=False)
class DetectorState:
    """A detector and its error bar: how sure its classes are, and, from the same kernel, its edges.

    Args:
        network: A private copy of the detector.
        finding: Fitted on rows, each a query of a picture: is there anything, and what?
        edges: How far off the edges are.
        names: Of the tensors that go into the decoder's last layer and differ from picture to picture.
        size: Height and width of the pictures.
        settings: What the user said.
        held_scores: Novelty of the held-out detections that have found a thing, float64, [k]; empty: there
            were none.
        threshold: Of the novelty; None: none was fitted.
    """

    network: Any
    finding: UncertaintyModel
    edges: Edges
    names: tuple[str, ...]
    size: tuple[int, int]
    settings: Detection
    held_scores: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    threshold: NoveltyThreshold | None = None

    @property
    def detector(self) -> Detector:
        """The network, as rows are made with it."""
        alone = bool(self.finding.network.get_submodule("tail").each)  # a row needs its own query only
        return Detector(self.network, alone=alone, whole=self.settings.whole)
