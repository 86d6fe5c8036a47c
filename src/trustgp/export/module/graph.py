"""The fitted model as one module of plain tensor operations: inputs in, a dict of answers out."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ...data.trees import Inputs, leaves
from ...experts.mixture import LatentPrediction, Mixture
from ...experts.posteriors import GramPosterior, RootPosterior, SpanPosterior
from ...likelihoods.prediction import ClassPrediction, Prediction
from ...model import UncertaintyModel
from ...tangents.network import as_matrix, call
from ..errors import refuse_network
from .experts import FactorExperts, GraphGate, GraphWitness, SpanExperts, first_solved
from .features import feature_maker

UNKNOWN = {"epistemic": torch.inf, "novelty": 1.0, "expert": -1}  # of rows of which nothing is known; else 0
EXPERTS: dict[type, type[nn.Module]] = {
    GramPosterior: FactorExperts,
    RootPosterior: FactorExperts,
    SpanPosterior: SpanExperts,
}
"""What becomes of a mixture's experts, by the kind of their posteriors."""


class GraphMixture(nn.Module):
    """One kernel's gate and experts; see `mixture.Mixture`."""

    def __init__(self, mixture: Mixture, example: Inputs, *, plain: bool) -> None:
        super().__init__()
        self.features = feature_maker(mixture.tangents, example)
        self.gate = GraphGate(mixture.gate)
        self.experts = EXPERTS[type(first_solved(mixture))](mixture, plain=plain)
        columns = [torch.stack([getattr(e, name) for e in mixture.experts]) for name in ("scale", "noise")]
        self.numbers = torch.stack([*columns, mixture.log_kappa], dim=1)  # [M, 3, B]

    def forward(self, inputs: Inputs) -> LatentPrediction:
        """What the experts that the gate chooses say."""
        features = self.features(inputs)
        labels = self.gate(features)
        answer, amplitudes = self.experts(features, labels)
        # an overflow is no answer
        unit = torch.where(torch.isfinite(answer.unit), answer.unit.clamp_min(0.0), torch.nan)
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

    Rows whose input, output or answer is not finite come out with an infinite variance, a novelty of 1, the
    expert -1 and `valid` False. The model is not changed; the `example` holds a few rows, as the network
    takes them; for `plain` see `experts.one_of`.
    """

    def __init__(self, model: UncertaintyModel, example: Inputs, *, plain: bool = True) -> None:
        super().__init__()
        refuse_network(model.network)
        self.network = model.network
        self.mixtures = nn.ModuleList(GraphMixture(one, example, plain=plain) for one in model.mixtures)
        self.witness = None if model.witness is None else GraphWitness(model.witness, plain=plain)
        self.likelihood, self.calibrations = model.origin.likelihood, model.calibrations
        self.threshold = None if model.alarm is None else float(model.alarm.threshold)

    @torch.no_grad()
    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        """The answers for these rows, by name; see `answers_of`."""
        outputs = call(self.network, inputs)
        raw = LatentPrediction.cat([mixture(inputs) for mixture in self.mixtures], dim=1)
        if self.witness is not None:
            second = self.witness(inputs)
            mean = second.mean - as_matrix(outputs).double()
            raw = replace(raw, witness_mean=mean, witness_precision=second.precision)
        # rows that hold no NaN and no infinity in any of these: nothing else times 0 is not 0
        values = leaves((inputs, outputs, raw.epistemic, raw.residual_mean, raw.witness_mean))
        real = [leaf for leaf in values if leaf.is_floating_point()]
        zeros = [(leaf.reshape(leaf.shape[0], -1) * 0.0).sum(dim=1).double() for leaf in real]
        valid = sum(zeros[1:], zeros[0]) == 0
        known = {k: torch.where(valid[:, None], v, UNKNOWN.get(k, 0.0)) for k, v in vars(raw).items()}
        found = self.likelihood.prediction(outputs, replace(raw, **known), self.calibrations)
        found = replace(found, valid=valid, _threshold=self.threshold)
        return answers_of(found, self.threshold is not None)


def answers_of(found: Prediction, alarm: bool) -> dict[str, Tensor]:
    """A prediction as a dict of all answers there are, in their order."""
    answers = {"mean": found.mean, "variance": found.variance}
    answers |= {"corrected": found.corrected.mean, "corrected_variance": found.corrected.variance}
    names = ["novelty", "expert", "valid", "score", *(["is_novel"] if alarm else [])]
    names += ["probabilities"] if isinstance(found, ClassPrediction) else []
    return answers | {name: getattr(found, name) for name in names}
