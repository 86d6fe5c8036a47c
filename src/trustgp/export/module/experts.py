"""Gate, experts and witness as modules of plain tensor operations.

An expert predicts k rows, or n batches of k rows with separate buffers: [...] is empty or n. Padding with a
row of zeros of weight zero, or with a direction of zeros, adds nothing.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from ...data.trees import Inputs, moved
from ...experts.features import amplitudes
from ...experts.gate import Gate
from ...experts.mixture import Mixture
from ...experts.posteriors import GramPosterior, LatentMoments
from ...experts.stack import padded
from ...experts.witness import PADDING, WitnessPrediction, WitnessState, vectors_of
from ...math.evidence import distances
from ...tangents.factors import FactorFeatures
from ...tangents.rows import RowFeatures
from .elimination import inverse_products, panels_of

FAR = 1e4  # subtracted from an exponent, so that the kernel is 0
_KEYS = itertools.count()
CHOICES: weakref.WeakValueDictionary[int, Chosen] = weakref.WeakValueDictionary()  # of `choose`, by key


class Stacked(nn.Module):
    """`Chosen` in plain operations: experts are stacked, padded with zeros to one size, and indexed."""

    def __init__(self, experts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.expert = experts[0]
        for name, _ in self.expert.named_buffers():
            self.register_buffer(name, padded([expert.get_buffer(name) for expert in experts]))

    def forward(self, labels: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        """The predictions of the experts `labels` [n]."""
        tables = {name: self.get_buffer(name)[labels] for name, _ in self.expert.named_buffers()}
        answers = functional_call(self.expert, tables, tuple(vector[:, None] for vector in vectors))
        return tuple(answer.squeeze(1) for answer in answers)


class Chosen(nn.Module):
    """A module that takes labels [n] and tensors of the rows, [n, ...] each, and returns the prediction of
    expert `labels[i]` for row i.

    An expert takes tensors of its k rows and returns a tuple of tensors, [k, ...] each. Experts differ only
    in their buffers, whose sizes do not affect those of the results; no operation depends on k. With a batch
    dimension of buffers and tensors, the results have it, too.

    The operation `trustgp::choose` is one node of a traced graph: where a file format can branch, an expert
    predicts all its rows by one product, only the chosen experts' numbers are read, and they are stored
    without padding, so the cost does not depend on the number of experts.
    """

    def __init__(self, experts: Sequence[nn.Module], example: Sequence[Tensor]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self.example = [vector[:1].repeat(2, *[1] * (vector.ndim - 1)) for vector in example]  # two rows
        self.kinds = [(tuple(value.shape[1:]), value.dtype) for value in self.experts[0](*self.example)]
        self.key = next(_KEYS)
        CHOICES[self.key] = self

    def forward(self, labels: Tensor, *vectors: Tensor) -> list[Tensor]:
        """The predictions of the experts `labels` [n]."""
        return choose(labels, list(vectors), self.key)


# The schema is explicit because torch 2.6 cannot infer it from `list[Tensor]`.
CHOOSE = "(Tensor labels, Tensor[] vectors, SymInt key) -> Tensor[]"


@torch.library.custom_op("trustgp::choose", mutates_args=(), schema=CHOOSE)
def choose(labels: Tensor, vectors: Sequence[Tensor], key: int) -> list[Tensor]:
    """The predictions of `Chosen` number `key`."""
    choice, n = CHOICES[key], len(labels)
    answers = [vectors[0].new_empty(n, *shape, dtype=dtype) for shape, dtype in choice.kinds]
    for label in labels.unique().tolist():
        own = labels == label
        for answer, own_values in zip(
            answers, choice.experts[label](*(v[own] for v in vectors)), strict=True
        ):
            answer[own] = own_values
    return answers


@choose.register_fake
def _(labels: Tensor, vectors: Sequence[Tensor], key: int) -> list[Tensor]:
    return [vectors[0].new_empty(labels.shape[0], *shape, dtype=dtype) for shape, dtype in CHOICES[key].kinds]


class RowExpert(nn.Module):
    """A posterior that holds rows; see `posteriors.GramPosterior`."""

    whitening: Tensor  # L^-T [..., m, m]
    weights: Tensor  # [..., m, B]

    def __init__(self, posterior: Any) -> None:
        super().__init__()
        features = posterior.features.tensors()
        self.pairs = sum(name.startswith("activations") for name in features)
        self.names = [f"features_{i}" for i in range(len(features))]
        for name, value in zip(self.names, features.values(), strict=True):
            self.register_buffer(name, value.T.contiguous())  # transposed here instead of in the graph
        self.register_buffer("whitening", posterior.whitening().T.contiguous())
        self.register_buffer("weights", posterior.weights.contiguous())

    def forward(self, *rows: Tensor) -> tuple[Tensor, Tensor]:
        """The reduction of the prior variance, :math:`|W k(x)|^2` [..., k], and the mean [..., k, B], of rows
        [..., k, d] in float64."""
        shares = [row @ getattr(self, name).double() for name, row in zip(self.names, rows, strict=True)]
        layers = zip(shares[: self.pairs], shares[self.pairs : 2 * self.pairs], strict=True)
        # k(x, rows) / s of layer factors, [..., k, m], float64
        cross = reduce(add, [*(a * g for a, g in layers), *shares[2 * self.pairs :]])
        white = cross @ self.whitening
        return (white * white).sum(dim=-1), cross @ self.weights


class SpanExpert(nn.Module):
    """A posterior that keeps a basis of its rows' span; see `posteriors.SpanPosterior`."""

    basis: Tensor  # V [d, r]
    shrinkage: Tensor  # [r]
    weights: Tensor  # [d, B]

    def __init__(self, posterior: Any) -> None:
        super().__init__()
        for name in ("basis", "shrinkage", "weights"):
            self.register_buffer(name, getattr(posterior, name).contiguous())

    def forward(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        r"""Unit variance [k] and m(x) [k, B] of gradients [k, d]. The variance is the sum of squares
        :math:`|\phi - V V^\top \phi|^2 + \sum_i c_i (v_i^\top \phi)^2`, in the precision of the basis: only
        the first term cancels, as in the posterior itself."""
        inside = phi @ self.basis
        outside = (phi - inside @ self.basis.T).double()
        unit = (outside * outside).sum(dim=1) + (inside.double().square() * self.shrinkage).sum(dim=1)
        return unit, phi.double() @ self.weights


class FactorExperts(nn.Module):
    """The experts of a mixture with layer factors; a failed one predicts the prior."""

    def __init__(self, mixture: Mixture, *, plain: bool) -> None:
        super().__init__()
        self.mixture, solved = mixture, first_solved(mixture)
        blank = {name: torch.zeros_like(value[:1]) for name, value in solved.features.tensors().items()}
        zeros = FactorFeatures.from_tensors(blank)
        # the kernel with a row of zeros is zero, so the prior is not reduced
        prior = GramPosterior(zeros, solved.weights.new_ones(1, 1), torch.zeros_like(solved.weights[:1]))
        experts = [RowExpert(prior if e.failed else e.posterior) for e in mixture.experts]
        self.experts = Stacked(experts) if plain else Chosen(experts, _doubles(zeros))

    def forward(self, features: FactorFeatures, labels: Tensor) -> tuple[LatentMoments, Tensor]:
        r"""Moments of the experts `labels` [n], and the amplitudes of the outputs, [n, B] or [n, 1]. The
        variance is the difference :math:`k(x, x) - |L^{-1} k(x)|^2`, in float64."""
        reduction, mean = self.experts(labels, *_doubles(features))
        prior = features.diag()
        sizes = amplitudes(self.mixture.tangents, features, blended=self.mixture.blended)
        return LatentMoments((prior - reduction).clamp_min(0.0), prior, mean), sizes


class SpanExperts(nn.Module):
    """The experts of a mixture with explicit features; a failed one is all padding."""

    def __init__(self, mixture: Mixture, *, plain: bool) -> None:
        super().__init__()
        assert mixture.stack is not None
        self.mixture, self.stack, self.experts = mixture, mixture.stack, None
        if not plain:
            zeros = moved(first_solved(mixture).truncate(1), torch.zeros_like)  # ONNX reshapes no empty ones
            posteriors = [zeros if e.failed else e.posterior for e in mixture.experts]
            self.experts = Chosen([SpanExpert(one) for one in posteriors], [self.stack.basis[0, :, :1].T])

    def forward(self, features: RowFeatures, labels: Tensor) -> tuple[LatentMoments, Tensor | None]:
        """Moments of the experts `labels` [n], and the amplitudes of the outputs, [n, B], [n, 1] or None."""
        kept = self.stack.select(features, labels)
        moments = None
        if self.experts is not None:
            unit, mean = self.experts(labels, kept.rows.to(self.stack.basis.dtype))
            moments = LatentMoments(unit, kept.diag(), mean)
        return self.mixture.stacked(features, labels, moments)


class GraphGate(nn.Module):
    """Assigns each row to the expert with the nearest centroid; see `gate.Gate`."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, features: FactorFeatures | RowFeatures) -> Tensor:
        """The number of each row's expert, shape [n]."""
        projection, centroids = self.gate.projection, self.gate.centroids
        if projection is None or len(centroids) == 1:
            return torch.zeros(len(features), dtype=torch.int64, device=centroids.device)
        if isinstance(features, RowFeatures):
            points = features.rows.double()
        else:  # k(x, S) / s, float64, shape [n, m]: products in the network's precision, their sum in float64
            subset: Any = projection.features
            groups = zip(features.groups(), subset.groups(), strict=True)
            a, g, p = ([(x @ y.T).double() for x, y in zip(*pair, strict=True)] for pair in groups)
            shares = [*(x * y for x, y in zip(a, g, strict=True)), *p]
            points = torch.stack(shares).sum(dim=0) if len(shares) > 1 else shares[0]
        return distances(points @ projection.directions - projection.offset, centroids).argmin(dim=1)


@dataclass(frozen=True)
class GraphWitness(WitnessState):
    """A witness that predicts all rows at once, by elimination: no format has a Cholesky factor."""

    @classmethod
    def of(cls, state: WitnessState, example: Inputs) -> GraphWitness:
        """GraphWitness of a witness; its caches are filled by a prediction of the example."""
        witness = cls(**{field.name: getattr(state, field.name) for field in fields(state)})
        _ = witness(example)  # fills the caches before the trace
        return witness

    def __call__(self, inputs: Inputs) -> WitnessPrediction:
        return self._predict_lot(self.scaled(vectors_of(inputs)), None)

    def _solved(
        self, points: Tensor, positions: Tensor, closest: Tensor, *, full: bool
    ) -> tuple[Tensor, Tensor]:
        """Mean and novelty as in `WitnessState`, by elimination."""
        p, targets = positions.shape[1], self.targets[positions].double()
        noise = self.ratio * torch.eye(p, dtype=torch.float64, device=points.device)
        kernels = self._kernels(points, self.points[positions], closest)
        panels = [
            torch.cat([kernel + pad(noise[a:b, a:], (0, 1)), targets[:, a:b]], dim=2)
            for (a, b), kernel in zip(panels_of(p), kernels, strict=True)
        ]
        support, mean = inverse_products(panels).squeeze(1).split([1, targets.shape[2]], dim=1)
        return mean, (1.0 - support).clamp(0.0, 1.0)

    def _kernels(self, points: Tensor, rows: Tensor, closest: Tensor) -> list[Tensor]:
        """Kernels of the nearest rows and, last, the point itself, in panels from the diagonal on; as in the
        state, they are computed from products if the kernel of far rows is 0."""
        panels = panels_of(rows.shape[1])
        if not self.compact:
            rows = torch.where(closest.isinf()[:, :, None], PADDING, rows)
            joint = torch.cat([rows, points[:, None]], dim=1)  # [n, p + 1, d]
            squares = ((joint[:, :, None] - joint[:, None]) / self.length).square().sum(dim=3)
            kernel = torch.exp(-0.5 * squares)
            return [kernel[:, a:b, a:] for a, b in panels]
        inside = pad((closest <= self.near_radius).double()[:, :, None], (0, 0, 0, 1), value=1.0)
        rows = pad(rows - points[:, None], (0, 0, 0, 1)) * inside
        squares = self.sharpness * rows.square().sum(dim=2, keepdim=True) + FAR * (inside - 1.0)
        # (-2 x y + x^2 + y^2) / (-2 l^2) as one product, [n, p + 1, d + 2] and [n, d + 2, p + 1]
        left = pad(torch.cat([rows, squares], dim=2), (0, 1), value=1.0)
        right = pad(squares.mT, (0, 0, 1, 0), value=1.0)
        right = torch.cat([-2.0 * self.sharpness * rows.mT, right], dim=1)
        return [torch.exp(left[:, a:b] @ right[:, :, a:]) for a, b in panels]


def first_solved(mixture: Mixture) -> Any:
    """The posterior of the first expert that has one."""
    return next(expert.posterior for expert in mixture.experts if not expert.failed)


def _doubles(features: FactorFeatures) -> list[Tensor]:
    """The factors of n rows in float64, [n, d] each."""
    return [value.double() for value in features.tensors().values()]
