"""Hidden vectors of training rows, from one pass over a few of each class."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import evenly, map_chunks
from ..data.rows import Rows
from ..experts.hidden import MIN_PER_CLASS, rows_per_class
from ..experts.mixture import Mixture
from ..tangents.jacobian.layer_io import hidden_rows
from ..tangents.network import TangentNetwork
from .prepare import Prepared

MIN_BUDGET = 8  # over the size of what is optional: within a smaller budget there is none


def hidden_index(ready: Prepared, rows: Rows) -> tuple[Tensor, int]:
    """A few rows of each class [k], ascending, and the numbers of a hidden vector; none where the network has
    no head, or the budget no room."""
    network, options = ready.network, ready.options
    if not network.head:
        return torch.arange(0), 0
    labels = class_labels(rows)
    width = hidden_rows(network, rows.first).shape[1]
    classes = len(labels.unique())
    most = min(rows_per_class(classes, width), max(MIN_PER_CLASS, options.hidden_rows // classes))
    each = [(labels == label).nonzero().flatten() for label in labels.unique()]
    index = torch.cat([own[evenly(len(own), most)] for own in each]).sort().values
    size = options.budget.size
    short = size is not None and size < MIN_BUDGET * 4 * width * len(index)
    return (torch.arange(0), 0) if short else (index, width)


def extend_hidden(mixture: Mixture, rows: Rows) -> Mixture:
    """The mixture whose hidden vectors include those of these rows."""
    if mixture.hidden is None:
        return mixture
    vectors = hidden_at(mixture.tangents.network, rows, torch.arange(len(rows)))
    return replace(mixture, hidden=mixture.hidden.extended(vectors, class_labels(rows)))


def class_labels(rows: Rows) -> Tensor:
    """The class of each row on the CPU, int64 [n]; 0 where targets are not one class number a row."""
    targets: Any = rows.targets.cpu()
    single = targets.shape[1] == 1 and not targets.is_floating_point()
    return targets[:, 0].long() if single else torch.zeros(len(targets), dtype=torch.int64)


@torch.no_grad()
def hidden_at(network: TangentNetwork, rows: Rows, index: Tensor) -> Tensor:
    """Hidden vectors of the rows `index`, shape [k, h]."""
    size = network.pass_rows(rows.first)
    return torch.cat(map_chunks(lambda part: hidden_rows(network, rows.take(part)), index, size))
