"""Posteriors that hold rows, in the form of a graph: experts with layer factors, and cells of a witness.

Side by side, padded with zeros to one size, a posterior is an index away: a row without weight or part in the
factor adds nothing. Else each stands by itself, behind the operation `trustgp::choose`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

from ...experts.features import LEAST_AMPLITUDE
from ...experts.mixture import Mixture
from ...experts.posteriors import LatentMoments, RootPosterior
from ...experts.witness import PointFeatures
from ...tangents.factors import FactorFeatures
from ...tangents.half_factors import HalfFactors
from .choose import Chosen


class FactorKernel(nn.Module):
    """Of layer factors; see `tangents.factors.FactorFeatures`."""

    def __init__(self, features: FactorFeatures | HalfFactors) -> None:
        super().__init__()
        self.pairs = len(features.activations)

    def vectors(self, tensors: dict[str, Tensor]) -> list[Tensor]:
        """Of n rows in float64, [n, d, 1] each."""
        # as columns: onnxruntime's product of a matrix with a plain vector is fourteen times slower
        return [value.double()[:, :, None] for value in tensors.values()]

    def forward(self, held: Sequence[Tensor], vectors: Sequence[Tensor]) -> Tensor:
        """k(x, rows) / s of one row [m, 1], or of n rows, each with rows of its own [n, m, 1]; float64."""
        shares = [rows.double() @ vector for rows, vector in zip(held, vectors, strict=True)]
        layers = zip(shares[: self.pairs], shares[self.pairs : 2 * self.pairs], strict=True)
        return reduce(add, [*(a * g for a, g in layers), *shares[2 * self.pairs :]])


class PointKernel(nn.Module):
    """Of points; see `witness.PointFeatures`."""

    length: Tensor

    def __init__(self, features: PointFeatures) -> None:
        super().__init__()
        self.register_buffer("length", features.points.new_tensor(features.length))

    def vectors(self, tensors: dict[str, Tensor]) -> list[Tensor]:
        """Of n rows, [n, 1, d]."""
        return [value[:, None] for value in tensors.values()]

    def forward(self, held: Sequence[Tensor], vectors: Sequence[Tensor]) -> Tensor:
        """As of `FactorKernel`."""
        apart = ((vectors[0] - held[0]) / self.length).square().sum(dim=-1, keepdim=True)
        return torch.exp(-0.5 * apart)


KERNELS: dict[type, type] = {
    FactorFeatures: FactorKernel,
    HalfFactors: FactorKernel,
    PointFeatures: PointKernel,
}


class RowExperts(nn.Module):
    """Posteriors of which each row is answered by one.

    Args:
        posteriors: All of one kind.
        plain: Whether they are padded to one size.
    """

    def __init__(self, posteriors: Sequence[Any], *, plain: bool) -> None:
        super().__init__()
        features = posteriors[0].features
        self.kernel = KERNELS[type(features)](features)
        if plain:
            self.experts = StackedRows(posteriors, self.kernel)
        else:
            example = [vector[0] for vector in self.kernel.vectors(features.take(torch.arange(1)).tensors())]
            self.experts = Chosen([RowExpert(one, self.kernel) for one in posteriors], example)

    def forward(self, labels: Tensor, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What posterior `labels` [n] takes from the prior, :math:`|W k(x)|^2` [n], and its mean [n, B]."""
        reduction, mean = self.experts(labels, *self.kernel.vectors(tensors))
        return reduction, mean


class RowExpert(nn.Module):
    """One posterior; see `posteriors.GramPosterior` and `RootPosterior`."""

    whitening: Tensor  # L^-1 [m, m], or R^T [r, m]
    weights: Tensor  # [B, m]

    def __init__(self, posterior: Any, kernel: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel
        self.count = _register_features(self, [posterior], stack=False)
        self.register_buffer("whitening", posterior.whitening())
        self.register_buffer("weights", posterior.weights.T.contiguous())

    def forward(self, *vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Of one row: what it takes from the prior, and its mean [B]."""
        cross = self.kernel([getattr(self, f"features_{i}") for i in range(self.count)], vectors)  # [m, 1]
        white = self.whitening @ cross
        return (white * white).sum(), (self.weights @ cross).squeeze(1)


class StackedRows(nn.Module):
    """Posteriors side by side."""

    whitening: Tensor  # [M, r, m]
    weights: Tensor  # [M, m, B]

    def __init__(self, posteriors: Sequence[Any], kernel: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel
        self.count = _register_features(self, posteriors, stack=True)
        self.register_buffer("whitening", padded([one.whitening() for one in posteriors]))
        self.register_buffer("weights", padded([one.weights for one in posteriors]))

    def forward(self, labels: Tensor, *vectors: Tensor) -> tuple[Tensor, Tensor]:
        """As of `RowExperts`."""
        held = [getattr(self, f"features_{i}")[labels] for i in range(self.count)]
        cross = self.kernel(held, vectors)  # [n, m, 1]
        white = (self.whitening[labels] @ cross).squeeze(2)
        mean = (cross.transpose(1, 2) @ self.weights[labels]).squeeze(1)
        return white.square().sum(dim=1), mean


def _register_features(module: nn.Module, posteriors: Sequence[Any], *, stack: bool) -> int:
    """Features of the posteriors' rows as buffers, side by side or of the only one; how many tensors."""
    tables = [list(one.features.tensors().values()) for one in posteriors]
    for i, same in enumerate(zip(*tables, strict=True)):
        module.register_buffer(f"features_{i}", padded(same) if stack else same[0].contiguous())
    return len(tables[0])


def padded(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors filled up with zeros to the largest size along each dimension, [M, ...]."""
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    table = tensors[0].new_zeros(len(tensors), *shape)
    for place, tensor in zip(table, tensors, strict=True):
        place[tuple(slice(size) for size in tensor.shape)] = tensor
    return table


class FactorExperts(nn.Module):
    """The experts of a mixture with layer factors; one that could not be solved leaves the prior."""

    def __init__(self, mixture: Mixture, *, plain: bool) -> None:
        super().__init__()
        self.mixed = len(mixture.tangents.mix)
        self.blended = len(mixture.experts[0].scale) < len(mixture.outputs)
        solved = next(e.posterior for e in mixture.experts if not e.failed)
        features = {name: torch.zeros_like(v[:1]) for name, v in solved.features.tensors().items()}
        nothing = solved.weights[:1].new_zeros(1, 1)
        none = RootPosterior(
            FactorFeatures.from_tensors(features), nothing, torch.zeros_like(solved.weights[:1])
        )
        self.rows = RowExperts([none if e.failed else e.posterior for e in mixture.experts], plain=plain)

    def forward(self, features: FactorFeatures, labels: Tensor) -> tuple[LatentMoments, Tensor]:
        r"""What the experts `labels` [n] say, and the amplitudes of the outputs, [n, B] or [n, 1].

        The variance is the difference :math:`k(x, x) - |L^{-1} k(x)|^2`, in float64.
        """
        reduction, mean = self.rows(labels, features.tensors())
        parts = _factor_parts(features, self.mixed)
        prior = parts.sum(dim=1) if parts.shape[1] > 1 else parts.squeeze(1)
        amplitudes = relative_parts(None if self.blended else parts, prior.device)
        return LatentMoments(prior - reduction, prior, mean), amplitudes


def _factor_parts(features: FactorFeatures, mixed: int) -> Tensor:
    """What each mixed output adds to k(x, x), float64, shape [n, K]."""

    def squares(values: Tensor) -> Tensor:
        return values.unflatten(1, (mixed, -1)).double().square().sum(dim=2)

    layers = zip(features.activations, features.signals, strict=True)
    shares = [a.double().square().sum(dim=1, keepdim=True) * squares(g) for a, g in layers]
    return reduce(add, [*shares, *(squares(p) for p in features.products)])


def relative_parts(parts: Tensor | None, device: torch.device) -> Tensor:
    """As `experts.amplitudes`, from the parts [n, K] of the prior; None: they are not told apart."""
    if parts is None or parts.shape[1] == 1:
        return torch.ones(1, 1, dtype=torch.float64, device=device)
    mean = parts.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, parts / mean, 1.0).clamp_min(LEAST_AMPLITUDE)
