"""The gate and the witness in the form of a graph: distances written out, the nearest by index."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...data.trees import Inputs, leaves
from ...experts.gate import Gate
from ...experts.witness import FARTHEST, WitnessPrediction, WitnessState
from ...tangents.factors import FactorFeatures
from .row_experts import RowExperts


def nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """The nearest centroid of each point, shape [n]; ties go to the first."""
    return (points[:, None] - centroids).square().sum(dim=2).argmin(dim=1)


class StackedGate(nn.Module):
    """Sends a row to the expert with the nearest centroid; see `gating.Gate`."""

    centroids: Tensor  # [M, q]
    offset: Tensor  # [q]
    directions: Tensor  # [m, q] or [d, q]

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.single = gate.projection is None or len(gate.centroids) == 1
        self.register_buffer("centroids", gate.centroids)
        projection = None if self.single else gate.projection
        self.kinds: tuple[str, ...] = ()
        if projection is None:
            return
        self.register_buffer("offset", projection.offset)
        self.register_buffer("directions", projection.directions)
        tensors = {} if projection.features is None else projection.features.tensors()
        self.kinds = tuple(tensors)
        for i, value in enumerate(tensors.values()):
            self.register_buffer(f"features_{i}", value)

    def forward(self, features: FactorFeatures | Tensor) -> Tensor:
        """Which expert answers, shape [n]."""
        if self.single:
            first = features if isinstance(features, Tensor) else next(iter(features.tensors().values()))
            return torch.zeros_like(first[:, 0], dtype=torch.int64)
        known = features.double() if isinstance(features, Tensor) else self._kernel(features)
        return nearest(known @ self.directions - self.offset, self.centroids)

    def _kernel(self, features: FactorFeatures) -> Tensor:
        """k(x, S) / s, float64, shape [n, m]: products in the network's precision, their sum in float64."""
        subset = {name: getattr(self, f"features_{i}") for i, name in enumerate(self.kinds)}
        shares = [
            (a @ subset[f"activations.{i}"].T).double() * (g @ subset[f"signals.{i}"].T).double()
            for i, (a, g) in enumerate(zip(features.activations, features.signals, strict=True))
        ]
        shares += [(p @ subset[f"products.{i}"].T).double() for i, p in enumerate(features.products)]
        return torch.stack(shares).sum(dim=0) if len(shares) > 1 else shares[0]


class StackedWitness(nn.Module):
    """The cells of a witness; see `witness.WitnessState`."""

    centre: Tensor  # [M, C]
    scale: Tensor  # [M, C]
    tau: Tensor  # [M]
    offset: Tensor
    spread: Tensor
    centroids: Tensor
    reach: Tensor
    floor: Tensor

    def __init__(self, state: WitnessState, *, plain: bool) -> None:
        super().__init__()
        cells = state.cells
        self.cells = RowExperts([cell.posterior for cell in cells], plain=plain)
        tables = {
            "centre": torch.stack([cell.centre for cell in cells]),
            "scale": state.kappa * torch.stack([cell.scale for cell in cells]),
            "tau": torch.stack([cell.tau for cell in cells]),
        }
        for name in ("offset", "spread", "centroids", "reach", "floor"):
            tables[name] = getattr(state, name)
        for name, value in tables.items():
            self.register_buffer(name, value)

    def forward(self, inputs: Inputs) -> WitnessPrediction:
        """What it says of these rows."""
        vectors = [leaf.double().reshape(leaf.shape[0], -1) for leaf in leaves(inputs)]
        points = vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)
        points = ((points - self.offset) / self.spread).clamp(-FARTHEST, FARTHEST)
        labels = nearest(points, self.centroids)
        reduction, mean = self.cells(labels, {"inputs": points})
        unit, mean = (1.0 - reduction).clamp(0.0, 1.0), self.centre[labels] + mean
        variance = torch.maximum(self.scale[labels] * (unit + self.tau[labels])[:, None], self.floor)
        return WitnessPrediction(mean, variance, unit, self.reach)
