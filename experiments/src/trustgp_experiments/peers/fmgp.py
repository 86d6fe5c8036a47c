r"""A sparse variational Gaussian process whose mean is the network: FMGP (Ortega et al., arXiv 2412.04177).

The posterior mean of a GP with a universal kernel can be any continuous function; it is fixed to the network,
and only the variance is learnt. With inducing points Z, K their kernel and a triangular matrix L it is

.. math:: v(x) = k(x, x) - k_Z(x)^\top A \, k_Z(x), \quad A = L H^{-1} L^\top, \quad H = I + L^\top K L .

L, Z, the kernel and the noise are trained on mini-batches of the training rows, at alpha = 1, by

.. math:: \sum_i -\log N(y_i; f(x_i), v(x_i) + \sigma^2) + \tfrac12 \log|H| - \tfrac12 \mathrm{tr}(K A) ,

plus the same with a sparse GP's own mean :math:`k_Z(x)^\top w` in place of f, which adds
:math:`\tfrac12 w^\top K w` to the divergence: a regulariser that ties the kernel to the targets. C outputs
share Z, L and the kernel's lengths; each has an amplitude, a noise and a w.

Variance and objective are the paper's, read beside its authors' code; tests compare both with dense matrices
in float64. Kernel (squared exponential, a length for each input), 100 points by k-means and L = I at the
start are theirs, too. They take 70,000 steps of 128 rows with Adam at 1e-3; here steps are fewer and larger,
with one cycle to 3e-2. None of their published figures could be checked: their data and networks are not
here.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs, as_inputs, to_device
from trustgp.tangents.network import as_matrix

from ..training.train import errors, run_network, train
from .tuning import NoisyPeer

POINTS, ROUNDS = 100, 20  # inducing points, and rounds of k-means
KMEANS_ROWS = 10_000  # at most
STEPS, FEW_STEPS = 1500, 600  # for more than `FEW_BATCHES` batches, and for fewer
FEW_BATCHES = 4
BATCH, RATE = 1024, 3e-2
MIN_VARIANCE = 1e-6  # of k(x, x), below which float32 has no digits
CHUNK = 8192


class FixedMeanProcess(nn.Module):
    """Variance of scaled targets, and the terms of the objective; inputs are vectors [n, d]."""

    def __init__(self, points: Tensor, offset: Tensor, spread: Tensor, noise: Tensor) -> None:
        """Start from points [M, d] among inputs scaled by offset and spread [d], and a noise [C]."""
        super().__init__()
        count, outputs = len(points), len(noise)
        self.offset, self.spread = nn.Buffer(offset), nn.Buffer(spread)
        self.points = nn.Parameter(points)
        apart = torch.cdist(points, points)
        length = apart[apart > 0].median() if bool((apart > 0).any()) else torch.ones(()).to(points)
        self.log_length = nn.Parameter(length.log().repeat(points.shape[1]))
        self.log_amplitude = nn.Parameter(torch.zeros(outputs).to(points))
        self.log_noise = nn.Parameter(noise.to(points).log())
        self.root = nn.Parameter(torch.eye(count).to(points))  # L; only its lower triangle is used
        self.weights = nn.Parameter(torch.zeros(count, outputs).to(points))  # w

    def kernel(self, one: Tensor, other: Tensor) -> Tensor:
        """Squared exponential kernel of scaled inputs, of amplitude 1."""
        one, other = (rows / self.log_length.exp() for rows in (one, other))
        squared = one.square().sum(dim=1)[:, None] + other.square().sum(dim=1) - 2.0 * one @ other.T
        return torch.exp(-0.5 * squared.clamp_min(0.0))

    def forward(self, inputs: Tensor) -> Tensor:
        """Variance, own mean and log noise of each output, and the divergences, shape [b, 3C + 1]."""
        scaled = (inputs.flatten(1) - self.offset) / self.spread
        cross, kernel = self.kernel(scaled, self.points), self.kernel(self.points, self.points)
        root, eye = torch.tril(self.root), torch.eye(len(kernel)).to(kernel)
        factor = torch.linalg.cholesky_ex(eye + root.T @ kernel @ root).L  # of H
        explained = torch.linalg.solve_triangular(factor, (cross @ root).T, upper=False)
        unit = (1.0 - explained.square().sum(dim=0)).clamp_min(MIN_VARIANCE)
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
        trace = len(kernel) - inverse.square().sum()  # tr(K A) = M - tr(H^-1)
        narrow = factor.diagonal().log().sum() - 0.5 * trace
        amplitude = self.log_amplitude.exp()
        mean = 0.5 * ((kernel @ self.weights * self.weights).sum(dim=0) / amplitude).sum()
        penalty = 2.0 * len(amplitude) * narrow + mean
        rest = torch.cat([self.log_noise, penalty[None]]).expand(len(cross), -1)
        return torch.cat([unit[:, None] * amplitude, cross @ self.weights, rest], dim=1)


def objective(outputs: Tensor, targets: Tensor, *, rows: int) -> Tensor:
    """Objective over n C of a batch, n `rows` in all: outputs [b, 3C + 1], targets and network [b, 2C]."""
    count = targets.shape[1] // 2
    variance, own, log_noise, penalty = outputs.split([count, count, count, 1], dim=1)
    target, network = targets.chunk(2, dim=1)
    total = variance + log_noise.exp()
    squared = (target - network).square() + (target - own).square()
    both = math.log(2 * math.pi) + total.log() + 0.5 * squared / total  # of two normals
    return both.mean() + penalty.mean() / (rows * count)


@dataclass(frozen=True)
class FixedMeanGP(NoisyPeer):
    """A network, and the variance of a GP around its outputs. Made by `fit`."""

    network: nn.Module
    process: FixedMeanProcess
    size: Tensor = field(kw_only=True)  # variance of the targets  [C]

    @classmethod
    def fit(
        cls,
        network: nn.Module,
        train_rows: Any,
        validation: Any,
        *,
        points: int = POINTS,
        steps: int | None = None,
        seed: int = 0,
    ) -> Self:
        """Train on the training rows; then fit tails, with the learnt noise or a new scale and noise."""
        rows = read_rows(train_rows, name="train")
        inputs = vectors(rows.inputs, next(network.parameters()).device)
        outputs = as_matrix(run_network(network, rows.inputs)).to(inputs)
        targets = rows.targets.to(inputs)
        errors(outputs, rows)  # refuses targets of another shape
        size = targets.var(dim=0) if len(targets) > 1 else torch.zeros_like(targets[0])
        size = torch.where(size > 0, size, 1.0)
        noise = ((targets - outputs).square().mean(dim=0) / size).clamp_min(1e-5)
        offset, spread = centre_and_spread(inputs)
        start = FixedMeanProcess(centres((inputs - offset) / spread, points, seed), offset, spread, noise)
        both = torch.cat([targets, outputs], dim=1) / size.sqrt().repeat(2)
        batches = -(-len(inputs) // BATCH)
        steps = steps or (STEPS if batches > FEW_BATCHES else FEW_STEPS)
        how = {"epochs": max(1, round(steps / batches)), "batch_size": BATCH, "learning_rate": RATE}
        # no CUDA graph: it may not contain a factorisation
        loss = partial(objective, rows=len(inputs))
        process = train(start, inputs, both, seed=seed, record=False, weight_decay=0.0, loss=loss, **how)
        assert isinstance(process, FixedMeanProcess)
        own = process.log_noise.detach().double().exp() * size.double()
        return cls(network, process.requires_grad_(False), size=size, noise=own).likelier(validation, rows)

    @torch.no_grad()
    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        mean = run_network(self.network, inputs)
        rows, count = vectors(inputs, self.process.offset.device), len(self.size)
        parts = [self.process(part)[:, :count] for part in torch.nan_to_num(rows).split(CHUNK)]
        return mean, (torch.cat(parts) * self.size).to(mean).reshape(mean.shape)


def vectors(inputs: Inputs, device: torch.device) -> Tensor:
    """Inputs as a matrix [n, d]; raise ValueError unless they are one tensor of real numbers."""
    rows = to_device(as_inputs(inputs), device)
    if not isinstance(rows, Tensor) or not rows.is_floating_point():
        raise ValueError("a Gaussian process on the inputs needs one tensor of real numbers.")
    return rows.flatten(1)


def centre_and_spread(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column (1 where it is constant), each [d]."""
    spread = rows.std(dim=0)
    return rows.mean(dim=0), torch.where(spread > 0, spread, 1.0)


def centres(rows: Tensor, count: int, seed: int) -> Tensor:
    """Means of at most `count` clusters of rows [n, d], by k-means from random rows."""
    generator = torch.Generator().manual_seed(seed)
    rows = rows[torch.randperm(len(rows), generator=generator)[:KMEANS_ROWS].to(rows.device)]
    means = rows[:count].clone()
    for _ in range(ROUNDS):
        member = nn.functional.one_hot(torch.cdist(rows, means).argmin(dim=1), len(means)).to(rows)
        sizes = member.sum(dim=0)[:, None]
        means = torch.where(sizes > 0, member.T @ rows / sizes.clamp_min(1.0), means)
    return means
