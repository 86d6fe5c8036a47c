"""The fitted model as one module of plain tensor operations: inputs in, a dict of answers out.

Tangent features are made of a batch in one go, by the model's own code, in a form that can be traced.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...data.trees import Inputs, count, leaves
from ...experts.mixture import LatentPrediction, Mixture
from ...experts.posteriors import GramPosterior, SpanPosterior
from ...likelihoods.prediction import ClassPrediction, Prediction
from ...model import UncertaintyModel
from ...state.support import require_support
from ...tangents.base import TangentMap
from ...tangents.factors import FactorMap
from ...tangents.jacobian.accumulators import Collector, DenseAccumulator
from ...tangents.jacobian.layer_gradients import LayerCall, Signals
from ...tangents.jacobian.layer_io import record
from ...tangents.jacobian.strategies import GradientPlan
from ...tangents.network import as_matrix, call
from ...tangents.rows import RowFeatures, RowMap
from ...tangents.sketch import Projecting, SketchMap
from ..errors import refuse_network, refuse_parameters, refuse_tangents
from .experts import FactorExperts, GraphGate, GraphWitness, SpanExperts, first_solved

UNKNOWN = {  # of rows of which nothing is known; noise and scales are an expert's own, whichever it is
    "epistemic": torch.inf, "novelty": 1.0, "expert": -1,
    "residual_mean": 0.0, "witness_mean": 0.0, "witness_precision": 0.0,
}  # fmt: skip
EXPERTS: dict[type, type[nn.Module]] = {
    GramPosterior: FactorExperts,
    SpanPosterior: SpanExperts,
}
"""What becomes of a mixture's experts, by the kind of their posteriors."""


def feature_maker(tangents: TangentMap, example: Inputs) -> Callable[[Inputs], Any]:
    """Makes the features of a mixture, all mixed outputs at once; `example` is looked at once."""
    if isinstance(tangents, FactorMap):
        return FactorMap(tangents.network, tangents.mix, tangents.row_bytes(), max_vmap_rows=sys.maxsize)
    if not isinstance(tangents, (RowMap, SketchMap)):
        refuse_tangents(tangents)
    if (
        isinstance(example, Tensor)
        and example.ndim == 2
        and (by_hand := tangents.chain_features()) is not None
    ):
        rows = copy.copy(by_hand)
        rows.chain = by_hand.chain.untied()
        return lambda inputs: RowFeatures(rows(inputs)[0])
    plan = tangents.gradients.plan(example)
    refuse_parameters(tangents.network, (*plan.vmapped, *plan.looped), plan.reason)
    return RowMaker(tangents, plan)


class RowMaker(nn.Module):
    """Gradient rows, written out or sketched; see `tangents.rows` and `tangents.sketch`."""

    def __init__(self, tangents: RowMap | SketchMap, plan: GradientPlan) -> None:
        super().__init__()
        self.network, self.mix, self.plan = tangents.network, tangents.mix, plan
        self.rows = SketchedRows(tangents) if isinstance(tangents, SketchMap) else WrittenRows(tangents)

    @torch.inference_mode(False)
    def forward(self, inputs: Inputs) -> RowFeatures:
        """As `strategies.layerwise`, all rows and all mixed outputs at once."""
        into, n = copy.copy(self.rows), count(inputs)
        into.found = {}
        with torch.enable_grad():
            outputs, recorder = record(self.network, inputs, self.plan.rowless)
        self.plan.check(recorder.unhandled)
        layers: dict[tuple, list[tuple[LayerCall, Tensor]]] = {}
        for one, probe in zip(recorder.calls, recorder.probes, strict=True):
            if not self.plan.layerwise.isdisjoint((one.weight_name, one.bias_name)):
                key = (one.key, one.input.shape, probe.shape, self.plan.layout(one, probe, n))
                layers.setdefault(key, []).append((one.restricted(self.plan.layerwise), probe))
        if outputs.requires_grad and layers:
            probes = [probe for pairs in layers.values() for _, probe in pairs]
            mix = self.mix.to(outputs)
            signals = iter(self.network.mixed_gradients(outputs, probes, mix, at_once=True))
            for (*_, layout), pairs in layers.items():
                calls = [one for one, _ in pairs]
                whole = Signals.gather(calls, [next(signals) for _ in pairs], layout, n)
                whole.reduced(into)
                whole.thinned(into).hand_on(into)
        return RowFeatures(into(n))


class GraphRows(nn.Module, Collector):
    """A `Collector` that does not write into place; what comes twice is added."""

    def __init__(self, tangents: TangentMap) -> None:
        super().__init__()
        self.parameters_like = next(iter(tangents.network.parameters.values()))
        self.shapes = {name: value.shape for name, value in tangents.network.parameters.items()}
        self.sizes = {name: shape.numel() for name, shape in self.shapes.items()}  # of what is kept
        self.mixed = len(tangents.mix)
        self.found: dict[str, Tensor] = {}

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        table = value.new_zeros(*value.shape[:2], *self.shapes[name])
        self.add(name, table.scatter_add(2, index[:, None, :, None].expand_as(value), value))

    def add(self, name: str, value: Tensor) -> None:
        """Numbers [n, K, ...] of one parameter."""
        value = value.reshape(*value.shape[:2], -1)
        self.found[name] = self.found[name] + value if name in self.found else value

    def parts(self, n: int) -> list[Tensor]:
        """What was taken, [n, K, d] for each parameter of which something is kept."""
        zeros, mixed = self.parameters_like.new_zeros, self.mixed
        kept = [(name, size) for name, size in self.sizes.items() if size]
        return [self.found[name] if name in self.found else zeros(n, mixed, size) for name, size in kept]


class WrittenRows(GraphRows):
    """Gradient rows of the kept columns, [n, K * d]; see `accumulators.DenseAccumulator`."""

    def __init__(self, tangents: RowMap) -> None:
        super().__init__(tangents)
        self.kept: dict[str, tuple[Tensor, Tensor, Tensor]] = {}  # places, their lines and columns in [o, i]
        if len(tangents.kept) == tangents.network.num_parameters:
            return
        for name, slot in DenseAccumulator(tangents.network, 0, 1, tangents.kept).slots.items():
            assert slot.kept is not None
            long = self.shapes[name][1:].numel()
            self.kept[name] = (slot.kept, slot.kept // long, slot.kept % long)
            self.sizes[name] = len(slot.kept)

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """Of a single position only what is kept is multiplied."""
        if not self.kept or left.shape[2] * left.shape[3] > 1:
            super().outer(name, left, right)
            return
        _, lines, columns = self.kept[name]
        wanted = left[:, :, 0, 0].index_select(2, lines) * right[:, :, 0, 0].index_select(2, columns)
        super().add(name, wanted)

    def add(self, name: str, value: Tensor) -> None:
        """Numbers of one parameter, of which some are kept."""
        value = value.reshape(*value.shape[:2], -1)
        super().add(name, value.index_select(2, self.kept[name][0]) if self.kept else value)

    def forward(self, n: int) -> Tensor:
        """The rows of what was taken."""
        return torch.cat(self.parts(n), dim=2).flatten(1)


class SketchedRows(Projecting, GraphRows):
    """Sketches [n, D], the same as those of `sketch.SketchCollector`."""

    def __init__(self, tangents: SketchMap) -> None:
        super().__init__(tangents)
        self.tables, self.shapes = tangents.tables, dict(tangents.tables.cores)
        self.sizes = {name: shape.numel() for name, shape in self.shapes.items()}

    def forward(self, n: int) -> Tensor:
        """The sketches of what was taken."""
        flat = torch.cat([*self.parts(n), self.parameters_like.new_zeros(n, self.mixed, 1)], dim=2)
        return self.tables.rows(flat)


class GraphMixture(nn.Module):
    """One kernel's gate and experts; see `mixture.Mixture`."""

    def __init__(self, mixture: Mixture, example: Inputs, *, plain: bool) -> None:
        super().__init__()
        self.features = feature_maker(mixture.tangents, example)
        self.gate = GraphGate(mixture.gate)
        self.experts = EXPERTS[type(first_solved(mixture))](mixture, plain=plain)
        self.numbers = mixture.numbers

    def forward(self, inputs: Inputs) -> LatentPrediction:
        """What the experts that the gate chooses say."""
        features = self.features(inputs)
        labels = self.gate(features)
        answer, amplitudes = self.experts(features, labels)
        unit, known = answer.unit.clamp_min(0.0), answer.prior > 0  # where it overflows, the row is not valid
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
        require_support(model, "export.Graph")
        refuse_network(model.network)
        self.network = model.network
        self.mixtures = nn.ModuleList(GraphMixture(one, example, plain=plain) for one in model.mixtures)
        self.witness = None if model.witness is None else GraphWitness(model.witness)
        self.likelihood, self.calibrations = model.origin.likelihood, model.calibrations
        _ = model.predict(example).corrected  # what is made once is made now, and not while it is traced
        self.reference_scores = None if model.novelty_threshold is None else model.state.reference_scores

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
        known = {k: torch.where(valid[:, None], getattr(raw, k), v) for k, v in UNKNOWN.items()}
        raw = replace(raw, **known)
        found = self.likelihood.prediction(outputs, raw, self.calibrations, valid, self.reference_scores)
        return answers_of(found, self.reference_scores is not None)


def answers_of(found: Prediction, alarm: bool) -> dict[str, Tensor]:
    """A prediction as a dict of all answers there are, in their order."""
    answers = {"mean": found.mean, "variance": found.variance}
    answers |= {"corrected": found.corrected.mean, "corrected_variance": found.corrected.variance}
    corrected = found.corrected
    if found.df is not None and corrected.df is not None:  # what `Prediction.distribution` is made of
        answers |= {"scale": found.scale, "df": found.df, "excess": found.excess}
        answers |= {"corrected_scale": corrected.scale, "corrected_df": corrected.df}
    names = ["novelty", "expert", "valid", "score", *(["is_novel"] if alarm else [])]
    names += ["probabilities"] if isinstance(found, ClassPrediction) else []
    return answers | {name: getattr(found, name) for name in names}
