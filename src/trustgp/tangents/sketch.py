"""Tangent features as sketches of gradient rows: any network, and `dim` numbers a row however large it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.chunking import working_set
from ..data.trees import Inputs
from .base import Tangents
from .jacobian.count_sketch import CountSketch, Tables
from .jacobian.per_sample import Gradients
from .network import Choice, TangentNetwork
from .rows import GradientMap

LEAST_DIM = 16  # fewer numbers say nothing about a kernel


@dataclass(frozen=True)
class Sketch(Tangents):
    """Random-sign bucket sums of the gradient rows: unbiased for the kernel, its error falls as 1/sqrt(dim).

    Args:
        dim: Numbers a row.
        parameters: "all", "last", or names of parameters.
        seed: Of the buckets and signs; the same seed gives the same sketch on any device.
    """

    dim: int = 4096
    parameters: Choice = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.dim, int) or self.dim < LEAST_DIM:
            raise ValueError(f"dim={self.dim}; a whole number of at least {LEAST_DIM} is needed.")

    def bind(self, network: TangentNetwork, mix: Tensor, sample: Inputs, targets: Tensor) -> SketchMap:
        gradients = Gradients(network, mix)
        return SketchMap(gradients, self, working_bytes=gradients.plan(sample).row_bytes)

    def restore(self, network: TangentNetwork, state: dict[str, Tensor]) -> SketchMap:
        return SketchMap(Gradients(network, state["mix"]), self, int(state["working_bytes"]))


class SketchMap(GradientMap):
    """Makes sketches, a few rows at a time; all mixed outputs go into one row of `dim` numbers."""

    def __init__(self, gradients: Gradients, sketch: Sketch, working_bytes: int) -> None:
        super().__init__(gradients)
        self.sketch = sketch
        self._working_bytes = working_bytes
        self._tables: dict[torch.device, Tables] = {}

    def collector(self, n: int) -> CountSketch:
        return CountSketch(self.tables, n, self.network.dtype, self.network.device)

    def chunk_memory(self) -> int:
        return 2 * working_set(self.network.device)

    def num_columns(self, *, expert: bool) -> int:
        return self.sketch.dim

    def working_bytes(self) -> int:
        return self._working_bytes

    def state(self) -> dict[str, Tensor]:
        return {"mix": self.mix, "working_bytes": torch.tensor(self._working_bytes)}

    @property
    def tables(self) -> Tables:
        """Buckets and signs, drawn anew where the network has moved."""
        if self.network.device not in self._tables:
            drawn = Tables.draw(self.network, len(self.mix), self.sketch.dim, self.sketch.seed)
            self._tables = {self.network.device: drawn}
        return self._tables[self.network.device]
