"""The parts of a model that an export needs: a graph, metadata, and the comparison with `predict`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from ..data.trees import Inputs
from ..model import UncertaintyModel
from .metadata import describe, rows_like
from .module.graph import Graph
from .verify import require_equal

EXAMPLE_ROWS = 32  # of the training rows, if no example is given
ColumnTexts = Sequence[Sequence[str] | None]
Run = Callable[[Inputs], Mapping[str, Any]]


class ExportSource(Protocol):
    """A model that can be exported; a class other than `UncertaintyModel` returns its own from a method
    `export_source`."""

    @property
    def network(self) -> nn.Module:
        """The network itself."""
        ...

    def inputs(self, example: Any) -> Inputs:
        """The validated example; None: rows of the model's own."""
        ...

    def graph(self, inputs: Inputs, *, plain: bool) -> nn.Module:
        """A module that computes `predict` as a dict of tensors; see `Graph`."""
        ...

    def facts(self, inputs: Inputs, columns: ColumnTexts, date: str | datetime.date | None) -> dict[str, str]:
        """The file's metadata; see `describe`."""
        ...

    def check(self, run: Run, inputs: Inputs, *, what: str) -> None:
        """Raise unless the exported form `run` equals `predict`."""
        ...


@dataclass(frozen=True)
class RowSource(ExportSource):
    """An `UncertaintyModel`."""

    model: UncertaintyModel

    @property
    def network(self) -> nn.Module:
        return self.model.network

    def inputs(self, example: Any) -> Inputs:
        if example is not None:
            return rows_like(example, self.model.origin.structure)
        if self.model.memory is None:
            raise ValueError(
                "this model holds no rows; pass example_inputs=, some rows as the network takes them."
            )
        rows = self.model.memory.rows
        return rows.take(torch.arange(min(EXAMPLE_ROWS, len(rows))))

    def graph(self, inputs: Inputs, *, plain: bool) -> nn.Module:
        return Graph(self.model, inputs, plain=plain)

    def facts(self, inputs: Inputs, columns: ColumnTexts, date: str | datetime.date | None) -> dict[str, str]:
        return describe(self.model, inputs, columns, date)

    def check(self, run: Run, inputs: Inputs, *, what: str) -> None:
        require_equal(self.model, run, inputs, what=what)


def export_source(model: Any) -> ExportSource:
    """Of any fitted model."""
    own = getattr(model, "export_source", None)
    if own is None and not isinstance(model, UncertaintyModel):
        raise TypeError(f"model is a {type(model).__name__}; pass a model of trustgp.fit or trustgp.load.")
    return RowSource(model) if own is None else own()
