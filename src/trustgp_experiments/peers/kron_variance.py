r"""The variance of linearised outputs under a Kronecker-factored posterior, for any layer that has factors.

A layer's precision is :math:`(Q_1 \otimes Q_2)(\ell_1 \otimes \ell_2 + \delta)(Q_1 \otimes Q_2)^\top`. With
an output's gradient :math:`G = \sum_t g_t a_t^\top` (over the positions of a convolution), its share is

.. math:: \sum_{ij} \frac{(Q_1^\top G Q_2)_{ij}^2}{\ell_{1i} \ell_{2j} + \delta} ,

which for a single position needs no G. Several prior precisions are looked at in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trustgp.data.chunking import chunks
from trustgp.data.trees import Inputs, as_inputs, count, take, to_device
from trustgp.tangents.jacobian.accumulators import products
from trustgp.tangents.jacobian.per_sample import Gradients
from trustgp.tangents.network import prepare

PRODUCT_BYTES = {"cpu": 2**25, "cuda": 2**28}  # of the gradients that stand written out at a time
JACOBIAN_BYTES = {"cpu": 2**28, "cuda": 2**31}  # of a chunk of rows where Jacobians must be written out
CHUNK = 512  # rows whose signals stand side by side
ALIKE = {torch.float64: 1e-8}  # of our variance and laplace-torch's, relative
ROUGHLY = 0.1  # in other precisions: convolutions on a GPU round to three digits, what is wrong is so by far


@dataclass(frozen=True)
class KronVariance:
    """Makes the variances of a network's outputs. Made by `fit`.

    Args:
        laplace: laplace-torch's object, around a copy of the network.
        names: Of the parameters that vary.
        gradients: Hands out the outputs' gradients; None: laplace-torch's own Jacobians, [n, C, P], are used.
    """

    laplace: Any
    names: tuple[str, ...]
    gradients: Gradients | None

    @classmethod
    def fit(cls, network: nn.Module, names: tuple[str, ...], laplace: Any, few: Tensor) -> KronVariance:
        """Without Jacobians where that gives what laplace-torch gives on a few rows, else with them.

        Args:
            network: In eval mode.
            names, laplace: See above.
            few: Some rows of inputs.
        """
        mix = torch.eye(laplace.n_outputs, dtype=torch.float64)
        found = cls(laplace, names, Gradients(prepare(network, names, None), mix))
        by_library = cls(laplace, names, None)
        expected = by_library(few, laplace.posterior_precision)
        try:
            close = (found(few, laplace.posterior_precision) - expected).norm()
        except ValueError:  # a parameter without factors of its own
            return by_library
        return found if close <= ALIKE.get(expected.dtype, ROUGHLY) * expected.norm() else by_library

    @torch.no_grad()
    def __call__(self, inputs: Inputs, precision: Any, priors: Sequence[float] = (0.0,)) -> Tensor:
        r"""Diagonal of :math:`J (P + \delta)^{-1} J^\top` for each of D priors, shape [n, C, D].

        Args:
            inputs: Shape [n, ...].
            precision: P, laplace-torch's `KronDecomposed`.
            priors: D precisions to add, looked at in one pass.
        """
        rows = to_device(as_inputs(inputs), self.laplace.mean.device)
        rows = torch.nan_to_num(rows)  # in a joint backward pass a broken row would break its neighbours
        if self.gradients is None:
            size = self._jacobian_rows()
            return torch.cat([self._by_library(part, precision, priors) for part in rows.split(size)])
        blocks = blocks_of(precision, self.names, priors)
        parts = []
        for index in chunks(count(rows), CHUNK):
            shape = len(index), self.laplace.n_outputs, len(priors)
            parts.append(self.laplace.mean.new_zeros(shape))
            self.gradients(take(rows, index), KronCollector(blocks, parts[-1]))
        return torch.cat(parts)

    def _by_library(self, rows: Tensor, precision: Any, priors: Sequence[float]) -> Tensor:
        backend = self.laplace.backend
        jacobians, _ = (backend.last_layer_jacobians if backend.last_layer else backend.jacobians)(rows)
        grown = [precision + self.laplace.mean.new_tensor([prior]) for prior in priors]
        return torch.stack([one.inv_square_form(jacobians).diagonal(dim1=1, dim2=2) for one in grown], dim=2)

    def _jacobian_rows(self) -> int:
        """Rows of a chunk whose Jacobians, three times over, fit the memory set aside for them."""
        mean = self.laplace.mean
        row = 3 * self.laplace.n_outputs * self.laplace.n_params * mean.element_size()
        return max(1, JACOBIAN_BYTES.get(mean.device.type, 2**28) // row)


@dataclass(frozen=True)
class KronBlock:
    """One parameter's share of the precision.

    Args:
        left: Q1, shape [o, o].
        right: Q2, shape [i, i]; None: a bias, or a vector, which has one factor.
        inverse: 1 / (l1 l2 + delta) for each of D priors, shape [D, o, i] or [D, o].
    """

    left: Tensor
    right: Tensor | None
    inverse: Tensor


def blocks_of(precision: Any, names: Sequence[str], priors: Sequence[float]) -> dict[str, KronBlock]:
    """The precision by parameter.

    Args:
        precision: laplace-torch's `KronDecomposed`: for each weight two factors, for each bias one.
        names: Of the parameters, in its order.
        priors: D prior precisions to add.
    """
    found = {}
    parts = zip(names, precision.eigenvalues, precision.eigenvectors, precision.deltas, strict=True)
    for name, values, (left, *right), delta in parts:
        product = values[0] if len(values) == 1 else torch.outer(*values)
        grown = [(product + delta + prior).reciprocal() for prior in priors]
        found[name] = KronBlock(left, right[0] if right else None, torch.stack(grown))
    return found


class KronCollector:
    """Takes the gradients of n rows and C outputs as they come, and adds up variances of shape [n, C, D].

    Gradients of a parameter must come whole: what comes twice for the same row would be squared apart.

    Args:
        blocks: By parameter.
        total: What is added to.
    """

    def __init__(self, blocks: dict[str, KronBlock], total: Tensor) -> None:
        self.blocks = blocks
        self.total = total

    def part(self, rows: slice, mixed: slice) -> KronCollector:
        """For some of the rows and outputs."""
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
