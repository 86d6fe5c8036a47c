"""Experts that keep a basis of their rows' span, in the form of a graph; see `posteriors.SpanPosterior`.

Side by side, padded with zeros to one size, or each by itself: a direction of zeros is no part of a gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...experts.mixture import Mixture
from ...experts.posteriors import LatentMoments
from .choose import Chosen
from .row_experts import padded, relative_parts


def span_experts(mixture: Mixture, *, plain: bool) -> nn.Module:
    """The experts of a mixture."""
    return StackedSpans(mixture) if plain else ChosenSpans(mixture)


class StackedSpans(nn.Module):
    """The experts of a mixture side by side; one that could not be solved is all padding."""

    basis: Tensor  # V [M, d, r]
    shrinkage: Tensor  # [M, r]
    weights: Tensor  # [M, d, B]
    failed: Tensor  # [M]
    columns: Tensor  # [M, d]

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        self.mixed, first = _mixed(mixture), _solved(mixture)
        self.chooses = bool(first.columns.numel())
        none = _nothing(first, len(first.basis), torch.zeros_like(first.columns))
        posteriors: list[Any] = [none if e.failed else e.posterior for e in mixture.experts]
        failed = torch.tensor([e.failed for e in mixture.experts], device=first.basis.device)
        self.any_failed = bool(failed.any())
        self.register_buffer("basis", padded([_whole(p.basis) for p in posteriors]))
        self.register_buffer("shrinkage", padded([p.shrinkage for p in posteriors]))
        self.register_buffer("weights", padded([p.weights for p in posteriors]))
        self.register_buffer("failed", failed)
        self.register_buffer("columns", padded([p.columns for p in posteriors]) if self.chooses else None)

    def forward(self, features: Tensor, labels: Tensor) -> tuple[LatentMoments, Tensor]:
        r"""What the experts `labels` [n] say, and the amplitudes of the outputs, [n, B] or [n, 1].

        The variance is the sum of squares :math:`|\phi - V V^\top \phi|^2 + \sum_i c_i (v_i^\top \phi)^2`,
        in the precision of the basis: nothing that is large cancels, but in the part outside, as in it.
        """
        phi = features.gather(1, self.columns[labels]) if self.chooses else features
        phi = phi.to(self.basis.dtype)
        basis = self.basis[labels]  # [n, d, r]
        inside = phi[:, None] @ basis  # [n, 1, r]
        outside = phi - (basis @ inside.transpose(1, 2)).squeeze(2)
        unit = _squares(outside) + (self.shrinkage[labels] * inside.squeeze(1).double().square()).sum(dim=1)
        mean = (phi[:, None].to(self.weights) @ self.weights[labels]).squeeze(1)
        prior = _squares(phi)
        amplitudes = relative_parts(self._parts(phi), phi.device)
        if self.chooses and self.any_failed:  # what an expert without an answer leaves is all of the gradient
            none, whole = self.failed[labels], _squares(features)
            unit, prior = torch.where(none, whole, unit), torch.where(none, whole, prior)
            amplitudes = torch.where(
                none[:, None], relative_parts(self._parts(features), phi.device), amplitudes
            )
        return LatentMoments(unit, prior, mean), amplitudes

    def _parts(self, phi: Tensor) -> Tensor | None:
        if self.mixed == 1:
            return None
        return phi.unflatten(1, (self.mixed, -1)).double().square().sum(dim=2)


class ChosenSpans(nn.Module):
    """As `StackedSpans`, each expert by itself."""

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        mixed, first = _mixed(mixture), _solved(mixture)
        width = mixture.tangents.num_columns(expert=False) or 0
        every = torch.arange(width if first.columns.numel() else 0, device=first.basis.device)
        none = _nothing(first, width, every)
        experts = [SpanExpert(none if e.failed else e.posterior, mixed) for e in mixture.experts]
        self.chosen = Chosen(experts, [_whole(first.basis).new_zeros(1, width)])

    def forward(self, features: Tensor, labels: Tensor) -> tuple[LatentMoments, Tensor]:
        """What the experts `labels` [n] say, and the amplitudes of the outputs."""
        unit, prior, mean, *parts = self.chosen(labels, features[:, None])
        return LatentMoments(unit, prior, mean), relative_parts(parts[0] if parts else None, prior.device)


class SpanExpert(nn.Module):
    """One expert; outputs are told apart where `mixed` is over 1."""

    columns: Tensor
    basis: Tensor  # V [d, r]
    shrinkage: Tensor  # [r]
    weights: Tensor  # [d, B]
    outputs: Tensor | None  # which column belongs to which output, [d, K]

    def __init__(self, posterior: Any, mixed: int) -> None:
        super().__init__()
        self.mixed, self.chooses = mixed, bool(posterior.columns.numel())
        width = len(posterior.basis)
        output = torch.arange(width, device=posterior.basis.device) * mixed // width
        self.register_buffer("columns", posterior.columns)
        self.register_buffer("basis", _whole(posterior.basis).contiguous())
        self.register_buffer("shrinkage", posterior.shrinkage)
        self.register_buffer("weights", posterior.weights)
        self.register_buffer("outputs", nn.functional.one_hot(output, mixed).double() if mixed > 1 else None)

    def forward(self, phi: Tensor) -> tuple[Tensor, ...]:
        """Unit variance, prior and m(x) of one row [1, d], and the outputs' parts of the prior, if known."""
        phi = phi.index_select(1, self.columns) if self.chooses else phi
        inside = phi @ self.basis  # [1, r]
        outside = (phi.T - self.basis @ inside.T).double()
        unit = (outside * outside).sum() + (self.shrinkage * inside.double().square()).sum()
        wide = phi.double()
        squares = wide * wide
        answer = (unit, squares.sum(), (wide @ self.weights).squeeze(0))
        return answer if self.outputs is None else (*answer, (squares @ self.outputs).squeeze(0))


def _solved(mixture: Mixture) -> Any:
    """The posterior of the first expert that has one."""
    return next(expert.posterior for expert in mixture.experts if not expert.failed)


def _nothing(like: Any, width: int, columns: Tensor) -> Any:
    """A posterior that knows nothing."""
    return replace(
        like,
        columns=columns,
        basis=like.basis.new_zeros(width, 1),
        shrinkage=like.shrinkage.new_zeros(1),
        weights=like.weights.new_zeros(width, like.weights.shape[1]),
    )


def _mixed(mixture: Mixture) -> int:
    """Outputs that the features keep apart, where amplitudes are asked for; sketches sum over them."""
    tangents = mixture.tangents
    empty = tangents.kind.from_tensors({"rows": torch.zeros(1, tangents.num_columns(expert=False) or 0)})
    blended = len(mixture.experts[0].scale) < len(mixture.outputs)
    return 1 if blended or tangents.diag_per_output(empty) is None else len(tangents.mix)


def _squares(rows: Tensor) -> Tensor:
    """Squared lengths, float64, shape [n]."""
    return rows.double().square().sum(dim=1)


def _whole(values: Tensor) -> Tensor:
    """Numbers to work with: float16 is how a compressed model keeps them."""
    return values.float() if values.dtype == torch.float16 else values
