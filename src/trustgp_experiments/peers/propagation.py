r"""rMC-dropout (Postels et al. 2019): the variance of a dropout network without a single sample.

Mean and covariance of the units go through the network layer by layer. PyTorch's dropout gives
:math:`y = x m / (1 - p)` with :math:`m \sim \mathrm{Bernoulli}(1 - p)`, so that E y = E x and

.. math:: \mathrm{cov}(y) = \Sigma + \tfrac{p}{1-p} \, \mathrm{diag}(\Sigma_{ii} + \mu_i^2),

a Linear layer gives :math:`W \Sigma W^\top`, both exactly; an activation f is linearised at the mean,
:math:`f'(\mu_i) \Sigma_{ij} f'(\mu_j)`, which leaves the mean at the network's own output.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trustgp.data.chunking import chunks
from trustgp.data.trees import Inputs, as_inputs, to_device

from ..training.inference import run_network
from .tuning import NoisyPeer

ELEMENTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Tanh,
    nn.Sigmoid, nn.LogSigmoid, nn.Softsign, nn.Hardtanh, nn.PReLU, nn.Identity,
)  # fmt: skip
CHUNK_BYTES = 2**27  # of one covariance of a chunk of rows; three live at a time


@dataclass(frozen=True)
class PropagatedDropout(NoisyPeer):
    """A dropout network and the variance that its masks cause, in closed form. Made by `fit`."""

    network: nn.Module  # a private copy in eval mode

    @classmethod
    def fit(cls, network: nn.Module, validation: Any) -> PropagatedDropout:
        """The likeliest noise for an `nn.Sequential` of Linear, Dropout and activation layers."""
        still = copy.deepcopy(network).eval()
        if not any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in layers_of(still)):
            raise ValueError("no Dropout layer with p > 0: there is no variance to propagate.")
        return cls(still).fitted(validation)

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The network's own output, and the propagated variance."""
        mean = run_network(self.network, inputs)
        return mean, propagated_variance(self.network, inputs).reshape(mean.shape)


@torch.no_grad()
def propagated_variance(network: nn.Module, inputs: Inputs) -> Tensor:
    """Variance of every output of rows [n, d] under a Sequential's dropout, chunk by chunk, shape [n, C]."""
    layers = list(layers_of(network))
    first = next(network.parameters())
    rows = to_device(as_inputs(inputs), first.device)
    if not isinstance(rows, Tensor) or rows.ndim != 2:
        raise ValueError("variance is propagated through vectors: inputs must be one tensor [n, d].")
    widest = max([rows.shape[1], *(layer.out_features for layer in layers if isinstance(layer, nn.Linear))])
    size = max(1, CHUNK_BYTES // (widest**2 * first.element_size()))
    parts = [_moments(layers, rows[index.to(rows.device)])[1] for index in chunks(len(rows), size)]
    variance = torch.cat(parts)
    if bool((variance < 0).any()):
        warnings.warn(
            f"{int((variance < 0).sum())} propagated variances fell below zero by rounding: set to 0.",
            stacklevel=2,
        )
    return variance.clamp_min(0.0)


def layers_of(network: nn.Module, name: str = "network") -> Iterator[nn.Module]:
    """The layers in order, nested Sequentials opened; any that moments cannot pass is refused by name."""
    if isinstance(network, nn.Sequential):
        for child, layer in network.named_children():
            yield from layers_of(layer, f"{name}.{child}")
    elif isinstance(network, (nn.Linear, nn.Dropout, *ELEMENTWISE)):
        yield network
    else:
        known = ", ".join(kind.__name__ for kind in (nn.Sequential, nn.Linear, nn.Dropout, *ELEMENTWISE))
        raise ValueError(
            f"layer '{name}' is a {type(network).__name__}; variance is propagated through {known} only. "
            "MCDropout samples through any layer."
        )


def _moments(layers: list[nn.Module], mean: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the last layer's units, each [b, C], for inputs [b, d] that do not vary."""
    covariance: Tensor | None = None  # [b, w, w]; None as long as nothing varies
    for layer in layers:
        if isinstance(layer, nn.Dropout):
            covariance = _dropped(mean, covariance, layer.p)
        elif isinstance(layer, nn.Linear):
            if covariance is not None:
                covariance = layer.weight @ covariance @ layer.weight.T
            mean = layer(mean)
        else:
            mean, slope = _with_slope(layer, mean)
            if covariance is not None:
                covariance = slope[:, :, None] * covariance * slope[:, None, :]
    if covariance is None:
        return mean, torch.zeros_like(mean)
    return mean, covariance.diagonal(dim1=1, dim2=2)


def _dropped(mean: Tensor, covariance: Tensor | None, p: float) -> Tensor:
    r""":math:`\Sigma + p / (1 - p) \, \mathrm{diag}(\Sigma_{ii} + \mu_i^2)`, shape [b, w, w]."""
    if p >= 1.0:
        raise ValueError("a Dropout layer with p = 1 lets nothing pass.")
    moment = mean.square()
    if covariance is not None:
        moment = moment + covariance.diagonal(dim1=1, dim2=2)
    added = torch.diag_embed(moment * (p / (1.0 - p)))
    return added if covariance is None else covariance + added


def _with_slope(layer: nn.Module, mean: Tensor) -> tuple[Tensor, Tensor]:
    """f and f' at the mean, elementwise."""
    with torch.enable_grad():
        at = mean.clone().requires_grad_(True)
        value = layer(at * 1.0)  # an activation may work in place
        (slope,) = torch.autograd.grad(value.sum(), at)
    return value.detach(), slope
