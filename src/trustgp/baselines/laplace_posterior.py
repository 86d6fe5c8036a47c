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
from torch.utils.data import DataLoader, TensorDataset

from ..data import Inputs, Rows, as_inputs, chunks, count, read_rows, take, to_device
from ..tangents.factors import FactorMap
from ..tangents.network import as_matrix, choose_parameters
from .laplace_variance import factored_variance, factors_for, jacobian_rows
from .running import errors, own_randomness, run_network

BATCH = 1024  # rows of a step of the curvature
MISSING = (
    "the Laplace baselines need laplace-torch, which cannot be imported ({error}): pip install "
    "'trustgp[baselines]', then pip install --no-deps laplace-torch backpack-for-pytorch "
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
        factors: Makes the Jacobians' factors; None where the network has no such form.
    """

    network: nn.Module
    names: tuple[str, ...]
    laplace: Any
    noise: float
    prior: float
    factors: FactorMap | None

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
        if not isinstance(rows.inputs, Tensor):
            raise ValueError("laplace-torch takes one tensor of inputs; these are a tuple or a dict.")
        still = copy.deepcopy(network).eval()
        noise = float(errors(run_network(still, held.inputs), held).square().mean())
        place = next(still.parameters()).device
        with torch.enable_grad(), own_randomness(0, place):  # a loader draws a number, even in order
            laplace = _curvature(still, rows, last_layer)
            laplace.sigma_noise = math.sqrt(noise)
            laplace.optimize_prior_precision(pred_type="glm", method="marglik")
        names = _last(laplace) if last_layer else tuple(choose_parameters(still, "all"))
        factors = factors_for(still, names, rows.inputs)
        return cls(still, names, laplace, noise, float(laplace.prior_precision), factors)

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

    @torch.no_grad()
    def variance(self, inputs: Inputs, precision: Any) -> Tensor:
        r"""Diagonal of :math:`J P^{-1} J^\top`, chunk by chunk, shape [n, C].

        Args:
            inputs: Shape [n, ...].
            precision: From `precision`.
        """
        rows = to_device(as_inputs(inputs), next(self.network.parameters()).device)
        if self.factors is not None:
            parts = [
                factored_variance(precision, self.factors(take(rows, index)))
                for index in chunks(count(rows), 512)
            ]
            return torch.cat(parts)
        rows = torch.nan_to_num(rows)  # in a joint backward pass a broken row would break its neighbours
        size = jacobian_rows(self.laplace)
        return torch.cat(
            [self._library_variance(rows[i : i + size], precision) for i in range(0, len(rows), size)]
        )

    def _library_variance(self, rows: Tensor, precision: Any) -> Tensor:
        """By laplace-torch alone: Jacobians of every parameter, [b, C, P]."""
        backend = self.laplace.backend
        jacobians, _ = (backend.last_layer_jacobians if backend.last_layer else backend.jacobians)(rows)
        return precision.inv_square_form(jacobians).diagonal(dim1=1, dim2=2)


def _curvature(network: nn.Module, rows: Rows, last_layer: bool) -> Any:
    """laplace-torch's posterior on a copy of the network, its curvature computed."""
    try:
        from laplace import KronLaplace, KronLLLaplace
    except ImportError as error:
        raise ImportError(MISSING.format(error=error)) from error
    own = copy.deepcopy(network)  # laplace-torch leaves its marks on the network
    with torch.no_grad():
        if run_network(own, rows.inputs[:1]).ndim == 1:
            own = _AsMatrix(own)
    laplace = (KronLLLaplace if last_layer else KronLaplace)(own, "regression")
    first = next(own.parameters())
    data = TensorDataset(rows.inputs, rows.targets.to(first.dtype))
    laplace.fit(DataLoader(data, batch_size=BATCH))
    return laplace


def _last(laplace: Any) -> tuple[str, ...]:
    """Names in the user's network of what laplace-torch found to be the last layer's parameters."""
    layer = laplace.model._last_layer_name
    if isinstance(laplace.model.model, _AsMatrix):
        layer = layer.removeprefix("network.")
    return tuple(f"{layer}.{name}" for name, _ in laplace.model.last_layer.named_parameters())


class _AsMatrix(nn.Module):
    """A network with outputs [n] as one with outputs [n, 1]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        return as_matrix(self.network(inputs))
