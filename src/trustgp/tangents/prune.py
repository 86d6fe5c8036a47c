"""Stage (i) of the paper's compression: rank the parameters by an existing pruning method."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from ..data import Inputs, copied
from .network import TangentNetwork, as_matrix, call_with

METHODS = ("magnitude", "taylor")


def keep_mask(
    network: TangentNetwork, method: str, count: int, inputs: Inputs, targets: Tensor
) -> dict[str, Tensor]:
    """The `count` parameters that `method` ranks highest over all layers, as masks by name.

    Args:
        network: The network and its chosen parameters.
        method: "magnitude", |theta|; or "taylor", |theta * dLoss/dtheta|, the first-order change of the
            squared error when the parameter is removed.
        count: How many parameters to keep.
        inputs, targets: Rows for the Taylor score.
    """
    if method not in METHODS:
        raise ValueError(f'rank="{method}"; allowed are {", ".join(map(repr, METHODS))}.')
    total = network.num_parameters
    if not 1 <= count <= total:
        raise ValueError(f"keep={count} of {total} parameters; between 1 and {total} are possible.")
    scores = None if method == "magnitude" else _taylor_scores(network, inputs, targets)
    return _global_mask(network.parameters, scores, total - count)


def _taylor_scores(network: TangentNetwork, inputs: Inputs, targets: Tensor) -> dict[str, Tensor]:
    r""":math:`|\theta_p \, \partial L / \partial \theta_p|` of the mean squared error L over the rows."""
    parameters = {k: v.clone().requires_grad_(True) for k, v in network.parameters.items()}
    with torch.enable_grad():
        outputs = as_matrix(call_with(network.clone(), parameters, copied(network.ready(inputs))))
        loss = 0.5 * (outputs - targets.to(outputs)).square().sum(dim=1).mean()
        gradients = torch.autograd.grad(
            loss, list(parameters.values()), allow_unused=True, materialize_grads=True
        )
    return {
        name: (value.detach() * gradient).abs()
        for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
    }


def _global_mask(
    parameters: dict[str, Tensor], scores: dict[str, Tensor] | None, remove: int
) -> dict[str, Tensor]:
    """torch.nn.utils.prune's global unstructured pruning, on stand-ins for the parameters."""
    holders = {name: nn.Module() for name in parameters}
    for name, holder in holders.items():
        holder.register_parameter("value", nn.Parameter(parameters[name].clone(), requires_grad=False))
    prune.global_unstructured(
        [(holder, "value") for holder in holders.values()],
        pruning_method=prune.L1Unstructured,
        importance_scores=None
        if scores is None
        else {(holders[name], "value"): score for name, score in scores.items()},
        amount=remove,
    )
    return {name: holder.get_buffer("value_mask").bool() for name, holder in holders.items()}
