"""Tangent features as sketches of gradient rows: any network, and `dim` numbers a row however large it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data import Inputs, chunks, count, take
from .base import working_set
from .gradients import Gradients
from .hashing import Sketched, Tables
from .network import Choice, TangentNetwork, choose_parameters
from .rows import RowFeatures

LEAST_DIM = 16  # fewer numbers say nothing about a kernel


@dataclass(frozen=True)
class Sketch:
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

    def choose(self, network: nn.Module) -> list[str]:
        return choose_parameters(network, self.parameters)

    def bind(self, network: TangentNetwork, mix: Tensor, sample: Inputs, targets: Tensor) -> SketchMap:
        gradients = Gradients(network, mix)
        return SketchMap(gradients, self, working_bytes=gradients.ways(sample).row_bytes)

    def restore(self, network: TangentNetwork, state: dict[str, Tensor]) -> SketchMap:
        return SketchMap(Gradients(network, state["mix"]), self, int(state["working_bytes"]))

    def settings(self) -> dict:
        choice = self.parameters if isinstance(self.parameters, str) else list(self.parameters)
        return {"dim": self.dim, "parameters": choice, "seed": self.seed}


class SketchMap:
    """Makes sketches, a few rows at a time; all mixed outputs go into one row of `dim` numbers."""

    kind = RowFeatures

    def __init__(self, gradients: Gradients, sketch: Sketch, working_bytes: int) -> None:
        self.gradients = gradients
        self.network, self.mix = gradients.network, gradients.mix
        self.sketch = sketch
        self._working_bytes = working_bytes
        self._tables: dict[torch.device, Tables] = {}

    def __call__(self, inputs: Inputs) -> RowFeatures:
        return self.seen(inputs)[0]

    def seen(self, inputs: Inputs) -> tuple[RowFeatures, Tensor | None]:
        size = max(1, 2 * working_set(self.network.device) // self._working_bytes)
        parts = [self._chunk(take(inputs, index)) for index in chunks(count(inputs), size)]
        if len(parts) == 1:
            return RowFeatures(parts[0][0]), parts[0][1]
        return RowFeatures(torch.cat([rows for rows, _ in parts])), None

    @property
    def slow(self) -> str:
        return self.gradients.slow

    def columns(self, inputs: Inputs) -> Tensor:
        return torch.empty(0, dtype=torch.int64)

    def parts(self, features: RowFeatures) -> None:
        return None  # the sums run over all outputs

    def direction(self, columns: Tensor) -> dict[str, Tensor]:
        return self.network.parameters

    def row_bytes(self) -> int:
        return self.sketch.dim * self.network.dtype.itemsize

    def width(self, *, expert: bool) -> int:
        return self.sketch.dim

    def working_bytes(self) -> int:
        return self._working_bytes

    def state(self) -> dict[str, Tensor]:
        return {"mix": self.mix, "working_bytes": torch.tensor(self._working_bytes)}

    @torch.inference_mode(False)  # the user may predict in it
    def _chunk(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Sketches of rows that fit in memory together, [n, dim], and the outputs that were seen."""
        network = self.network
        found = Sketched(self.tables, count(inputs), network.dtype, network.device)
        outputs = self.gradients(inputs, found)
        return found.rows(), outputs

    @property
    def tables(self) -> Tables:
        """Buckets and signs, drawn anew where the network has moved."""
        if self.network.device not in self._tables:
            drawn = Tables.draw(self.network, len(self.mix), self.sketch.dim, self.sketch.seed)
            self._tables = {self.network.device: drawn}
        return self._tables[self.network.device]
