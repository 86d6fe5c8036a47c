r"""The linearised network as a sparse Gaussian process in its dual form: SFR (Scannell et al. 2024).

With the tangent kernel :math:`k = J J^\top / \delta` of an output, inducing points z and the dual parameters
:math:`B = \sum_i k_z(x_i) \, \sigma^{-2} \, k_z(x_i)^\top` of all training rows, the variance is

.. math:: v(x) = k(x, x) - k_z(x)^\top \big( K_{zz}^{-1} - (K_{zz} + B)^{-1} \big) k_z(x) .

Each output has a kernel of its own, as in their code; points are random training rows; the prior precision
delta is the one that makes the validation rows most likely, with the scale and the noise. The mean is the
network's own output, which theirs approaches as points become many. With
:math:`\psi = L^{-1} J_z J^\top`, :math:`L L^\top = J_z J_z^\top` and
:math:`\sum_i \psi \psi^\top = V \Lambda V^\top` over all rows, at :math:`\tau = \sigma^2 \delta`

.. math:: \delta \, v = |J|^2 - |\psi|^2 + \sum_j \tfrac{\tau}{\lambda_j + \tau} (V^\top \psi)_j^2 ,

so that one pass serves every delta. Tests compare it with the first form in float64; the paper itself was not
at hand, only its authors' early code. Nothing was checked against their published figures.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from trustgp.data.chunking import chunks
from trustgp.data.rows import Rows, read_rows
from trustgp.data.trees import Inputs, as_inputs, count, take, to_device
from trustgp.experts.features import NO_COLUMNS, chunk_rows, features_at
from trustgp.math.evidence import factorise
from trustgp.tangents import JacobianRows, LayerFactors
from trustgp.tangents.base import Features, TangentMap, output_mixes
from trustgp.tangents.network import prepare

from ..training.train import errors, run_network
from .trusted import JITTER, whitened
from .tuning import NoisyPeer, held_out_nll, likeliest_scale

POINTS = 512
DECADES = range(-6, 7)  # delta, as powers of ten of the kernel's mean diagonal over the noise


@dataclass(frozen=True)
class DualOutput:
    """One output's kernel, and what all training rows leave behind."""

    tangents: TangentMap
    points: Features  # of the M inducing points
    rotation: Tensor  # L^-T V                          [M, M]
    values: Tensor  # Lambda, of the sum of psi psi^T   [M]
    level: Tensor  # mean of |J|^2                      []

    @classmethod
    def of(cls, tangents: TangentMap, rows: Rows, chosen: Tensor) -> Self:
        """One pass over all rows, chunk by chunk."""
        points = features_at(tangents, rows, chosen, NO_COLUMNS, None)
        gram = points.gram(points)
        if not float(gram.diagonal().mean()) > 0:
            raise ValueError("an output of the network does not depend on its weights at these rows.")
        factor, _ = factorise(gram, JITTER * float(gram.diagonal().mean()))
        square, level = torch.zeros_like(gram), gram.new_zeros(())
        for index in chunks(len(rows), chunk_rows(tangents)):
            features = tangents(rows.take(index))
            psi = whitened(features, points, factor)
            square.addmm_(psi.T, psi)
            level += features.diag().sum() / len(rows)
        values, basis = torch.linalg.eigh(square)
        rotation = torch.linalg.solve_triangular(factor.T, basis, upper=True)
        return cls(tangents, points, rotation, values.clamp_min(0.0), level)

    def project(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """(V^T psi)^2 [n, M], and |J|^2 - |psi|^2 [n], float64."""
        inside, outside = [], []
        for index in chunks(count(inputs), chunk_rows(self.tangents)):
            features = self.tangents(take(inputs, index))
            inside.append((features.gram(self.points) @ self.rotation).square())
            # V is orthogonal; a difference, which rounding may take below zero
            outside.append((features.diag() - inside[-1].sum(dim=1)).clamp_min(0.0))
        return torch.cat(inside), torch.cat(outside)

    def variance(self, projected: tuple[Tensor, Tensor], delta: float, noise: float) -> Tensor:
        """v at a prior precision, shape [n]."""
        inside, outside = projected
        tau = noise * delta
        return (outside + inside @ (tau / (self.values + tau))) / delta

    def shipped(self) -> Any:
        """What a prediction needs beside the network."""
        return self.points.tensors(), self.rotation, self.values


@dataclass(frozen=True)
class Sfr(NoisyPeer):
    """A network, and the dual form of each of its outputs. Made by `fit`."""

    network: nn.Module
    outputs: tuple[DualOutput, ...]
    sigma2: Tensor  # of each output, its mean squared error on the validation rows  [C]
    delta: float  # the prior precision

    @classmethod
    @torch.no_grad()
    def fit(
        cls, network: nn.Module, train: Any, validation: Any, *, points: int = POINTS, seed: int = 0
    ) -> Self:
        """Random training rows as points, or all; delta, scale, noise and tails by the validation rows."""
        rows, held = read_rows(train, name="train"), read_rows(validation, name="validation")
        error = errors(run_network(network, held.inputs), held)
        sigma2 = error.square().mean(dim=0)
        if not bool((sigma2 > 0).all()):
            raise ValueError("an output has no error on the validation rows; pass rows it was not fitted to.")
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:points]
        maps = tangents_of(network, rows)
        found = tuple(DualOutput.of(each, rows, chosen) for each in maps)
        plain = cls(network, found, sigma2, 1.0)
        return plain._likeliest(error, held).tailed(held, rows)

    def _likeliest(self, error: Tensor, held: Rows) -> Self:
        """With delta, scale and noise."""
        inputs = to_device(held.inputs, error.device)
        projected, tried = [each.project(inputs) for each in self.outputs], []
        level = torch.stack([each.level for each in self.outputs]).to(self.sigma2)
        for decade in DECADES:
            one = replace(self, delta=float((level / self.sigma2).mean()) * 10.0**decade)
            spread = one._spread(iter(projected))
            scale, noise = likeliest_scale(error, spread)
            loss = held_out_nll(error, scale * spread + noise)
            tried.append((loss, replace(one, scale=scale, noise=noise)))
        return min(tried, key=lambda entry: entry[0])[1]

    def _spread(self, projected: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
        """Variances [n, C], float64, from one output after another: each takes M numbers a row."""
        each = zip(self.outputs, projected, self.sigma2.tolist(), strict=True)
        return torch.stack([one.variance(seen, self.delta, noise) for one, seen, noise in each], dim=1)

    def shipped(self) -> Any:
        """What a prediction needs."""
        return self.network, [each.shipped() for each in self.outputs], self.sigma2, self.noise, self.tails

    @torch.no_grad()
    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The network's own output, and the variance of the sparse process."""
        mean = run_network(self.network, inputs)
        rows = torch.nan_to_num(to_device(as_inputs(inputs), mean.device))  # broken rows get no answer anyway
        spread = self._spread(each.project(rows) for each in self.outputs)
        return mean, spread.to(mean).reshape(mean.shape)


def tangents_of(network: nn.Module, rows: Rows) -> list[TangentMap]:
    """The exact tangent kernel of each output, by layer factors, or by gradients where there are none."""
    if not isinstance(rows.inputs, Tensor):
        raise ValueError("SFR takes one tensor of inputs here; these are a tuple or a dict.")
    mixes = output_mixes("separate", rows.targets.shape[1], torch.Generator())
    sample, targets = rows.inputs[:2], rows.targets[:2]
    device = next(network.parameters()).device
    for kind in (LayerFactors(), JacobianRows()):
        try:
            own = prepare(network, kind.choose(network), device)
            return [kind.bind(own, mix, sample.to(device), targets) for mix, _ in mixes]
        except ValueError:
            if isinstance(kind, JacobianRows):
                raise
    raise AssertionError("one of two serves")
