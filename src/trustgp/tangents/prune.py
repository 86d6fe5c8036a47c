"""Stage (i) of the paper's compression: rank the parameters by an existing pruning method."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.trees import Inputs
from .network import TangentNetwork, gradients_of

METHODS = ("magnitude", "taylor")


def kept_parameters(
    network: TangentNetwork, method: str, count: int, inputs: Inputs, targets: Tensor
) -> Tensor:
    """The `count` parameters that `method` ranks highest over all layers, as
    `torch.nn.utils.prune.global_unstructured` does: places in the vector of all of them, ascending, [count].

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
    scores = network.parameters if method == "magnitude" else _taylor_scores(network, inputs, targets)
    flat = torch.cat([score.flatten() for score in scores.values()]).abs()
    kept = torch.ones_like(flat, dtype=torch.bool)
    kept[flat.topk(total - count, largest=False).indices] = False
    return kept.nonzero().flatten()


def _taylor_scores(network: TangentNetwork, inputs: Inputs, targets: Tensor) -> dict[str, Tensor]:
    r""":math:`\theta_p \, \partial L / \partial \theta_p` of the mean squared error L over the rows."""
    with torch.enable_grad():
        outputs, parameters = network.traced(inputs, network.names)
        loss = 0.5 * (outputs - targets.to(outputs)).square().sum(dim=1).mean()
        gradients = gradients_of(loss, list(parameters.values()))
    pairs = zip(parameters.items(), gradients, strict=True)
    return {name: value.detach() * gradient for (name, value), gradient in pairs}
