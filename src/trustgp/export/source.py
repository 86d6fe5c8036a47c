"""The parts of a model that an export needs: a graph, metadata, and the comparison with `predict`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..data.trees import Inputs
from ..model import UncertaintyModel
from .metadata import ColumnTexts, Date, describe, rows_like
from .module.graph import Graph
from .verify import Run, require_equal

EXAMPLE_ROWS = 32  # of the training rows, if no example is given


@dataclass(frozen=True)
class ExportSource:
    """An `UncertaintyModel`; other models have a method `export_source`, whose result has these methods."""

    model: UncertaintyModel

    def inputs(self, example: Any) -> Inputs:
        """The validated example; None: rows of the model's own."""
        if example is not None:
            return rows_like(example, self.model.origin.structure)
        if self.model.memory is None:
            raise ValueError("this model holds no rows; pass example_inputs=, as the network takes them.")
        rows = self.model.memory.rows
        return rows.take(torch.arange(min(EXAMPLE_ROWS, len(rows))))

    def graph(self, inputs: Inputs, *, plain: bool) -> nn.Module:
        """A module that computes `predict` as a dict of tensors."""
        return Graph(self.model, inputs, plain=plain)

    def facts(self, inputs: Inputs, columns: ColumnTexts, date: Date) -> dict[str, str]:
        """The file's metadata."""
        return describe(self.model, inputs, columns, date)

    def check(self, run: Run, inputs: Inputs, *, what: str) -> None:
        """Raise unless the exported form `run` equals `predict`."""
        require_equal(self.model, run, inputs, what=what)


def export_source(model: Any) -> Any:
    """Of any fitted model."""
    own = getattr(model, "export_source", None)
    if own is None and not isinstance(model, UncertaintyModel):
        raise TypeError(f"model is a {type(model).__name__}; pass a model of trustgp.fit or trustgp.load.")
    return ExportSource(model) if own is None else own()
