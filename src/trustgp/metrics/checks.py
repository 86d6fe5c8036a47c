"""What all scores ask of the tensors they are given."""

from __future__ import annotations

import torch
from torch import Tensor


def unknown_costs_all(cost: Tensor, *known: Tensor) -> Tensor:
    """The cost, infinite where anything in `known` is NaN or infinite."""
    for values in known:
        cost = torch.where(torch.isfinite(values), cost, torch.inf)
    return cost


def same_shape(**tensors: Tensor) -> None:
    """Raise unless all shapes agree; broadcasting [n] against [n, 1] would score n^2 pairs."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        text = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"shapes differ: {text}; they must agree.")
