"""All experts of a mixture that keep bases, in stacked tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ..data.torch_modes import readable
from ..math.posterior import span_variance
from ..tangents.rows import RowFeatures
from .blocks import Blocks, by_owner, rows_at
from .posteriors import LatentMoments, Posterior, SpanPosterior


def padded(tensors: Sequence[Tensor], fill: float = 0.0) -> Tensor:
    """Tensors padded to the largest size along each dimension, [M, ...]."""
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    table = tensors[0].new_full((len(tensors), *shape), fill)
    for place, tensor in zip(table, tensors, strict=True):
        place[tuple(slice(size) for size in tensor.shape)] = tensor
    return table


@dataclass(frozen=True)
class SpanStack:
    """Bases and weights of M experts, with zeros for failed experts and missing directions."""

    basis: Tensor  # V [M, d, r], in the network's precision
    root: Tensor  # square root of tau / (lambda + tau) [M, 1, r], in the same precision
    weights: Tensor  # of the columns in the residual mean [M, d, B]
    columns: Tensor  # the feature columns that each keeps [M, d]; d = 0: all
    failed: Tensor | None  # which have only the prior [M]; None: no special case is needed

    @classmethod
    def of(cls, posteriors: Sequence[Posterior]) -> SpanStack | None:
        """Stack of posteriors, whose bases become views of it; None where experts keep rows or all failed."""
        spans = [one for one in posteriors if isinstance(one, SpanPosterior)]
        if not spans or any(not one.failed for one in posteriors if not isinstance(one, SpanPosterior)):
            return None
        first = spans[0]
        every: Any = [first.truncate(0) if one.failed else one for one in posteriors]
        basis = padded([one.basis for one in every])
        for one, place in zip(posteriors, basis, strict=True):
            if isinstance(one, SpanPosterior):  # the same numbers, stored once
                object.__setattr__(one, "basis", place[:, : one.directions])
        weights = [torch.zeros_like(first.weights) if e.failed else e.weights for e in posteriors]
        columns = torch.stack([one.columns for one in every]).to(basis.device)
        failed = torch.tensor([one.failed for one in posteriors], device=basis.device)
        needed = columns.numel() > 0 and bool(failed.any())
        root = padded([one.shrinkage.sqrt() for one in every]).to(basis.dtype)[:, None]
        return cls(basis, root, torch.stack(weights), columns, failed if needed else None)

    def select(self, features: RowFeatures, labels: Tensor) -> RowFeatures:
        """Features of the columns that the expert of each row, `labels` [n], keeps."""
        if not self.columns.numel():
            return features
        return RowFeatures(features.rows.gather(1, self.columns.index_select(0, labels)))

    def __call__(self, kept: RowFeatures, labels: Tensor) -> LatentMoments:
        """Predicted moments of rows, each by its expert, `labels` [n]."""
        # float32 products of a GPU may be TF32
        wide, precision = kept.wide, torch.float64 if labels.is_cuda else self.basis.dtype
        narrow = wide if precision == wide.dtype else kept.rows.to(precision)
        if readable(labels):
            unit, mean = by_owner(partial(self._of_one, narrow, wide), labels, len(self.basis))
        else:
            blocks = Blocks.of(labels, len(self.basis))
            basis, root = (blocks.pick(table).to(precision) for table in (self.basis, self.root))
            unit = blocks.join(span_variance(blocks.split(narrow), basis, root))
            mean = blocks.join(torch.bmm(blocks.split(wide), blocks.pick(self.weights)))
        return LatentMoments(unit, torch.linalg.vector_norm(wide, dim=1).square(), mean)

    def _of_one(self, phi: Tensor, wide: Tensor, expert: int, rows: Any) -> tuple[Tensor, Tensor]:
        """Variances and residual means of the rows of one expert."""
        basis, root, weights = self._experts[expert]
        unit = span_variance(rows_at(phi, rows)[None], basis, root)
        return unit[0], torch.mm(rows_at(wide, rows), weights)

    @cached_property
    def _experts(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Basis [1, d, r], root [1, 1, r] and weights [d, B] of each expert."""
        return list(zip(self.basis.split(1), self.root.split(1), self.weights.unbind(), strict=True))
