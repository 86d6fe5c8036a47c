"""Single experts as modules that answer for one row, for `Chosen`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..mixture import Mixture
from ..posteriors import Answer, GramPosterior, RootPosterior, SpanPosterior
from ..tangents.factors import FactorFeatures
from ..witness import Cell, RootCell
from .choosing import Chosen
from .stacking import factor_parts, priors, relative_parts, told_apart, whole


class GramExpert(nn.Module):
    """See `posteriors.GramPosterior` and `RootPosterior`."""

    inverse: Tensor  # L^-1 [m, m], or R^T [r, m]
    weights: Tensor  # [B, m]

    def __init__(self, posterior: GramPosterior | RootPosterior) -> None:
        super().__init__()
        tensors = posterior.features.tensors()
        self.pairs = sum(name.startswith("activations") for name in tensors)
        for i, value in enumerate(tensors.values()):
            self.register_buffer(f"features_{i}", value.contiguous())
        self.register_buffer("inverse", posterior.whitening())
        self.register_buffer("weights", posterior.weights.T.contiguous())

    def forward(self, *vectors: Tensor) -> tuple[Tensor, Tensor]:
        r""":math:`|L^{-1} k|^2` and m(x), from the factors of one row in float64, [d, 1] each."""
        shares = [getattr(self, f"features_{i}").double() @ vector for i, vector in enumerate(vectors)]
        cross = sum(shares[2 * self.pairs :], torch.zeros((), dtype=torch.float64))
        for i in range(self.pairs):
            product = shares[i] * shares[self.pairs + i]
            cross = product if i == 0 and len(shares) == 2 * self.pairs else cross + product
        white = self.inverse @ cross
        return (white * white).sum(), (self.weights.double() @ cross).squeeze(1)


class SpanExpert(nn.Module):
    """See `posteriors.SpanPosterior`; outputs are told apart where `mixed` is over 1."""

    columns: Tensor
    basis: Tensor  # V [d, r]
    shrink: Tensor  # [r]
    weights: Tensor  # [d, B]
    outputs: Tensor | None  # which column belongs to which output, [d, K]

    def __init__(self, posterior: SpanPosterior, mixed: int) -> None:
        super().__init__()
        self.mixed, self.chooses = mixed, bool(posterior.columns.numel())
        width = len(posterior.basis)
        output = torch.arange(width, device=posterior.basis.device) * mixed // width
        self.register_buffer("columns", posterior.columns)
        self.register_buffer("basis", whole(posterior.basis).contiguous())
        self.register_buffer("shrink", posterior.shrink)
        self.register_buffer("weights", posterior.weights)
        self.register_buffer("outputs", nn.functional.one_hot(output, mixed).double() if mixed > 1 else None)

    def forward(self, phi: Tensor) -> tuple[Tensor, ...]:
        """Unit variance, prior and m(x) of one row [1, d], and the outputs' parts of the prior, if known."""
        phi = phi.index_select(1, self.columns) if self.chooses else phi
        inside = phi @ self.basis  # [1, r]
        outside = (phi.T - self.basis @ inside.T).double()
        unit = (outside * outside).sum() + (self.shrink * inside.double().square()).sum()
        wide = phi.double()
        squares = wide * wide
        answer = (unit, squares.sum(), (wide @ self.weights).squeeze(0))
        return answer if self.outputs is None else (*answer, (squares @ self.outputs).squeeze(0))


class CellExpert(nn.Module):
    """See `witness.Cell` and `RootCell`."""

    inputs: Tensor  # [m, d]
    length: Tensor
    inverse: Tensor  # L^-1 [m, m], or R^T [r, m]
    weights: Tensor  # [C, m]

    def __init__(self, cell: Cell | RootCell, length: Tensor) -> None:
        super().__init__()
        self.register_buffer("inputs", cell.inputs)
        self.register_buffer("length", length)
        self.register_buffer("inverse", cell.whitening())
        self.register_buffer("weights", cell.weights.T.contiguous())

    def forward(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior over prior variance, and the mean over its centre, of one row."""
        apart = ((point - self.inputs) / self.length).square().sum(dim=1, keepdim=True)
        cross = torch.exp(-0.5 * apart)  # [m, 1]
        white = self.inverse @ cross
        return 1.0 - (white * white).sum(), (self.weights @ cross).squeeze(1)


class ChosenGrams(nn.Module):
    """As `stacking.StackedGrams`, each expert by itself."""

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        self.mixed = len(mixture.tangents.mix)
        self.blended = len(mixture.experts[0].scale) < len(mixture.outputs)
        solved: Any = next(e.posterior for e in mixture.experts if not e.failed)
        none = RootPosterior(
            _none(solved.features), solved.weights.new_zeros(1, 1), torch.zeros_like(solved.weights[:1])
        )
        experts = [GramExpert(none if e.failed else e.posterior) for e in mixture.experts]  # pyright: ignore
        example = [value[0].double()[:, None] for value in solved.features.tensors().values()]
        self.chosen = Chosen(experts, example)

    def forward(self, features: FactorFeatures, labels: Tensor) -> tuple[Answer, Tensor]:
        """What the experts `labels` [n] say, and the amplitudes of the outputs."""
        # as columns: onnxruntime's product of a matrix with a plain vector is fourteen times slower
        vectors = [value.double()[:, :, None] for value in features.tensors().values()]
        told, shift = self.chosen(labels, *vectors)
        parts = factor_parts(features, self.mixed)
        prior = priors(parts)
        return Answer(prior - told, prior, shift), relative_parts(
            None if self.blended else parts, prior.device
        )


class ChosenSpans(nn.Module):
    """As `stacking.StackedSpans`, each expert by itself."""

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        blended = len(mixture.experts[0].scale) < len(mixture.outputs)
        mixed = 1 if blended or not told_apart(mixture) else len(mixture.tangents.mix)
        solved: Any = next(e.posterior for e in mixture.experts if not e.failed)
        width = mixture.tangents.width(expert=False) or 0
        device = solved.basis.device
        every = torch.arange(width if solved.columns.numel() else 0, device=device)
        none = SpanPosterior(
            every,
            solved.basis.new_zeros(width, 1),
            solved.shrink.new_zeros(1),
            solved.weights.new_zeros(width, solved.weights.shape[1]),
        )
        experts = [SpanExpert(none if e.failed else e.posterior, mixed) for e in mixture.experts]  # pyright: ignore
        self.chosen = Chosen(experts, [whole(solved.basis).new_zeros(1, width)])

    def forward(self, features: Tensor, labels: Tensor) -> tuple[Answer, Tensor]:
        """What the experts `labels` [n] say, and the amplitudes of the outputs."""
        unit, prior, shift, *parts = self.chosen(labels, features[:, None])
        return Answer(unit, prior, shift), relative_parts(parts[0] if parts else None, prior.device)


def _none(features: Any) -> Any:
    """Features of one row that has none."""
    return FactorFeatures.from_tensors({k: torch.zeros_like(v[:1]) for k, v in features.tensors().items()})


def chosen_cells(cells: Sequence[Cell | RootCell], length: Tensor) -> Chosen:
    """The cells of a witness."""
    return Chosen([CellExpert(cell, length) for cell in cells], [cells[0].inputs[:1]])
