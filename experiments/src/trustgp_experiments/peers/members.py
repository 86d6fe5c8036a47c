r"""Predictions of one network, of several, or of one under several or all dropout masks.

The variance over the members is epistemic. It is scaled, and a noise and tails are added.

`PropagatedDropout` is rMC-dropout (Postels et al. 2019), which draws no sample: mean and covariance of the
units go through the network layer by layer. PyTorch's dropout gives :math:`y = x m / (1 - p)` with
:math:`m \sim \mathrm{Bernoulli}(1 - p)`, so that E y = E x and

.. math:: \mathrm{cov}(y) = \Sigma + \tfrac{p}{1-p} \, \mathrm{diag}(\Sigma_{ii} + \mu_i^2),

a Linear layer gives :math:`W \Sigma W^\top`, both exactly; an activation f is linearised at the mean,
:math:`f'(\mu_i) \Sigma_{ij} f'(\mu_j)`, which leaves the mean at the network's own output.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from typing_extensions import Self

from trustgp.data.chunking import chunks
from trustgp.data.trees import Inputs, as_inputs, to_device

from ..training.train import moments, own_randomness, run_network
from .tuning import NoisyPeer, squared_errors


@dataclass(frozen=True)
class ConstantNoise(NoisyPeer):
    """A network with one variance for each output: its mean squared residual. Made by `fit`."""

    network: nn.Module

    @classmethod
    def fit(cls, network: nn.Module, validation: Any, train: Any = None, *, tails: bool = False) -> Self:
        error, _ = cls(network).against(validation)
        plain = cls(network, noise=squared_errors(error).mean(dim=0))
        return plain.tailed(validation, train) if tails else plain

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        mean = run_network(self.network, inputs)
        return mean, torch.zeros_like(mean)


@dataclass(frozen=True)
class Ensemble(NoisyPeer):
    """Networks trained the same way from different starts; their variance is epistemic. Made by `fit`."""

    networks: tuple[nn.Module, ...]

    @classmethod
    def fit(
        cls, networks: Sequence[nn.Module], validation: Any, train: Any = None, *, tune: bool = True
    ) -> Self:
        """Fit scale, noise and tails of at least two networks; without `tune`, the noise alone."""
        at_least_two(len(networks), "networks")
        plain = cls(tuple(networks))
        return plain.fitted(validation, train) if tune else plain.noisy(validation)

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        return moments(torch.stack([run_network(one, inputs) for one in self.networks]))


@dataclass(frozen=True)
class MCDropout(NoisyPeer):
    """A network that drops units when it predicts; the same rows get the same masks. Made by `fit`."""

    network: nn.Module  # a private copy: dropout layers in training mode, everything else in eval mode
    samples: int
    seed: int

    @classmethod
    def fit(
        cls, network: nn.Module, validation: Any, train: Any = None, *, samples: int = 20, seed: int = 0
    ) -> Self:
        """Fit to a network trained with dropout, such as `mlp(..., dropout=0.1)`; at least 2 samples."""
        return cls(with_dropout_on(network), samples, seed).fitted(validation, train)

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        return moments(masked_outputs(self.network, inputs, self.samples, self.seed))


def with_dropout_on(network: nn.Module) -> nn.Module:
    """Copy in eval mode except for its dropout layers; raise ValueError if none drops anything."""
    dropping = copy.deepcopy(network).eval()
    layers = [module for module in dropping.modules() if isinstance(module, _DropoutNd) and module.p > 0]
    if not layers:
        raise ValueError("the network has no dropout layer with p > 0; train one: mlp(..., dropout=0.1).")
    for layer in layers:
        layer.train()
    return dropping


def masked_outputs(network: nn.Module, inputs: Inputs, samples: int, seed: int) -> Tensor:
    """Outputs under different masks, [S, n] or [S, n, C]; global generators are left unchanged."""
    with own_randomness(seed, next(network.parameters()).device):
        return torch.stack([run_network(network, inputs) for _ in range(at_least_two(samples, "samples"))])


def at_least_two(count: int, name: str) -> int:
    """Number of samples or networks; raise ValueError if it is below 2."""
    if count < 2:
        raise ValueError(f"{name}={count}; at least 2 are needed to see a spread.")
    return count


ELEMENTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Tanh,
    nn.Sigmoid, nn.LogSigmoid, nn.Softsign, nn.Hardtanh, nn.PReLU, nn.Identity,
)  # fmt: skip
CHUNK_BYTES = 2**27  # of one covariance of a chunk of rows; three are allocated at a time


@dataclass(frozen=True)
class PropagatedDropout(NoisyPeer):
    """A dropout network and the variance that its masks cause, in closed form. Made by `fit`."""

    network: nn.Module  # a private copy in eval mode

    @classmethod
    def fit(cls, network: nn.Module, validation: Any, train: Any = None) -> Self:
        """Fit scale, noise and tails for an `nn.Sequential` of Linear, Dropout and activation layers."""
        still = copy.deepcopy(network).eval()
        rates = [layer.p for layer in layers_of(still) if isinstance(layer, nn.Dropout)]
        if not any(rates) or 1.0 in rates:
            raise ValueError(f"no Dropout layer with 0 < p < 1 among {rates}: no variance to propagate.")
        return cls(still).fitted(validation, train)

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        mean = run_network(self.network, inputs)
        return mean, propagated_variance(self.network, inputs).reshape(mean.shape)


@torch.no_grad()
def propagated_variance(network: nn.Module, inputs: Inputs) -> Tensor:
    """Variance of every output of rows [n, d] under a Sequential's dropout, chunk by chunk, shape [n, C].

    It is clamped at 0, silently: the propagated covariance is positive semi-definite, so rounding alone, some
    eps of its largest entry, takes an entry of its diagonal below 0, and only where the variance is about 0.
    """
    layers = list(layers_of(network))
    first = next(network.parameters())
    rows = to_device(as_inputs(inputs), first.device)
    if not isinstance(rows, Tensor) or rows.ndim != 2:
        raise ValueError("variance is propagated through vectors: inputs must be one tensor [n, d].")
    widest = max([rows.shape[1], *(layer.out_features for layer in layers if isinstance(layer, nn.Linear))])
    size = max(1, CHUNK_BYTES // (widest**2 * first.element_size()))
    parts = [_variance(layers, rows[index.to(rows.device)]) for index in chunks(len(rows), size)]
    return torch.cat(parts).clamp_min(0.0)


def layers_of(network: nn.Module, name: str = "network") -> Iterator[nn.Module]:
    """Layers in order, with nested Sequentials opened; raise ValueError naming one of another kind."""
    if isinstance(network, nn.Sequential):
        for child, layer in network.named_children():
            yield from layers_of(layer, f"{name}.{child}")
    elif isinstance(network, (nn.Linear, nn.Dropout, *ELEMENTWISE)):
        yield network
    else:
        passed = "an nn.Sequential of Linear, Dropout and elementwise activations (MCDropout: any layer)"
        raise ValueError(f"'{name}' is a {type(network).__name__}; variance is propagated through {passed}.")


def _variance(layers: list[nn.Module], mean: Tensor) -> Tensor:
    """Variance [b, C] of the last layer's units for fixed inputs [b, d]."""
    covariance = torch.diag_embed(torch.zeros_like(mean))  # [b, w, w]
    for layer in layers:
        if isinstance(layer, nn.Dropout):
            moment = mean.square() + covariance.diagonal(dim1=1, dim2=2)
            covariance = covariance + torch.diag_embed(moment * (layer.p / (1.0 - layer.p)))
        elif isinstance(layer, nn.Linear):
            mean, covariance = layer(mean), layer.weight @ covariance @ layer.weight.T
        else:
            with torch.enable_grad():
                at = mean.clone().requires_grad_(True)
                value = layer(at * 1.0)  # an activation may work in place
                (slope,) = torch.autograd.grad(value.sum(), at)
            mean, covariance = value.detach(), slope[:, :, None] * covariance * slope[:, None, :]
    return covariance.diagonal(dim1=1, dim2=2)
