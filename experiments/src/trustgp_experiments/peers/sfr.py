r"""The linearised network as a sparse Gaussian process: SFR (Scannell et al. 2024), and a shared kernel.

With the tangent kernel :math:`k = J J^\top / \delta`, inducing points z and the dual parameters
:math:`B = \sum_i k_z(x_i) \, \sigma^{-2} \, k_z(x_i)^\top` of all training rows, the variance is

.. math:: v(x) = k(x, x) - k_z(x)^\top \big( K_{zz}^{-1} - (K_{zz} + B)^{-1} \big) k_z(x) .

In SFR each output has its own kernel, as in the authors' code, and points are random training rows; the
"sparse NTK GP" has one kernel for all outputs, and its points are the most uncertain of random candidates.
Validation rows choose the prior precision delta, the scale and the noise. The mean is the network's own
output. With :math:`\psi = L^{-1} J_z J^\top`, :math:`L L^\top = J_z J_z^\top` and
:math:`\sum_i \psi \psi^\top = V \Lambda V^\top` over all rows, at :math:`\tau = \sigma^2 \delta`

.. math:: \delta \, v = |J|^2 - |\psi|^2 + \sum_j \tfrac{\tau}{\lambda_j + \tau} (V^\top \psi)_j^2 ,

so one pass serves every delta. Tests compare it with the first form in float64. The published figures of SFR
were not reproduced.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from trustgp.data.chunking import chunks
from trustgp.data.rows import Rows, read_rows
from trustgp.data.trees import Inputs, as_inputs, count, take, to_device
from trustgp.experts.features import NO_COLUMNS, chunk_rows, features_at
from trustgp.math.evidence import factorise
from trustgp.math.low_rank import pivoted_cholesky_rows, selection_noise
from trustgp.tangents import JacobianRows, LayerFactors
from trustgp.tangents.base import Features, TangentMap, output_mixes
from trustgp.tangents.network import prepare

from ..training.train import errors, run_network
from .tuning import NoisyPeer, held_out_nll, likeliest_scale, squared_errors

POINTS, CANDIDATES = 512, 2048
DECADES = range(-6, 7)  # delta, as powers of ten of the kernel's mean diagonal over the noise
JITTER = 1e-8  # on the kernel of the points, relative to its mean diagonal


@dataclass(frozen=True)
class DualKernel:
    """One kernel, and the sums over all training rows."""

    tangents: TangentMap
    points: Features  # of the M inducing points
    rotation: Tensor  # L^-T V                          [M, M]
    values: Tensor  # Lambda, of the sum of psi psi^T   [M]
    level: Tensor  # mean of |J|^2                      []

    @classmethod
    def of(cls, tangents: TangentMap, rows: Rows, points: Features) -> Self:
        """Compute the sums in one pass over all rows, chunk by chunk."""
        gram = points.gram(points)
        if not float(gram.diagonal().mean()) > 0:
            raise ValueError("an output of the network does not depend on its weights at these rows.")
        factor, _ = factorise(gram, JITTER * float(gram.diagonal().mean()))
        square, level = torch.zeros_like(gram), gram.new_zeros(())
        for index in chunks(len(rows), chunk_rows(tangents)):
            features = tangents(rows.take(index))
            psi = torch.linalg.solve_triangular(factor, features.gram(points).T, upper=False)  # [M, b]
            square.addmm_(psi, psi.T)
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

    def variance(self, projected: tuple[Tensor, Tensor], delta: float, noise: Tensor) -> Tensor:
        """Variances v [n, k] of outputs with noise [k]."""
        inside, outside = projected
        tau = noise.to(inside) * delta
        return (outside[:, None] + inside @ (tau / (self.values[:, None] + tau))) / delta


@dataclass(frozen=True)
class Sfr(NoisyPeer):
    """A network, and the dual form of each of its kernels. Made by `fit`."""

    network: nn.Module
    kernels: tuple[DualKernel, ...]  # one for each output, or one for all
    sigma2: Tensor  # mean squared error of each output on the validation rows  [C]
    delta: float  # the prior precision

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        network: nn.Module,
        train: Any,
        validation: Any,
        *,
        points: int = POINTS,
        shared: bool = False,
        seed: int = 0,
    ) -> Self:
        """Fit with random training rows as points; with `shared`, one kernel and the most uncertain rows."""
        rows, held_out = read_rows(train, name="train"), read_rows(validation, name="validation")
        error = errors(run_network(network, held_out.inputs), held_out)
        sigma2 = squared_errors(error).mean(dim=0)
        wanted = max(points, CANDIDATES) if shared else points
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:wanted]
        kernels = []
        for tangents in tangents_of(network, rows, "shared" if shared else "separate"):
            features = features_at(tangents, rows, chosen, NO_COLUMNS, None)
            if shared:
                gram = features.gram(features)
                features = features.take(pivoted_cholesky_rows(gram, points, selection_noise(gram)))
            kernels.append(DualKernel.of(tangents, rows, features))
        return cls(network, tuple(kernels), sigma2, 1.0)._likeliest(error, held_out).tailed(held_out, rows)

    def _likeliest(self, error: Tensor, held_out: Rows) -> Self:
        inputs = to_device(held_out.inputs, error.device)
        projected, trials = [kernel.project(inputs) for kernel in self.kernels], []
        level = torch.stack([kernel.level for kernel in self.kernels]).to(self.sigma2)
        for decade in DECADES:
            trial = replace(self, delta=float((level / self.sigma2).mean()) * 10.0**decade)
            spread = trial._spread(projected)
            scale, noise = likeliest_scale(error, spread)
            loss = held_out_nll(error, scale * spread + noise)
            trials.append((loss, replace(trial, scale=scale, noise=noise)))
        return min(trials, key=lambda trial: trial[0])[1]

    def _spread(self, projected: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """Variances [n, C], float64, kernel by kernel, since each needs M numbers per row."""
        noises = self.sigma2.split(len(self.sigma2) // len(self.kernels))
        parts = zip(self.kernels, projected, noises, strict=True)
        return torch.cat([kernel.variance(rows, self.delta, noise) for kernel, rows, noise in parts], dim=1)

    def shipped(self) -> Any:
        kernels = [(kernel.points.tensors(), kernel.rotation, kernel.values) for kernel in self.kernels]
        return self.network, kernels, self.sigma2, self.noise, self.tails

    @torch.no_grad()
    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        mean = run_network(self.network, inputs)
        rows = torch.nan_to_num(to_device(as_inputs(inputs), mean.device))  # invalid rows are masked later
        spread = self._spread(kernel.project(rows) for kernel in self.kernels)
        return mean, spread.to(mean).reshape(mean.shape)


def tangents_of(network: nn.Module, rows: Rows, outputs: str) -> list[TangentMap]:
    """Exact tangent kernels, by layer factors, or by gradients if a layer has no factors."""
    if not isinstance(rows.inputs, Tensor):
        raise ValueError("SFR takes one tensor of inputs here; these are a tuple or a dict.")
    mixes = output_mixes(outputs, rows.targets.shape[1], torch.Generator())
    sample, targets = rows.inputs[:2], rows.targets[:2]
    device = next(network.parameters()).device

    def bound(kind: LayerFactors | JacobianRows) -> list[TangentMap]:
        own = prepare(network, kind.choose(network), device)
        return [kind.bind(own, mix, sample.to(device), targets) for mix, _ in mixes]

    try:
        return bound(LayerFactors())
    except ValueError:
        return bound(JacobianRows())
