r"""The parts of a model that an export needs, and the comparison of its exported form with `predict`.

An exported network sums in another order, so the kernel's features :math:`\phi` are rounded differently. A
relative change :math:`\epsilon` of them changes the novelty :math:`\nu = |\phi_\perp|^2 / |\phi|^2` by
:math:`2 \epsilon \sqrt\nu`, which exceeds a relative :math:`\epsilon` where :math:`\nu` is small. So
variances may differ by a relative 1e-4, and in addition by that change.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..data.batches import inputs_like
from ..data.fingerprint import network_fingerprint
from ..data.trees import Inputs, leaves, map_tensors, to_device
from ..likelihoods.prediction import Prediction
from ..math.evidence import distances
from ..model import DenseModel, UncertaintyModel
from ..state.model_state import changed_behaviour
from ..tangents.called import CalledPredictor
from .errors import ExportError
from .metadata import PREFIX, ColumnTexts, Date, describe, rows_like
from .module.dense import DenseGraph
from .module.graph import Graph, answers_of

RELATIVE = 1e-4
ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-5}  # of features, by the network's precision
TIE = 1e-4  # relative difference of two centroids' squared distances, below which either expert may predict
COMPARED_ROWS = 17  # with a NaN in the middle one
Run = Callable[[Inputs], Mapping[str, Any]]
EXAMPLE_ROWS = 32  # of the training rows, if no example is given


def _compared_rows(leaf: Tensor) -> Tensor:
    """Rows of an example for the comparison: some of them are scaled, and one holds a NaN."""
    order = torch.arange(COMPARED_ROWS)
    rows = leaf[order % leaf.shape[0]].clone()
    if rows.is_floating_point():
        factor = torch.tensor([1.0, 0.5, 1.5, 1.0, 4.0, -1.0], dtype=rows.dtype, device=rows.device)
        rows = rows * factor[order % len(factor)].reshape(-1, *[1] * (rows.ndim - 1))
        rows[len(order) // 2] = torch.nan
    return rows


def _excess(
    model: UncertaintyModel, inputs: Inputs, expected: Prediction, outputs: Mapping[str, Tensor]
) -> dict[str, float]:
    """Largest ratio of a difference to the allowed difference, for each output."""
    wanted = answers_of(expected, model.novelty_threshold is not None)
    if wanted.keys() != outputs.keys():
        return dict.fromkeys(wanted.keys() ^ outputs.keys(), torch.inf)
    allowed = tolerances(expected, wanted)
    other = (wanted["expert"].cpu() != outputs["expert"]).reshape(len(expected), -1).any(dim=1)
    counts = ~(other & _tied(model, inputs)) if bool(other.any()) else ~other
    worst = {}
    for name, value in wanted.items():
        value, second = value.cpu().double(), outputs[name].double()
        if value.shape != second.shape:
            worst[name] = torch.inf
            continue
        same = (value == second) | (value.isnan() & second.isnan())
        overflow = ~expected.valid.cpu().reshape(-1, *[1] * (value.ndim - 1)) & ~value.isfinite()
        same = same | (overflow & ~second.isfinite())  # to NaN or to an infinity
        share = torch.where(same, 0.0, (value - second).abs() / allowed[name].cpu().double())
        worst[name] = max(share.nan_to_num(torch.inf, torch.inf)[counts].flatten().tolist(), default=0.0)
    return worst


def tolerances(expected: Prediction, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Allowed difference of each output, in its shape."""
    epsilon = ROUNDING[expected.mean.dtype]
    novelty = expected.novelty.double()
    root = novelty.sqrt().clamp_min(epsilon)
    broad = root.reshape(-1, *[1] * (expected.mean.ndim - 1))
    tiny = torch.finfo(expected.mean.dtype).tiny

    def spread(p: Prediction) -> Tensor:
        return RELATIVE * p.variance.double() + 2 * epsilon * p.epistemic.double() / broad + tiny

    def centre(p: Prediction) -> Tensor:
        return RELATIVE * (p.mean.double().abs() + p.variance.double().sqrt()) + tiny

    table = {
        "mean": centre(expected),
        "corrected": centre(expected.corrected),
        "variance": spread(expected),
        "corrected_variance": spread(expected.corrected),
        "novelty": RELATIVE * novelty + 2 * epsilon * root,
        "score": RELATIVE * expected.score.double() + 2 * epsilon * expected.score.double() / root + tiny,
    }
    if "scale" in wanted:
        off = 2.0 * expected.excess.double().sqrt() * centre(expected.corrected)
        table["excess"] = off + spread(expected)
        for name, p in (("scale", expected), ("corrected_scale", expected.corrected)):
            table[name] = spread(p) / p.scale.double().clamp_min(tiny)
    if "probabilities" in wanted:
        table["probabilities"] = torch.full_like(wanted["probabilities"], RELATIVE)
    if "labels" in wanted:  # free where a logit is 0
        at = expected.mean.double().abs() <= table["mean"]
        table["labels"] = torch.where(at, 2.0, 0.0).reshape(wanted["labels"].shape)
    if "is_novel" in wanted:  # free where the score is at the threshold
        at = (expected.score.double() - (expected._threshold or 0.0)).abs() <= table["score"]
        table["is_novel"] = torch.where(at, 2.0, 0.0)
    exact = torch.zeros((), dtype=torch.float64)
    return {name: table.get(name, exact).expand(value.shape) for name, value in wanted.items()}


def _tied(model: UncertaintyModel, inputs: Inputs) -> Tensor:
    """Which rows are equally near to two experts, bool [n]."""
    tied = torch.zeros(leaves(inputs)[0].shape[0], dtype=torch.bool)
    for mixture in model.mixtures:
        with torch.no_grad():
            points = mixture.gate.embed(mixture.tangents(inputs))
        nearest = distances(points, mixture.gate.centroids).square().sort(dim=1).values
        if nearest.shape[1] > 1:
            tied |= (nearest[:, 1] - nearest[:, 0] <= TIE * nearest[:, 1]).cpu()
    return tied


@dataclass(frozen=True)
class ExportSource:
    """An `UncertaintyModel`; other models have a method `export_source`, whose result has these methods."""

    BATCHES: ClassVar[tuple[int, ...]] = (1, 3, COMPARED_ROWS)  # rows that are compared at a time
    model: UncertaintyModel

    def inputs(self, example: Any) -> Inputs:
        """Validated example; if it is None, training rows of the model."""
        if example is not None:
            return rows_like(example, self.model.origin.structure, self.model.network)
        if self.model.memory is None:
            raise ValueError("this model holds no rows; pass example_inputs=, as the network takes them.")
        rows = self.model.memory.rows
        return rows.take(torch.arange(min(EXAMPLE_ROWS, len(rows))))

    def graph(self, inputs: Inputs, *, plain: bool) -> nn.Module:
        """A module that computes `predict` as a dict of tensors."""
        return Graph(self.model, inputs, plain=plain)

    def facts(self, inputs: Inputs, columns: ColumnTexts, date: Date) -> dict[str, str]:
        """The file's metadata."""
        return describe(self.model, inputs, columns, date)

    def differences(self, run: Run, example: Inputs) -> dict[str, float]:
        """Ratios of difference to allowed difference, the largest of each output, where they exceed 1. The
        form `run` maps inputs to a dict of arrays or tensors; `example` holds a few rows."""
        rows, worst = map_tensors(_compared_rows, example), {}
        for batch in self.BATCHES:
            part = map_tensors(lambda leaf, batch=batch: leaf[-batch:], rows)
            outputs = {name: torch.as_tensor(value).cpu() for name, value in run(part).items()}
            for name, excess in self._excess(part, outputs).items():
                worst[name] = max(excess, worst.get(name, 0.0))
        return {name: value for name, value in worst.items() if not value <= 1.0}

    def _excess(self, inputs: Inputs, outputs: Mapping[str, Tensor]) -> dict[str, float]:
        return _excess(self.model, inputs, self.model.predict(inputs), outputs)

    def check(self, run: Run, inputs: Inputs, *, what: str) -> None:
        """Raise ExportError if `run`, named `what`, differs from `predict`, or if the network has changed."""
        if change := changed_behaviour(self.model.state):
            other = f"the model's network is no longer the one it was fitted to: {change}. No file was"
            raise ExportError(f"{other} written; undo the change of model.network, or fit again.")
        if worst := self.differences(run, inputs):
            name = max(worst, key=lambda key: worst[key])
            names = ", ".join(sorted(worst.keys() - {name})) or "nothing"
            size = f"by {worst[name] * RELATIVE:.1e}, where {RELATIVE:.0e} is allowed; no file was written"
            raise ExportError(f"'{name}' of the {what} differs from predict {size}. Also different: {names}.")


@dataclass(frozen=True)
class DenseSource(ExportSource):
    """A `DenseModel`: inputs are those of its network, rows are their positions."""

    BATCHES = (1, 9)  # the last holds a row with a NaN
    model: DenseModel

    def inputs(self, example: Any) -> Inputs:
        """The validated example."""
        if example is None:
            raise ValueError("pass example_inputs=, a few inputs as the network takes them.")
        dense = self.model.dense
        return inputs_like(example, dense.network, dense.structure, dense.kinds)

    def graph(self, inputs: Inputs, *, plain: bool) -> nn.Module:
        """The network, the rows of its positions, and their error bars."""
        return DenseGraph(self.model, inputs, plain=plain)

    def facts(self, inputs: Inputs, columns: ColumnTexts, date: Date) -> dict[str, str]:
        """The file's metadata, with the fingerprint of the user's network."""
        own = {f"{PREFIX}network": network_fingerprint(self.model.full_network)}
        return describe(self.model, inputs, columns, date) | own

    def _excess(self, inputs: Inputs, outputs: Mapping[str, Tensor]) -> dict[str, float]:
        expected, layout, answers = self.model.predict(inputs), self.model.dense.layout, {}
        for name, value in outputs.items():
            whole = value.ndim > expected.index.ndim or (value.ndim and layout.tail is not None)
            columns = layout.columns(value) if whole and value.ndim > 1 else value
            answers[name] = columns.flatten(0, expected.index.ndim - 1)
        if layout.tail is None:
            positions = self.model.dense.positions
            inputs = positions.rows(*positions(to_device(inputs, self.model.device)))
        return _excess(self.model.row_model, inputs, expected.rows, answers)


def export_source(model: Any) -> Any:
    """Export source of any fitted model."""
    if isinstance(model, DenseModel):
        return DenseSource(model)
    own = getattr(model, "export_source", None)
    if own is None and not isinstance(model, UncertaintyModel):
        raise TypeError(f"model is a {type(model).__name__}; pass a model of trustgp.fit or trustgp.load.")
    if isinstance(getattr(model, "network", None), CalledPredictor):
        raise ExportError(f"{model.network.call!r} can only be called, and cannot be exported; use predict.")
    return ExportSource(model) if own is None else own()
