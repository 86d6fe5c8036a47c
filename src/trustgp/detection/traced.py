"""A detector's error bar as a recorded graph: the same operations, without the Python between them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.trees import leaves
from ..export.trace.trace import traced
from .state import DetectorState


class RecordedAnswers:
    """What the error bar says of rows, exact to rounding, and faster for few of them.

    Args:
        state: Fitted; its parts are shared. The graph keeps to the device where they are now.
    """

    @torch.no_grad()
    def __init__(self, state: DetectorState) -> None:
        first, detector = next(state.network.parameters()), state.detector
        shape = (1, detector.channels, *state.size)
        picture = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(first)
        one = torch.zeros(1, dtype=torch.int64, device=first.device)
        self._graph = traced(state.finding, detector(picture).rows(state.names, one, one), plain=False)

    def __call__(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Of each row the probabilities of the classes, and the novelty."""
        said = self._graph(*leaves(rows))
        return said["probabilities"], said["score"]
