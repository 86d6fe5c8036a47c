r"""The experts of a mixture side by side in padded tensors, so that one of them is an index away.

What is padded is zero and adds nothing: a row without features has no kernel with any other, a direction of
zeros no part of a gradient. An expert that could not be solved is all padding, which leaves the prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..experts import LEAST_AMPLITUDE
from ..mixture import Mixture
from ..posteriors import Answer, GramPosterior, RootPosterior, SpanPosterior
from ..tangents.factors import FactorFeatures


def padded(tensors: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Tensors of at most this shape, each filled up with zeros, [M, *shape]."""
    table = tensors[0].new_zeros(len(tensors), *shape)
    for place, tensor in zip(table, tensors, strict=True):
        place[tuple(slice(size) for size in tensor.shape)] = tensor
    return table


def largest(tensors: Sequence[Tensor]) -> list[int]:
    """The largest size along each dimension."""
    return [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]


def whole(values: Tensor) -> Tensor:
    """Numbers to work with: float16 is how a compressed model keeps them."""
    return values.float() if values.dtype == torch.float16 else values


def dots(rows: Tensor, vector: Tensor) -> Tensor:
    """Of each row of [n, m, d] with the vector of the same n, [n, d]: shape [n, m], float64."""
    return (rows.double() @ vector.double()[:, :, None]).squeeze(2)


class StackedGrams(nn.Module):
    """Experts that keep features of rows and a factor; see `posteriors.GramPosterior`, `RootPosterior`."""

    inverse: Tensor  # L^-1, or R^T, filled up with zeros [M, m, m]
    weights: Tensor  # [M, m, B]

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        solved: dict[int, Any] = {i: e.posterior for i, e in enumerate(mixture.experts) if not e.failed}
        first = next(iter(solved.values()))
        assert isinstance(first, (GramPosterior, RootPosterior))
        rows = max(len(p.weights) for p in solved.values())
        count, device = len(mixture.experts), first.weights.device
        self.mixed = len(mixture.tangents.mix)
        self.blended = len(mixture.experts[0].scale) < len(mixture.outputs)
        self.layers = len(first.features.tensors())

        def stacked(pick, *widths: int) -> Tensor:
            table = None
            for number, posterior in solved.items():
                value = pick(posterior)
                if table is None:
                    table = value.new_zeros(count, rows, *widths)
                table[number][tuple(slice(size) for size in value.shape)] = value
            assert table is not None
            return table.to(device)

        self.kinds = tuple(first.features.tensors())
        for place, (name, value) in enumerate(first.features.tensors().items()):
            table = stacked(lambda p, name=name: p.features.tensors()[name], value.shape[1])
            self.register_buffer(f"features_{place}", table)
        self.register_buffer("inverse", stacked(lambda p: p.whitening(), rows))
        self.register_buffer("weights", stacked(lambda p: p.weights, first.weights.shape[1]))

    def forward(self, features: FactorFeatures, labels: Tensor) -> tuple[Answer, Tensor]:
        r"""What the experts `labels` [n] say, and the amplitudes of the outputs, [n, B] or [n, 1].

        The variance is the difference :math:`k(x, x) - |L^{-1} k(x)|^2`, in float64.
        """
        held = {name: getattr(self, f"features_{i}")[labels] for i, name in enumerate(self.kinds)}
        cross = _kernel(features, held)
        parts = factor_parts(features, self.mixed)
        prior = priors(parts)
        white = dots(self.inverse[labels], cross)
        shift = (cross[:, None].to(self.weights) @ self.weights[labels]).squeeze(1)
        answer = Answer(prior - white.square().sum(dim=1), prior, shift)
        return answer, relative_parts(None if self.blended else parts, prior.device)


class StackedSpans(nn.Module):
    """Experts that keep a basis of their rows' span; see `posteriors.SpanPosterior`."""

    basis: Tensor  # V [M, d, r]
    shrink: Tensor  # [M, r]
    weights: Tensor  # [M, d, B]
    failed: Tensor  # [M]
    columns: Tensor  # [M, d]

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        solved: dict[int, Any] = {i: e.posterior for i, e in enumerate(mixture.experts) if not e.failed}
        first = next(iter(solved.values()))
        assert isinstance(first, SpanPosterior)
        count, device = len(mixture.experts), first.basis.device
        ranks = max(p.basis.shape[1] for p in solved.values())
        tangents = mixture.tangents
        self.mixed = len(tangents.mix)
        self.blended = len(mixture.experts[0].scale) < len(mixture.outputs)
        self.apart = tangents.width(expert=True) is not None and told_apart(mixture)
        self.chooses = bool(first.columns.numel())
        width = len(first.basis)

        def stacked(pick, *shape: int) -> Tensor:
            table = pick(first).new_zeros(count, *shape).to(device)
            for number, posterior in solved.items():
                value = pick(posterior)
                table[number][tuple(slice(size) for size in value.shape)] = value
            return table

        self.register_buffer("basis", stacked(lambda p: whole(p.basis), width, ranks))
        self.register_buffer("shrink", stacked(lambda p: p.shrink, ranks))
        self.register_buffer("weights", stacked(lambda p: p.weights, width, first.weights.shape[1]))
        failed = torch.tensor([e.failed for e in mixture.experts], device=device)
        self.any_failed = bool(failed.any())
        self.register_buffer("failed", failed)
        self.register_buffer("columns", stacked(lambda p: p.columns, width) if self.chooses else None)

    def forward(self, features: Tensor, labels: Tensor) -> tuple[Answer, Tensor]:
        r"""What the experts `labels` [n] say, and the amplitudes of the outputs, [n, B] or [n, 1].

        The variance is the sum of squares :math:`|\phi - V V^\top \phi|^2 + \sum_i c_i (v_i^\top \phi)^2`,
        in the precision of the basis: nothing that is large cancels, but in the part outside, as in it.
        """
        phi = features.gather(1, self.columns[labels]) if self.chooses else features
        phi = phi.to(self.basis.dtype)
        basis = self.basis[labels]  # [n, d, r]
        inside = phi[:, None] @ basis  # [n, 1, r]
        outside = phi - (basis @ inside.transpose(1, 2)).squeeze(2)
        unit = _squares(outside) + (self.shrink[labels] * inside.squeeze(1).double().square()).sum(dim=1)
        shift = (phi[:, None].to(self.weights) @ self.weights[labels]).squeeze(1)
        prior = _squares(phi)
        amplitudes = relative_parts(self._parts(phi), phi.device)
        if self.chooses and self.any_failed:  # what an expert without an answer leaves is all of the gradient
            none, whole = self.failed[labels], _squares(features)
            unit, prior = torch.where(none, whole, unit), torch.where(none, whole, prior)
            amplitudes = torch.where(
                none[:, None], relative_parts(self._parts(features), phi.device), amplitudes
            )
        return Answer(unit, prior, shift), amplitudes

    def _parts(self, phi: Tensor) -> Tensor | None:
        if self.blended or not self.apart or self.mixed == 1:
            return None
        return phi.unflatten(1, (self.mixed, -1)).double().square().sum(dim=2)


def factor_parts(features: FactorFeatures, mixed: int) -> Tensor:
    """What each mixed output adds to k(x, x), float64, shape [n, K]."""
    total = None
    for a, g in zip(features.activations, features.signals, strict=True):
        signals = g.unflatten(1, (mixed, -1)).double().square().sum(dim=2)
        share = a.double().square().sum(dim=1, keepdim=True) * signals
        total = share if total is None else total + share
    for p in features.products:
        share = p.unflatten(1, (mixed, -1)).double().square().sum(dim=2)
        total = share if total is None else total + share
    assert total is not None
    return total


def priors(parts: Tensor) -> Tensor:
    """k(x, x) from the parts [n, K], shape [n]."""
    return parts.sum(dim=1) if parts.shape[1] > 1 else parts.squeeze(1)


def _kernel(features: FactorFeatures, held: dict[str, Tensor]) -> Tensor:
    """k(x, x_i) / s of each row with the rows [n, m, ...] held for it, float64, shape [n, m]."""
    total = None
    for i, (a, g) in enumerate(zip(features.activations, features.signals, strict=True)):
        share = dots(held[f"activations.{i}"], a) * dots(held[f"signals.{i}"], g)
        total = share if total is None else total + share
    for i, p in enumerate(features.products):
        share = dots(held[f"products.{i}"], p)
        total = share if total is None else total + share
    assert total is not None
    return total


def told_apart(mixture: Mixture) -> bool:
    """Whether its features keep the outputs apart; sketches sum over them."""
    width = mixture.tangents.width(expert=False)
    empty = mixture.tangents.kind.from_tensors({"rows": torch.zeros(1, width or 0)})
    return mixture.tangents.parts(empty) is not None


def _squares(rows: Tensor) -> Tensor:
    """Squared lengths, float64, shape [n]."""
    return rows.double().square().sum(dim=1)


def relative_parts(parts: Tensor | None, device: torch.device) -> Tensor:
    """As `experts.amplitudes`, from the parts [n, K] of the prior; None: they are not told apart."""
    if parts is None or parts.shape[1] == 1:
        return torch.ones(1, 1, dtype=torch.float64, device=device)
    mean = parts.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, parts / mean, 1.0).clamp_min(LEAST_AMPLITUDE)
