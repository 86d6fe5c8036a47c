r"""A network trained together with a posterior of its last layer: VBLL (Harrison et al. 2024).

With features :math:`\phi(x)`, weights :math:`w_c \sim N(\bar w_c, S_c)` of output c and its noise
:math:`\sigma_c^2`, the bound of the evidence is in closed form. For each row it is

.. math:: \sum_c \log N(y_c; \bar w_c^\top \phi, \sigma_c^2) - \tfrac12 \phi^\top S_c \phi / \sigma_c^2
          - \tfrac1n \big( \mathrm{KL}(q \| p) - \log p(\sigma^2) \big) ,

with the prior :math:`w_c \sim N(0, p_c I)` and an inverse Wishart prior of the noise. As in their paper the
covariance :math:`S_c = L_c L_c^\top` is dense, and all of it is trained together with the network. The
prior's variance p is the targets' variance. The form of the bound, with the weight 1/n, is that of the vbll
package; the paper was not at hand. None of its published figures was checked: their data are not here.
"""

import copy
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from typing_extensions import Self

from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs

from ..training.train import run_network
from .bundle import Bundle, last_linear
from .tuning import NoisyPeer

DEGREES, WISHART = 1.0, 1e-2  # of the noise's prior: degrees of freedom; scale, over the targets' variance
FIRST_NOISE = 0.1  # initial noise, over the targets' variance
FIRST_SPREAD = 0.1  # initial deviation of a weight, over sqrt(p / h)


class VariationalLayer(nn.Module):
    """A Linear layer of C outputs and h features, one constant, with a posterior of its weights."""

    def __init__(self, layer: nn.Linear, prior: Tensor) -> None:
        """Start from a Linear layer, with prior variances [C]."""
        super().__init__()
        outputs, h = len(prior), layer.in_features + 1
        self.prior = nn.Buffer(prior.clone())
        start = nn.functional.pad(layer.weight, (0, 1))
        if layer.bias is not None:
            start = torch.cat([layer.weight, layer.bias[:, None]], dim=1)
        self.mean = nn.Parameter(start.detach() * prior.sqrt()[:, None])  # w       [C, h]
        spread = 0.5 * (prior / h).log() + math.log(FIRST_SPREAD)
        self.log_diagonal = nn.Parameter(spread[:, None].repeat(1, h))  # of L      [C, h]
        self.below = nn.Parameter(torch.zeros(outputs, h, h).to(prior))  # of L     [C, h, h]
        self.log_noise = nn.Parameter((FIRST_NOISE * prior).log())  # log sigma^2   [C]

    def factor(self) -> Tensor:
        """Factor L of the covariance, shape [C, h, h]."""
        return torch.tril(self.below, diagonal=-1) + torch.diag_embed(self.log_diagonal.exp())

    def penalty(self) -> Tensor:
        """KL(q || p) - log p(sigma^2), up to a constant of the noise's prior, a scalar."""
        h, noise = self.mean.shape[1], self.log_noise.exp()
        moment = self.mean.square().sum(dim=1) + self.factor().square().sum(dim=(1, 2))
        logs = h * self.prior.log() - 2.0 * self.log_diagonal.sum(dim=1)
        divergence = 0.5 * (moment / self.prior - h + logs).sum()
        degrees = 0.5 * (DEGREES + len(self.prior) + 1.0)
        return divergence + (degrees * self.log_noise + 0.5 * WISHART * self.prior / noise).sum()

    def forward(self, features: Tensor) -> Tensor:
        """Mean, variance and log noise of each output, and the penalty, shape [b, 3C + 1]."""
        phi = nn.functional.pad(features, (0, 1), value=1.0)
        spread = torch.einsum("bh,chk->bck", phi, self.factor()).square().sum(dim=2)
        rest = torch.cat([self.log_noise, self.penalty()[None]]).expand(len(phi), -1)
        return torch.cat([phi @ self.mean.T, spread, rest], dim=1)


class VariationalNetwork(nn.Module):
    """A network whose last Linear layer, also its last layer, is a `VariationalLayer`."""

    def __init__(self, network: nn.Module, prior: Tensor) -> None:
        super().__init__()
        self.features, name = copy.deepcopy(network), last_linear(network)
        layer = self.features.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        self.features.set_submodule(name, nn.Identity())
        self.layer = VariationalLayer(layer, prior.to(layer.weight))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(self.features(inputs))


def negative_bound(outputs: Tensor, targets: Tensor, *, rows: int) -> Tensor:
    """Negative bound per row and output of a batch: outputs [b, 3C + 1], targets [b, C], n `rows` in all."""
    count = targets.shape[1]
    mean, spread, log_noise, penalty = outputs.split([count, count, count, 1], dim=1)
    moment = (targets - mean).square() + spread
    likely = -0.5 * (math.log(2 * math.pi) + log_noise + moment * torch.exp(-log_noise))
    return -likely.mean() + penalty.mean() / (rows * count)


@dataclass(frozen=True)
class Vbll(NoisyPeer):
    """A variational last layer on a network trained with it. Made by `fit`."""

    network: VariationalNetwork
    single: bool  # whether outputs are [n], not [n, 1]

    @classmethod
    def fit(cls, bundle: Bundle) -> Self:
        """Train by the bundle's recipe; then fit tails, with the learnt noise or a new scale and noise."""
        targets = read_rows(bundle.train, name="train").targets
        prior = targets.double().var(dim=0).clamp_min(1e-12)
        loss, wrap = partial(negative_bound, rows=len(targets)), partial(VariationalNetwork, prior=prior)
        (network,) = bundle.trained_like(seeds=[100 * bundle.seed], outputs=len(prior), loss=loss, wrap=wrap)
        assert isinstance(network, VariationalNetwork)
        noise = network.layer.log_noise.detach().double().exp()
        return cls(network, bundle.single, noise=noise).likelier(*bundle.held)

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        outputs = run_network(self.network, inputs)
        count = len(self.network.layer.prior)
        mean, spread = outputs[:, :count], outputs[:, count : 2 * count]
        return (mean[:, 0], spread[:, 0]) if self.single else (mean, spread)
