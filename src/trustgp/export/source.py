"""What an export needs of a model: a graph, what a file says of it, and the comparison with `predict`."""

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

ROWS = 32  # of the training rows, where no example is given
Columns = Sequence[Sequence[str] | None]
Run = Callable[[Inputs], Mapping[str, Any]]


class ExportSource(Protocol):
    """A model on its way to a file. A model of another kind than `UncertaintyModel` has a method
    `export_source` that gives its own."""

    @property
    def network(self) -> nn.Module:
        """The network itself."""
        ...

    def inputs(self, example: Any) -> Inputs:
        """The example, checked; None: what the model has."""
        ...

    def graph(self, inputs: Inputs, *, plain: bool) -> nn.Module:
        """What `predict` computes, inputs in, a dict of answers out; see `Graph`."""
        ...

    def facts(self, inputs: Inputs, columns: Columns, date: str | datetime.date | None) -> dict[str, str]:
        """The file's metadata; see `describe`."""
        ...

    def check(self, run: Run, inputs: Inputs, *, what: str) -> None:
        """Raise unless the other form `run` gives what `predict` does."""
        ...


@dataclass(frozen=True)
class RowSource:
    """An `UncertaintyModel`, which takes rows."""

    model: UncertaintyModel

    @property
    def network(self) -> nn.Module:
        """The network itself."""
        return self.model.network

    def inputs(self, example: Any) -> Inputs:
        """Some rows as the network takes them; None: training rows, if the model still has them."""
        if example is not None:
            return rows_like(example, self.model.origin.structure)
        if self.model.memory is None:
            raise ValueError(
                "this model holds no rows; pass example_inputs=, some rows as the network takes them."
            )
        held = self.model.memory.rows
        return held.take(torch.arange(min(ROWS, len(held))))

    def graph(self, inputs: Inputs, *, plain: bool) -> nn.Module:
        """The network, its gradients, gate, experts, witness and calibration."""
        return Graph(self.model, inputs, plain=plain)

    def facts(self, inputs: Inputs, columns: Columns, date: str | datetime.date | None) -> dict[str, str]:
        """Provenance, threshold, and names and units of the columns."""
        return describe(self.model, inputs, columns, date)

    def check(self, run: Run, inputs: Inputs, *, what: str) -> None:
        """See `require_equal`."""
        require_equal(self.model, run, inputs, what=what)


def export_source(model: Any) -> ExportSource:
    """Of any fitted model."""
    own = getattr(model, "export_source", None)
    if own is None and not isinstance(model, UncertaintyModel):
        raise TypeError(f"model is a {type(model).__name__}; pass what trustgp.fit or trustgp.load gave.")
    return RowSource(model) if own is None else own()
