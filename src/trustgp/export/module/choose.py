"""One of several modules answers for each row: an operation that stays whole in a traced graph.

Where a file format can branch, only the chosen expert's numbers are touched, and they are stored as they are:
neither padded nor copied together. What it costs does not depend on the number of experts.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_KEYS = itertools.count()
_CHOICES: weakref.WeakValueDictionary[int, Chosen] = weakref.WeakValueDictionary()


class Chosen(nn.Module):
    """Modules of one kind, of which each row is answered by one.

    Args:
        experts: Each takes tensors of one row, and gives a tuple of numbers [] or vectors. They differ in the
            sizes of their buffers only, and these do not show in what they give.
        example: One row's tensors.
    """

    def __init__(self, experts: Sequence[nn.Module], example: Sequence[Tensor]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self.example = [vector.clone() for vector in example]
        self.kinds = [(tuple(value.shape), value.dtype) for value in self.experts[0](*self.example)]
        self.key = next(_KEYS)
        _CHOICES[self.key] = self

    def forward(self, labels: Tensor, *vectors: Tensor) -> list[Tensor]:
        """What the experts `labels` [n] say of the rows of `vectors`, [n, ...] each: [n, ...] each."""
        return choose(labels, list(vectors), self.key)


def chosen(key: int) -> Chosen:
    """The modules among which a call of `choose` chooses."""
    return _CHOICES[key]


@torch.library.custom_op("trustgp::choose", mutates_args=())
def choose(labels: Tensor, vectors: Sequence[Tensor], key: int) -> list[Tensor]:
    """The answers of `Chosen` number `key`."""
    choice = chosen(key)
    rows = [
        choice.experts[label](*(vector[i] for vector in vectors)) for i, label in enumerate(labels.tolist())
    ]
    return [torch.stack(lot) for lot in zip(*rows, strict=True)]


@choose.register_fake
def _(labels: Tensor, vectors: Sequence[Tensor], key: int) -> list[Tensor]:
    n = labels.shape[0]
    return [vectors[0].new_empty(n, *shape, dtype=dtype) for shape, dtype in chosen(key).kinds]
