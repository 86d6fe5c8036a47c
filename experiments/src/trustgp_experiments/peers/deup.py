r"""A predictor of the network's error: DEUP (Lahlou et al., TMLR 2023).

The logarithm of a row's squared error, :math:`\log (y - f(x))^2`, is learnt from rows that did not train the
network, here the validation rows. Features are the inputs and the logarithm of the distance to the
nearest training row, which replaces the paper's density. The predictor is the mean of a Gaussian process
(squared exponential, length the median distance); its ridge has the least error on contiguous held-out
fifths, and scale, noise and tails are fitted to the predictions for these. The paper's density
models and its refits while data arrive are not here; its published figures were not checked.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs
from trustgp.math.calibration_fit import PRIOR_STD

from ..training.train import errors, run_network
from .bundle import Bundle
from .fmgp import vectors
from .know_nothing import GatedKnowNothing
from .tuning import NoisyPeer, likeliest_scale

FOLDS, MAX_ROWS = 5, 2000
RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # over the kernel's amplitude: log squared errors are noisy
SMALLEST = 1e-6  # lower bound of squared errors, over their mean, before the logarithm
CHUNK = 4096


@dataclass(frozen=True)
class Deup(NoisyPeer):
    """A network, and the mean of a GP of its log squared errors. Made by `fit`."""

    network: nn.Module
    gate: GatedKnowNothing  # its scaling and its distances are used
    points: Tensor  # features of validation rows          [m, d + 1], float64
    length: float
    weights: Tensor  # (K + ridge I)^-1 (log e^2 - level)  [m, C]
    level: Tensor  # mean of log e^2                       [C]

    @classmethod
    def fit(cls, bundle: Bundle) -> Self:
        """Fit with contiguous folds, so that neighbours in time are left out together."""
        rows = read_rows(bundle.validation, name="validation")
        error = errors(run_network(bundle.network, rows.inputs), rows)
        gate = GatedKnowNothing.fit(bundle)
        chosen = torch.linspace(0, len(error) - 1, min(len(error), MAX_ROWS)).long().to(error.device)
        error, points = error[chosen], features(gate, rows.inputs)[chosen]
        size = error.square().mean(dim=0).clamp_min(1e-300)
        logs = (error.square() / size).clamp_min(SMALLEST).log() + size.log()
        distances = torch.pdist(points[:: max(1, len(points) // 500)])
        blank, length = torch.zeros_like(logs), float(distances.median().clamp_min(1e-12))
        plain = cls(bundle.network, gate, points, length, blank, logs.mean(dim=0))
        kernel = plain.kernel(points)
        fold = torch.arange(len(points), device=points.device) * FOLDS // len(points)
        trials = []
        for ridge in RIDGES:
            left_out = torch.zeros_like(logs)
            for number in range(FOLDS):
                kept, other = (fold != number).nonzero()[:, 0], (fold == number).nonzero()[:, 0]
                weights = plain.solve(kernel[kept][:, kept], logs[kept], ridge)
                left_out[other] = kernel[other][:, kept] @ weights + plain.level
            trials.append((float((left_out - logs).square().mean()), ridge, left_out.exp()))
        _, ridge, spread = min(trials, key=lambda trial: trial[0])
        scale, noise = likeliest_scale(error, spread, pull=PRIOR_STD)
        fitted = replace(plain, scale=scale, noise=noise, weights=plain.solve(kernel, logs, ridge))
        return fitted._tailed(error, spread, *bundle.held)

    def kernel(self, points: Tensor) -> Tensor:
        """Kernel of `points` with the stored points, of amplitude 1."""
        return torch.exp(-0.5 * (torch.cdist(points, self.points) / self.length).square())

    def solve(self, kernel: Tensor, logs: Tensor, ridge: float) -> Tensor:
        """Weights of the process's mean, [m, C]."""
        noisy = kernel + ridge * torch.eye(len(kernel)).to(kernel)
        return torch.cholesky_solve(logs - self.level, torch.linalg.cholesky(noisy))

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        mean, parts = run_network(self.network, inputs), features(self.gate, inputs).split(CHUNK)
        logs = torch.cat([self.kernel(part) @ self.weights for part in parts]) + self.level
        return mean, logs.exp().to(mean).reshape(mean.shape)

    def shipped(self) -> Any:
        return self.network, self.gate.rows, self.points, self.weights, self.noise, self.tails


def features(gate: GatedKnowNothing, inputs: Inputs) -> Tensor:
    """Scaled inputs and log distance, [n, d + 1], float64."""
    scaled = (vectors(inputs, gate.offset.device) - gate.offset) / gate.spread
    distance = gate.distances(inputs).clamp_min(1e-6).log()
    return torch.nan_to_num(torch.cat([scaled, distance[:, None]], dim=1)).double()
