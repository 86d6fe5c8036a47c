"""The fitted model as one module of plain tensor operations: inputs in, a dict of answers out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import torch
from torch import Tensor, nn

from ...data.trees import Inputs, leaves
from ...experts.mixture import LatentPrediction, Mixture
from ...experts.posteriors import GramPosterior, RootPosterior, SpanPosterior
from ...likelihoods.class_prediction import ClassPrediction
from ...likelihoods.prediction import Prediction
from ...model import UncertaintyModel
from ...tangents.network import as_matrix, call
from ..errors import refuse_half, refuse_recurrent
from .features import feature_maker
from .gate import StackedGate, StackedWitness
from .row_experts import FactorExperts
from .span_experts import span_experts

OUTPUTS = (
    "mean",
    "variance",
    "corrected",
    "corrected_variance",
    "novelty",
    "expert",
    "valid",
    "score",
    "is_novel",
    "probabilities",
)
"""The names of all answers there may be, in their order."""

UNKNOWN = {"epistemic": torch.inf, "novelty": 1.0, "expert": -1}  # of rows about which nothing is known


EXPERTS: dict[type, Callable[..., nn.Module]] = {
    GramPosterior: FactorExperts,
    RootPosterior: FactorExperts,
    SpanPosterior: span_experts,
}
"""What becomes of a mixture's experts, by the kind of their posteriors."""


class GraphMixture(nn.Module):
    """One kernel's gate and experts; see `mixture.Mixture`."""

    numbers: Tensor  # scale, noise and log kappa [M, 3, B]

    def __init__(self, mixture: Mixture, example: Inputs, *, plain: bool) -> None:
        super().__init__()
        self.features = feature_maker(mixture.tangents, example)
        self.gate = StackedGate(mixture.gate)
        solved = next(expert.posterior for expert in mixture.experts if not expert.failed)
        self.experts = EXPERTS[type(solved)](mixture, plain=plain)
        names = ("scale", "noise")
        columns = [torch.stack([getattr(expert, name) for expert in mixture.experts]) for name in names]
        self.register_buffer("numbers", torch.stack([*columns, mixture.log_kappa], dim=1))  # [M, 3, B]

    def forward(self, inputs: Inputs) -> LatentPrediction:
        """What the experts that the gate chooses say."""
        features = self.features(inputs)
        labels = self.gate(features)
        answer, amplitudes = self.experts(features, labels)
        unit = answer.unit
        unit = torch.where(torch.isfinite(unit), unit.clamp_min(0.0), torch.nan)  # an overflow is no answer
        known = answer.prior > 0
        novelty = torch.where(known, unit / torch.where(known, answer.prior, 1.0), 1.0)
        scale, noise, log_kappa = self.numbers[labels].unbind(dim=1)
        nothing = torch.zeros_like(answer.residual_mean)
        return LatentPrediction(
            epistemic=unit[:, None] * amplitudes * scale,
            noise=noise,
            log_kappa=log_kappa,
            residual_mean=answer.residual_mean,
            novelty=novelty.clamp_max(1.0)[:, None].expand_as(scale),
            expert=labels[:, None],
            witness_mean=nothing,
            witness_precision=nothing,
        )


class Graph(nn.Module):
    """What `model.predict` computes, as plain tensor operations without a loop over rows or experts.

    Rows whose input, output or answer is not finite
    come out with an infinite variance, a novelty of 1, the expert -1 and `valid` False.

    Args:
        model: The fitted model; it is not changed.
        example: A few rows, as the network takes them.
        plain: Whether experts are padded to one size, so that one is an index away; else each stands by
            itself, behind the operation `trustgp::choose` (see `choosing`).
    """

    def __init__(self, model: UncertaintyModel, example: Inputs, *, plain: bool = True) -> None:
        super().__init__()
        refuse_recurrent(model.network)
        refuse_half(model.network)
        self.network = model.network
        self.mixtures = nn.ModuleList(
            [GraphMixture(mixture, example, plain=plain) for mixture in model.mixtures]
        )
        self.witness = None if model.witness is None else StackedWitness(model.witness, plain=plain)
        self.likelihood, self.calibrations = model.origin.likelihood, model.calibrations
        self.threshold = None if model.alarm is None else float(model.alarm.threshold)

    @torch.no_grad()
    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        """The answers for these rows, by name; see `OUTPUTS`."""
        outputs = call(self.network, inputs)
        raw = LatentPrediction.join([mixture(inputs) for mixture in self.mixtures])
        if self.witness is not None:
            second = self.witness(inputs)
            mean = second.mean - as_matrix(outputs).double()
            raw = _with(raw, {"witness_mean": mean, "witness_precision": second.precision})
        valid = _finite(inputs, outputs, raw.epistemic, raw.residual_mean, raw.witness_mean)
        raw = _masked(raw, valid)
        found = self.likelihood.prediction(outputs, raw, self.calibrations)
        found = _with(found, {"valid": valid, "_threshold": self.threshold})
        return answers_of(found, self.threshold is not None)


def answers_of(found: Prediction, alarm: bool) -> dict[str, Tensor]:
    """A prediction as a dict, in the order of `OUTPUTS`."""
    answers = {
        "mean": found.mean,
        "variance": found.variance,
        "corrected": found.corrected.mean,
        "corrected_variance": found.corrected.variance,
        "novelty": found.novelty,
        "expert": found.expert,
        "valid": found.valid,
        "score": found.score,
    }
    if alarm:
        answers["is_novel"] = found.is_novel
    if isinstance(found, ClassPrediction):
        answers["probabilities"] = found.probabilities
    return answers


def _with(whole, changes: dict):
    """`dataclasses.replace`, for any of ours."""
    kept = {field.name: getattr(whole, field.name) for field in fields(whole)}
    return type(whole)(**(kept | changes))


def _finite(*values: Inputs) -> Tensor:
    """Which rows hold no NaN and no infinity in any of these, shape [n]: nothing else times 0 is not 0."""
    tensors = [leaf for value in values for leaf in leaves(value) if leaf.is_floating_point()]
    zeros = [(leaf.reshape(leaf.shape[0], -1) * 0.0).sum(dim=1).double() for leaf in tensors]
    return sum(zeros[1:], zeros[0]) == 0


def _masked(raw: LatentPrediction, valid: Tensor) -> LatentPrediction:
    """As `LatentPrediction.spread`: where a row is not valid nothing is known of it."""
    table = {field.name: getattr(raw, field.name) for field in fields(raw)}
    return LatentPrediction(
        **{k: torch.where(valid[:, None], v, UNKNOWN.get(k, 0.0)) for k, v in table.items()}
    )
