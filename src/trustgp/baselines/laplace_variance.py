r"""The variance of a linearised network under a Kronecker-factored posterior, without its Jacobians.

laplace-torch writes out the Jacobian of every row, C x P numbers, and rotates it. For a Linear layer it is
an outer product :math:`g_c a^\top` and the layer's precision is
:math:`(Q_1 \otimes Q_2) (\ell_1 \otimes \ell_2 + \delta) (Q_1 \otimes Q_2)^\top`, so the same number is

.. math:: \sum_{ij} \frac{(Q_1^\top g_c)_i^2 \, (Q_2^\top a)_j^2}{\ell_{1i} \ell_{2j} + \delta} .
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..data import Inputs, take, to_device
from ..tangents.factors import FactorFeatures, FactorMap, LayerFactors
from ..tangents.network import TangentNetwork, as_matrix, call, prepare
from ..tangents.recorder import Recorder

JACOBIAN_BYTES = {"cpu": 2**28, "cuda": 2**31}  # of a chunk of rows where Jacobians must be written out


def factors_for(network: nn.Module, names: tuple[str, ...], inputs: Inputs) -> FactorMap | None:
    """What makes the Jacobian factors of every output, or None where they would not match the blocks.

    Args:
        network: In eval mode.
        names: Of the parameters that vary.
        inputs: A few rows of them are tried.
    """
    tangents = LayerFactors(names)
    sample = take(inputs, torch.tensor([0, -1]))
    try:
        tangents.choose(network)
        prepared = prepare(network, names, None)
        outputs = as_matrix(prepared.outputs(sample))
        mix = torch.eye(outputs.shape[1], dtype=torch.float64)
        found = tangents.bind(prepared, mix, sample, outputs)
    except ValueError:
        return None
    return found if _in_order(prepared, sample) else None


def factored_variance(precision: Any, features: FactorFeatures) -> Tensor:
    """The sum above over all layers, shape [n, C].

    Args:
        precision: laplace-torch's `KronDecomposed`: for each weight two factors, for each bias one.
        features: Of every output alone: signals [n, C * d'].
    """
    if features.products:
        raise ValueError("a normalisation layer has no Kronecker factors.")
    blocks = zip(precision.eigenvalues, precision.eigenvectors, precision.deltas, strict=True)
    total: Any = 0.0
    for inputs, signals in zip(features.activations, features.signals, strict=True):
        (first, second), (left, right), delta = next(blocks)
        bias = inputs.shape[1] > len(second)  # a 1 is appended where there is one
        gradients = signals.reshape(len(signals), -1, len(first))  # [n, C, d']
        inner = (inputs[:, : len(second)] @ right).square()  # [n, d]
        weights = inner @ (torch.outer(first, second) + delta).reciprocal().T  # [n, d']
        total = total + ((gradients @ left).square() @ weights[:, :, None])[:, :, 0]
        if bias:
            (values,), (vectors,), delta = next(blocks)
            total = total + ((gradients @ vectors).square() / (values + delta)).sum(dim=2)
    return total


def jacobian_rows(laplace: Any) -> int:
    """Rows of a chunk whose Jacobians, three times over, fit the memory set aside for them."""
    place = laplace.mean.device.type
    row = 3 * laplace.n_outputs * laplace.n_params * laplace.mean.element_size()
    return max(1, JACOBIAN_BYTES.get(place, 2**28) // row)


def _in_order(network: TangentNetwork, inputs: Inputs) -> bool:
    """Whether the layers are called in the order in which the network lists them, weights and biases whole.

    A weight of a single number has one factor instead of two and is left to laplace-torch.
    """
    recorder = Recorder(network)
    with torch.no_grad(), recorder:
        call(network.module, to_device(inputs, network.device))
    listed = list(dict.fromkeys(name.rpartition(".")[0] for name in network.names))
    modules = dict(network.module.named_modules())
    whole = all(
        entry.weight and entry.bias == (getattr(modules[entry.layer], "bias", None) is not None)
        for entry in recorder.calls
    )
    large = all(value.numel() > 1 for name, value in network.parameters.items() if name.endswith("weight"))
    return whole and large and [entry.layer for entry in recorder.calls] == listed
