"""The Kronecker-factored Laplace posterior over a network's weights: laplace-torch does the work.

It is made once; `LaplaceGLM` and `LaplaceSampled` are two ways to predict with it.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs
from trustgp.tangents.network import as_matrix, choose_parameters

from ..training.inference import errors, own_randomness, run_network
from .kron_variance import KronVariance

BATCH = 1024  # rows of a step of the curvature
MISSING = (
    "the Laplace peers need laplace-torch, which cannot be imported ({error}): pip install "
    "'trustgp[peers]', then pip install --no-deps laplace-torch backpack-for-pytorch "
    "curvlinops-for-pytorch (--no-deps, for they name torchvision, which nothing here needs and which may "
    "bring another torch)."
)


@dataclass(frozen=True)
class KronPosterior:
    """N(theta, P^-1) with P = H / noise + prior, H a Kronecker product for each layer. Made by `fit`.

    Args:
        network: A private copy in eval mode.
        names: Of the parameters that vary.
        laplace: laplace-torch's object, around a second copy.
        noise: sigma^2, the mean squared residual of the validation rows.
        prior: The prior precision of the largest evidence at that noise.
        kron: Makes variances.
    """

    network: nn.Module
    names: tuple[str, ...]
    laplace: Any
    noise: float
    prior: float
    kron: KronVariance

    @classmethod
    def fit(
        cls, network: nn.Module, train: Any, validation: Any, *, last_layer: bool = False
    ) -> KronPosterior:
        """The curvature of the training rows (KFAC of the Gauss-Newton matrix), and the evidence's prior.

        Args:
            network: Trained; Linear layers, in the way that curvlinops knows.
            train: The rows it was trained on: (inputs, targets), a Dataset or a DataLoader.
            validation: Rows it was not trained on.
            last_layer: Whether the weights of the last layer alone vary.
        """
        rows, held = read_rows(train, name="train"), read_rows(validation, name="validation")
        still = copy.deepcopy(network).eval()
        noise = float(errors(run_network(still, held.inputs), held).square().mean())
        targets = rows.targets.to(next(still.parameters()).dtype)
        laplace, names = curvature(still, rows.inputs, targets, "regression", last_layer=last_layer)
        laplace.sigma_noise = math.sqrt(noise)
        with torch.enable_grad():
            laplace.optimize_prior_precision(pred_type="glm", method="marglik")
        kron = KronVariance.fit(still, names, laplace, rows.inputs[:3])
        return cls(still, names, laplace, noise, float(laplace.prior_precision), kron)

    def precision(self, prior: float, noise: float) -> Any:
        """P = H / noise + prior, as laplace-torch's `KronDecomposed`."""
        self.laplace.sigma_noise = math.sqrt(noise)
        self.laplace.prior_precision = prior
        return self.laplace.posterior_precision

    def deviations(self, prior: float, noise: float, samples: int, seed: int) -> Tensor:
        """Draws of theta' - theta, shape [samples, P]; the same seed gives the same underlying normals."""
        self.precision(prior, noise)
        generator = torch.Generator(self.laplace.mean.device).manual_seed(seed)
        return self.laplace.sample(samples, generator) - self.laplace.mean

    def variance(self, inputs: Inputs, precision: Any) -> Tensor:
        r"""Diagonal of :math:`J P^{-1} J^\top`, chunk by chunk, shape [n, C].

        Args:
            inputs: Shape [n, ...].
            precision: From `precision`.
        """
        return self.kron(inputs, precision)[..., 0]


def curvature(
    network: nn.Module, inputs: Inputs, targets: Tensor, likelihood: str, *, last_layer: bool
) -> tuple[Any, tuple[str, ...]]:
    """laplace-torch's posterior on a copy of the network, and the names of the parameters that vary.

    Args:
        network: In eval mode.
        inputs, targets: Of all training rows.
        likelihood: "regression" or "classification".
        last_layer: Whether the weights of the last layer alone vary.
    """
    if not isinstance(inputs, Tensor):
        raise ValueError("laplace-torch takes one tensor of inputs; these are a tuple or a dict.")
    try:
        from laplace import KronLaplace, KronLLLaplace
    except ImportError as error:
        raise ImportError(MISSING.format(error=error)) from error
    own = copy.deepcopy(network)  # laplace-torch leaves its marks on the network
    if run_network(own, inputs[:1]).ndim == 1:
        own = _AsMatrix(own)
    place = next(own.parameters()).device
    data = TensorDataset(inputs.to(place), targets.to(place))
    batches = BatchSampler(SequentialSampler(data), BATCH, drop_last=False)  # whole batches, not row by row
    laplace = (KronLLLaplace if last_layer else KronLaplace)(own, likelihood)
    with torch.enable_grad(), own_randomness(0, place):  # a loader draws a number, even in order
        laplace.fit(DataLoader(data, sampler=batches, batch_size=None))
    if not last_layer:
        return laplace, tuple(choose_parameters(network, "all"))
    last: Any = laplace.model  # what it adds to a module has no types
    layer = last._last_layer_name
    if isinstance(own, _AsMatrix):
        layer = layer.removeprefix("network.")
    return laplace, tuple(f"{layer}.{name}" for name, _ in last.last_layer.named_parameters())


class _AsMatrix(nn.Module):
    """A network with outputs [n] as one with outputs [n, 1]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        return as_matrix(self.network(inputs))
