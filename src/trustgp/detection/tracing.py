"""A detector's error bar as a recorded graph: the same operations, without the Python between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..data import leaves
from ..export.tracing import traced
from .model import DetectionModel


class TracedModel(DetectionModel):
    """Answers as the model it is made of does.

    Args:
        model: Fitted; its parts are shared.
    """

    def __init__(self, model: DetectionModel) -> None:
        parts = (model.names, model.size, model.settings, model.held_scores, model.alarm)
        super().__init__(model.network, model.finding, model.edges, *parts)
        self._graph: Any = None
        self._record()

    def traced(self) -> DetectionModel:
        return self

    def _told(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        said = self._graph(*leaves(rows))
        return said["probabilities"], said["score"]

    def _apply(self, fn, recurse: bool = True) -> TracedModel:
        """A graph keeps to its device: after a move it is recorded again."""
        super()._apply(fn, recurse)
        self._record()
        return self

    @torch.no_grad()
    def _record(self) -> None:
        first = next(self.network.parameters())
        shape = (1, self.detector.channels, *self.size)
        picture = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(first)
        one = torch.zeros(1, dtype=torch.int64, device=first.device)
        self._graph = traced(self.finding, self.detector(picture).rows(self.names, one, one), plain=False)
