"""The fitted model as one module of plain tensor operations, from inputs to a dict of outputs.

Tangent features of a batch are computed at once, by the model's own code, in a form that can be traced.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...data.trees import Inputs, count
from ...experts.mixture import LatentPrediction, Mixture
from ...experts.posteriors import GramPosterior, SpanPosterior
from ...likelihoods.prediction import Prediction
from ...model import UncertaintyModel
from ...state.latent import predict_latent
from ...state.model_state import require_support
from ...state.recording import zeros_of
from ...tangents.base import TangentMap
from ...tangents.factors import FactorMap
from ...tangents.jacobian.accumulators import DenseAccumulator
from ...tangents.jacobian.layer_gradients import LayerCall, Signals
from ...tangents.jacobian.layer_io import record
from ...tangents.jacobian.strategies import GradientPlan
from ...tangents.network import call
from ...tangents.outputs import mean_of
from ...tangents.rows import RowFeatures, RowMap
from ...tangents.sketch import SketchMap
from ..errors import ExportError, refuse_network, refuse_parameters
from .experts import FactorExperts, GraphGate, GraphWitness, SpanExperts, first_solved

# fields of a latent prediction, set here: inductor cannot slice the expanded zeros of `Mixture.latent`
OTHERS: Sequence[str] = ("witness_mean", "witness_precision", "log_leverage", "log_noise", "log_stated")
EXPERTS: dict[type, type[nn.Module]] = {GramPosterior: FactorExperts, SpanPosterior: SpanExperts}
"""The module of a mixture's experts, by the class of their posteriors."""


def feature_maker(tangents: TangentMap, example: Inputs) -> Callable[[Inputs], Any]:
    """A function of inputs that returns the features of a mixture, all mixed outputs at once."""
    if isinstance(tangents, FactorMap):
        return FactorMap(tangents.network, tangents.mix, tangents.row_bytes(), at_once=sys.maxsize)
    if not isinstance(tangents, (RowMap, SketchMap)):
        kind = type(tangents).__name__
        raise ExportError(f"{kind} features cannot be exported; LayerFactors, JacobianRows and Sketch can.")
    chain = tangents.chain_features() if isinstance(example, Tensor) and example.ndim == 2 else None
    if chain is not None:

        def features(inputs: Tensor) -> RowFeatures:
            rows, outputs = chain(inputs)
            return tangents.features(rows, tangents.split_outputs(outputs)[1])

        return features
    plan = tangents.gradients.plan(example)
    refuse_parameters(tangents.network, (*plan.vmapped, *plan.looped), plan.reason)
    return RowMaker(tangents, plan)


class RowMaker(nn.Module):
    """Gradient rows, dense or sketched; see `tangents.rows` and `tangents.sketch`."""

    def __init__(self, tangents: RowMap | SketchMap, plan: GradientPlan) -> None:
        super().__init__()
        self.tangents, self.network, self.plan = tangents, tangents.network, plan
        # and tensors with sizes that the number of traced rows must not divide
        if isinstance(tangents, SketchMap):
            self.collector, self.sized = tangents.collector, tangents.tables
        else:
            rows: Any = tangents.collector(0, kind=DenseRows)
            self.collector, self.sized = rows.empty, rows.slots

    @torch.inference_mode(False)
    def forward(self, inputs: Inputs) -> RowFeatures:
        """Features as in `strategies.layerwise`, for all rows and all mixed outputs at once."""
        n = count(inputs)
        into: Any = self.collector(n)
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
            mix = self.tangents.gradients.weights(outputs)
            signals = iter(self.network.mixed_gradients(outputs, probes, mix, at_once=True))
            for (*_, layout), pairs in layers.items():
                calls = [layer for layer, _ in pairs]
                whole = Signals.gather(calls, [next(signals) for _ in pairs], layout, n)
                whole.reduced(into)
                whole.thinned(into).hand_on(into)
        return self.tangents.features(into.rows(), recorder.hidden)


class DenseRows(DenseAccumulator):
    """Gradient rows of the kept columns, [n, K * d]; it does not write in place."""

    gradients: dict[str, Tensor]

    def empty(self, n: int) -> DenseRows:
        """An empty accumulator of the same columns for n rows."""
        other = copy.copy(self)
        other.values, other.gradients = self.values.new_zeros(n, *self.values.shape[1:]), {}
        return other

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """Add outer products; at a single position only the kept entries are multiplied."""
        kept = self.slots[name][1]
        if kept is None or left.shape[2] * left.shape[3] > 1:
            super().outer(name, left, right)
            return
        rows, columns = kept // right.shape[4], kept % right.shape[4]  # of [o, i]
        self.put(name, left[:, :, 0, 0, rows] * right[:, :, 0, 0, columns])

    def put(self, name: str, value: Tensor) -> None:
        self.gradients[name] = self.gradients[name] + value if name in self.gradients else value

    def rows(self) -> Tensor:
        wide = {name: at for name, (at, _) in self.slots.items() if at.stop > at.start}
        parts = [self.gradients.get(name, self.values[:, :, at]) for name, at in wide.items()]  # or zeros
        return torch.cat(parts, dim=2).flatten(1)


class GraphMixture(nn.Module):
    """One kernel's gate and experts; see `mixture.Mixture`."""

    def __init__(self, mixture: Mixture, example: Inputs, *, plain: bool) -> None:
        super().__init__()
        self.mixture, self.features = mixture, feature_maker(mixture.tangents, example)
        self.gate = GraphGate(mixture.gate)
        self.experts = EXPERTS[type(first_solved(mixture))](mixture, plain=plain)

    def raw(self, inputs: Inputs, features: Any = None) -> LatentPrediction:
        """Predictions of the experts that the gate selects; features are computed unless they are given."""
        features, mixture = self.features(inputs) if features is None else features, self.mixture
        labels = self.gate(features)
        moments, amplitude = self.experts(features, labels)
        whole, hidden = mixture.whole, mixture.hidden
        own: dict[str, Tensor] = dict.fromkeys(OTHERS, torch.zeros_like(moments.residual_mean))
        own |= {} if whole is None else whole.latent(features.by_output, covariance=False)
        own |= {} if hidden is None else {"nearest": hidden.log_distance(features.hidden)}
        return mixture.latent(labels, moments, amplitude, own)


class Graph(nn.Module):
    """`model.predict` as plain tensor operations without a loop over rows or experts.

    Rows whose input, output or prediction is not finite get an infinite variance, a novelty of 1, the expert
    -1 and `valid` False. The model is not changed; the `example` holds a few rows, as the network takes them;
    for `plain` see `experts.Stacked`.
    """

    def __init__(self, model: UncertaintyModel, example: Inputs, *, plain: bool = True) -> None:
        super().__init__()
        require_support(model, "export.Graph")
        refuse_network(model.network)
        self.network, self.device = model.network, model.device
        self.mixtures = nn.ModuleList(GraphMixture(m, example, plain=plain) for m in model.mixtures)
        self.witness = None if model.witness is None else GraphWitness.of(model.witness, example)
        self.sized = None if self.witness is None else self.witness.order  # as many as rows of a cell
        self.likelihood, self.calibrations = model.origin.likelihood, model.state.device_calibrations
        _ = answers_of(model.predict(example), threshold=False)  # fills the caches before the trace
        self.reference_scores = None if model.novelty_threshold is None else model.state.reference_scores

    @torch.no_grad()
    def forward(self, inputs: Inputs) -> dict[str, Tensor]:
        """The outputs for these rows, by name; see `answers_of`."""
        outputs = call(self.network, inputs)
        latent, valid = predict_latent(self, inputs, outputs).masked(zeros_of((inputs, outputs)))
        prediction = self.likelihood.prediction(
            mean_of(outputs), latent, self.calibrations, valid, self.reference_scores
        )
        return answers_of(prediction, self.reference_scores is not None)


def answers_of(p: Prediction, threshold: bool) -> dict[str, Tensor]:
    """All fields of a prediction by name, in the order of a file's outputs."""
    corrected = p.corrected
    answers = {"mean": p.mean, "variance": p.variance}
    answers |= {"corrected": corrected.mean, "corrected_variance": corrected.variance}
    if p.df is not None and corrected.df is not None:  # the parameters of `Prediction.distribution`
        answers |= {"scale": p.scale, "df": p.df, "excess": p.excess}
        answers |= {"corrected_scale": corrected.scale, "corrected_df": corrected.df}
    names = ["novelty", "expert", "valid", "score", *(["is_novel"] if threshold else []), *p.EXPORTED]
    return answers | {name: getattr(p, name) for name in names}
