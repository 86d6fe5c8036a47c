"""Gradient rows by plain reverse mode: slow, and what every faster way is checked against."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data import Inputs, copied
from .network import TangentNetwork, as_matrix, call_with


def dense_rows(network: TangentNetwork, mix: Tensor, inputs: Inputs) -> Tensor:
    """Mixed Jacobian rows by plain reverse mode, one row at a time, [n, K * P], float64."""
    inputs = network.ready(inputs)
    parameters = {k: v.clone().requires_grad_(True) for k, v in network.parameters.items()}
    with torch.enable_grad():
        outputs = as_matrix(call_with(network.clone(), parameters, copied(inputs))).double()
        mixed = outputs @ mix.to(outputs).T  # [n, K]
        rows = []
        for row in mixed:
            gradients = [
                torch.autograd.grad(
                    value,
                    list(parameters.values()),
                    retain_graph=True,
                    allow_unused=True,
                    materialize_grads=True,
                )
                for value in row
            ]
            rows.append(torch.cat([g.double().flatten() for lot in gradients for g in lot]))
    return torch.stack(rows)
