r"""The variance of linearised logits under a Kronecker-factored posterior, for any layer that has factors.

A layer's precision is :math:`(Q_1 \otimes Q_2)(\ell_1 \otimes \ell_2 + \delta)(Q_1 \otimes Q_2)^\top`. With
the gradient of a logit as :math:`G = \sum_t g_t a_t^\top` (over the positions of a convolution), its share is

.. math:: \sum_{ij} \frac{(Q_1^\top G Q_2)_{ij}^2}{\ell_{1i} \ell_{2j} + \delta} ,

which for a single position needs no G. Several prior precisions are looked at in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..tangents.collecting import products

PRODUCT_BYTES = {"cpu": 2**25, "cuda": 2**28}  # of the gradients that stand written out at a time


@dataclass(frozen=True)
class Block:
    """One parameter's share of the precision.

    Args:
        left: Q1, shape [o, o].
        right: Q2, shape [i, i]; None: a bias, or a vector, which has one factor.
        inverse: 1 / (l1 l2 + delta) for each of D priors, shape [D, o, i] or [D, o].
    """

    left: Tensor
    right: Tensor | None
    inverse: Tensor


def blocks_of(curvature: Any, names: Sequence[str], priors: Sequence[float]) -> dict[str, Block]:
    """The precision by parameter.

    Args:
        curvature: laplace-torch's `KronDecomposed`, without a prior.
        names: Of the parameters, in its order.
        priors: D prior precisions.
    """
    found = {}
    for name, values, vectors in zip(names, curvature.eigenvalues, curvature.eigenvectors, strict=True):
        prior = torch.tensor(priors, dtype=values[0].dtype, device=values[0].device)
        if len(values) == 1:
            found[name] = Block(vectors[0], None, (values[0] + prior[:, None]).reciprocal())
        else:
            product = torch.outer(values[0], values[1]) + prior[:, None, None]
            found[name] = Block(vectors[0], vectors[1], product.reciprocal())
    return found


class KronCollector:
    """Takes the gradients of n rows and C logits as they come, and adds up variances of shape [n, C, D].

    Gradients of a parameter must come whole: what comes twice for the same row would be squared apart.

    Args:
        blocks: By parameter.
        total: What is added to.
    """

    def __init__(self, blocks: dict[str, Block], total: Tensor) -> None:
        self.blocks = blocks
        self.total = total

    def part(self, rows: slice, mixed: slice) -> KronCollector:
        """For some of the rows and logits."""
        return KronCollector(self.blocks, self.total[rows, mixed])

    def room(self, size: int) -> int:
        """None: products are cut to size here."""
        return 0

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """Gradients sum_t left_t right_t^T, from [n, C, 1, t, o] and [n, 1, 1, t, i]."""
        block = self.blocks[name]
        if left.shape[2] != 1 or block.right is None:
            raise ValueError(f"'{name}' has no two Kronecker factors of its own.")
        left, right = left @ block.left, right @ block.right
        if left.shape[3] == 1 and right.shape[1] == 1:
            weights = torch.einsum("ni,doi->nod", right[:, 0, 0, 0].square(), block.inverse)
            self.total += torch.einsum("nco,nod->ncd", left[:, :, 0, 0].square(), weights)
            return
        flat = block.inverse.flatten(1).T  # [o * i, D]
        size = left.shape[1] * len(flat) * left.element_size()
        step = max(1, PRODUCT_BYTES.get(left.device.type, 2**25) // size)
        for start in range(0, len(left), step):
            rows = slice(start, start + step)
            self.total[rows] += products(left[rows], right[rows]).flatten(2).square() @ flat

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        """Refused."""
        raise ValueError(f"'{name}' is an embedding, which has no Kronecker factors.")

    def plain(self, name: str, value: Tensor) -> None:
        """Gradients written out, [n, C, *shape of the parameter]."""
        block = self.blocks[name]
        if block.right is None:
            self.total += (value.flatten(2) @ block.left).square() @ block.inverse.T
            return
        whole = value.reshape(*value.shape[:2], len(block.left), len(block.right))
        rotated = block.left.T @ whole @ block.right
        self.total += rotated.flatten(2).square() @ block.inverse.flatten(1).T
