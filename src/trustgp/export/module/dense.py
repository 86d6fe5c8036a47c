"""Models whose outputs have positions, as one graph."""

import torch
from torch import Tensor, nn

from ...data.trees import Inputs
from ...model import DenseModel
from .graph import Graph


class DenseGraph(nn.Module):
    """The network, the rows of its positions, and `Graph` of these rows; results are shaped as the output."""

    def __init__(self, model: DenseModel, example: Inputs, *, plain: bool) -> None:
        super().__init__()
        self.positions, self.flat = model.dense.positions, model.dense.layout.tail is not None
        rows = example if self.flat else self.positions.rows(*self.positions(example))
        self.graph = Graph(model.row_model, rows, plain=plain)

    @torch.no_grad()
    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        """Outputs of `Graph.forward`, by position."""
        if self.flat:
            answers, lead = self.graph(inputs), ()
        else:
            outputs, features = self.positions(inputs)
            answers, lead = self.graph(self.positions.rows(outputs, features)), features.shape[:-1]
        return {name: self._shaped(value, lead) for name, value in answers.items()}

    def _shaped(self, values: Tensor, lead: tuple[int, ...]) -> Tensor:
        placed = values.reshape(*lead, *values.shape[1:]) if lead else values
        return self.positions.layout.restored(placed) if values.ndim == 2 else placed
