"""The gate and the witness in the form of a graph: distances written out, the nearest by index."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..data import Inputs, leaves
from ..gating import Gate, GramProjection
from ..tangents.factors import FactorFeatures
from ..witness import FARTHEST, Testimony, WitnessState
from .experts import chosen_cells
from .stacking import dots, padded


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
        if isinstance(projection, GramProjection):
            tensors = projection.features.tensors()
            self.kinds = tuple(tensors)
            for i, value in enumerate(tensors.values()):
                self.register_buffer(f"features_{i}", value)
            self.register_buffer("directions", projection.coefficients)
        else:
            self.register_buffer("directions", projection.directions)

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
    """The cells of a witness side by side; see `witness.WitnessState`."""

    inputs: Tensor  # [M, m, d]
    inverse: Tensor  # L^-1 [M, m, m]
    weights: Tensor  # [M, m, C]
    centre: Tensor  # [M, C]
    scale: Tensor  # [M, C]
    tau: Tensor  # [M]
    offset: Tensor
    spread: Tensor
    centroids: Tensor
    length: Tensor
    reach: Tensor
    floor: Tensor

    def __init__(self, state: WitnessState, *, plain: bool) -> None:
        super().__init__()
        cells, self.plain = state.cells, plain
        most, width = max(len(cell.inputs) for cell in cells), len(state.offset)
        outputs = len(state.floor)
        tables = (
            {}
            if not plain
            else {
                "inputs": padded([cell.inputs for cell in cells], (most, width)),
                # rows that are not there have no weight, and no part in the factor
                "inverse": padded([cell.whitening() for cell in cells], (most, most)),
                "weights": padded([cell.weights for cell in cells], (most, outputs)),
            }
        )
        self.cells = None if plain else chosen_cells(cells, state.length)
        tables |= {
            "centre": torch.stack([cell.centre for cell in cells]),
            "scale": state.kappa * torch.stack([cell.scale for cell in cells]),
            "tau": torch.stack([cell.tau for cell in cells]),
        }
        for name in ("offset", "spread", "centroids", "length", "reach", "floor"):
            tables[name] = getattr(state, name)
        for name, value in tables.items():
            self.register_buffer(name, value)

    def forward(self, inputs: Inputs) -> Testimony:
        """What it says of these rows."""
        vectors = [leaf.double().reshape(leaf.shape[0], -1) for leaf in leaves(inputs)]
        points = vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)
        points = ((points - self.offset) / self.spread).clamp(-FARTHEST, FARTHEST)
        labels = nearest(points, self.centroids)
        if self.cells is None:
            unit, mean = self._stacked(points, labels)
        else:
            unit, mean = self.cells(labels, points[:, None])
        unit, mean = unit.clamp(0.0, 1.0), self.centre[labels] + mean
        variance = torch.maximum(self.scale[labels] * (unit + self.tau[labels])[:, None], self.floor)
        return Testimony(mean, variance, unit, self.reach)

    def _stacked(self, points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior over prior variance, and the mean over its centre, from the padded tables."""
        apart = ((points[:, None] - self.inputs[labels]) / self.length).square().sum(dim=2)
        cross = torch.exp(-0.5 * apart)  # [n, m]
        white = dots(self.inverse[labels], cross)
        return 1.0 - white.square().sum(dim=1), (cross[:, None] @ self.weights[labels]).squeeze(1)
