r"""A network whose hidden layers keep distances and whose last layer is a GP: SNGP (Liu et al. 2020).

Hidden layers of equal width have skip connections, :math:`h + g(W h)`, and the spectral norm of every W stays
below a bound c, so that inputs far from the training rows stay far in the last hidden layer. There a Gaussian
process with a squared exponential kernel of length l is approximated by D random features,

.. math:: \phi(h) = \sqrt{2 / D} \cos(W_0 h / l + b_0), \qquad
          v(x) = \phi^\top (\Phi^\top \Phi + I)^{-1} \phi ,

whose weights, and here l, are trained with the network; the covariance is computed once, from all training
rows. The validation rows choose one of two bounds and fit scale, noise and tails, as for every peer. The
published figures are of images and texts, and were not checked.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize
from typing_extensions import Self

from trustgp.data.trees import Inputs, as_inputs, to_device

from ..training.train import own_randomness, run_network
from .bundle import Bundle
from .tuning import NoisyPeer

BOUNDS = (0.95, 6.0)  # c of the paper's residual networks for vectors and for images
FEATURES = 512  # D
CHUNK = 8192


class BoundedLinear(nn.Module):
    """A Linear layer whose spectral norm is at most `bound`, by one power iteration per training step."""

    def __init__(self, layer: nn.Linear, bound: float) -> None:
        super().__init__()
        self.weight, self.bias, self.bound = layer.weight, layer.bias, bound
        self.left = nn.Buffer(normalize(layer.weight.detach().sum(dim=1), dim=0))

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            right = normalize(self.weight.T @ self.left, dim=0)
            if self.training:
                self.left.copy_(normalize(self.weight @ right, dim=0))
        norm = self.left @ self.weight @ right
        return linear(rows, self.weight * (self.bound / norm).clamp(max=1.0), self.bias)


class DistanceAwareNetwork(nn.Module):
    """Linear layers of a Sequential, bounded and with skip connections, followed by random features."""

    def __init__(self, network: nn.Module, *, bound: float, seed: int) -> None:
        super().__init__()
        layers = list(network) if isinstance(network, nn.Sequential) else []
        linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
        activations = [layer for layer in layers if not isinstance(layer, nn.Linear)]
        if len(linears) < 2 or layers[-1] is not linears[-1] or len(set(map(type, activations))) != 1:
            raise ValueError("SNGP is made here from an nn.Sequential of Linear layers and one activation.")
        self.hidden = nn.ModuleList([BoundedLinear(layer, bound) for layer in linears[:-1]])
        self.activation, width, like = activations[0], linears[-1].in_features, linears[0].weight
        with own_randomness(seed, torch.device("cpu")):
            self.directions = nn.Buffer(torch.randn(FEATURES, width).to(like))  # W_0
            self.phases = nn.Buffer((2 * torch.pi * torch.rand(FEATURES)).to(like))  # b_0
            self.last = nn.Linear(FEATURES, linears[-1].out_features).to(like)
        self.log_length = nn.Parameter(like.new_tensor(width).log() / 2)

    def features(self, inputs: Tensor) -> Tensor:
        """Random features phi, shape [n, D]."""
        h = inputs
        for layer in self.hidden:
            new = self.activation(layer(h))
            h = h + new if new.shape == h.shape else new
        angles = h @ self.directions.T / self.log_length.exp() + self.phases
        return (2.0 / FEATURES) ** 0.5 * torch.cos(angles)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(FEATURES**0.5 * self.features(inputs))


@dataclass(frozen=True)
class Sngp(NoisyPeer):
    """A distance-aware network, and the covariance of its last layer. Made by `fit`."""

    network: DistanceAwareNetwork
    factor: Tensor  # L of Phi^T Phi + I = L L^T  [D, D], float64
    size: Tensor  # variance of the targets       [C]
    single: bool  # whether outputs are [n], not [n, C]

    @classmethod
    def fit(cls, bundle: Bundle) -> Self:
        """Train by the bundle's recipe with each bound, and keep the more likely on validation rows."""
        forms = [cls._fit(bundle, bound) for bound in BOUNDS]
        return min(forms, key=lambda form: form.loss_on(bundle.validation))

    @classmethod
    @torch.no_grad()
    def _fit(cls, bundle: Bundle, bound: float) -> Self:
        seed = 100 * bundle.seed
        wrap = partial(DistanceAwareNetwork, bound=bound, seed=seed)
        (network,) = bundle.trained_like(seeds=[seed], outputs=bundle.outputs, wrap=wrap)
        assert isinstance(network, DistanceAwareNetwork)
        inputs, gram = bundle.train[0].to(network.phases.device), torch.eye(FEATURES, dtype=torch.float64)
        gram = gram.to(inputs.device)
        for part in inputs.split(CHUNK):
            phi = network.features(part).double()
            gram += phi.T @ phi
        targets = bundle.train[1].reshape(len(inputs), -1).to(gram)
        plain = cls(network, torch.linalg.cholesky(gram), targets.var(dim=0), bundle.single)
        plain._finite(bundle.validation)
        return plain.fitted(*bundle.held)

    @torch.no_grad()
    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        mean, parts = run_network(self.network, inputs), []
        for part in torch.nan_to_num(to_device(as_inputs(inputs), mean.device)).split(CHUNK):
            phi = self.network.features(part).double()
            parts.append(torch.linalg.solve_triangular(self.factor, phi.T, upper=False).square().sum(dim=0))
        spread = (torch.cat(parts)[:, None] * self.size).to(mean)
        return (mean[:, 0], spread[:, 0]) if self.single else (mean, spread)
