"""A detector's error bars as recorded graphs: the same operations, without the Python between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..data import leaves
from ..export.tracing import traced
from ..model import UncertaintyModel
from .model import DetectionModel
from .splitting import Detector, rows_of


class TracedModel(DetectionModel):
    """Answers as the model it is made of does.

    Args:
        model: Fitted; its parts are shared.
    """

    def __init__(self, model: DetectionModel) -> None:
        super().__init__(model.network, model.edges, model.classes, model.names, model.size, model.settings)
        self._graphs: dict[str, Any] = {}
        self._record()

    def traced(self) -> DetectionModel:
        return self

    def _told(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        given = leaves(rows)
        edges, classes = (self._graphs[name](*given) for name in ("edges", "classes"))
        return edges["variance"].sqrt(), classes["probabilities"], classes["score"], edges["score"]

    def _apply(self, fn: Any, recurse: bool = True) -> TracedModel:
        """A graph keeps to its device: after a move it is recorded again."""
        super()._apply(fn, recurse)
        self._record()
        return self

    @torch.no_grad()
    def _record(self) -> None:
        first = next(self.network.parameters())
        shape = (1, self.network.config.num_channels, *self.size)
        picture = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(first)
        seen = Detector(self.network, alone=self.alone)(picture)
        one = torch.zeros(1, dtype=torch.int64, device=first.device)
        rows = rows_of(seen, self.names, one, one)
        parts: dict[str, UncertaintyModel] = {"edges": self.edges, "classes": self.classes}
        self._graphs = {name: traced(part, rows, plain=False) for name, part in parts.items()}
