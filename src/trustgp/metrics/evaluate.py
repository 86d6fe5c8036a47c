"""`trustgp.evaluate`: reads the rows, checks them, predicts, and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..data.chunking import chunks
from ..data.rows import Rows, read_rows, require_finite
from ..data.trees import Inputs, as_inputs, concatenate, count, leaves, structure, take
from ..executors.progress import Reporter, reporting
from ..likelihoods.class_prediction import ClassPrediction
from ..likelihoods.prediction import Prediction
from ..tangents.network import as_matrix
from .class_evaluation import ClassEvaluation
from .evaluation import Evaluation
from .score_report import ALL

REPORTS: dict[type[Prediction], Any] = {Prediction: Evaluation, ClassPrediction: ClassEvaluation}
"""The `ScoreReport` of each kind of prediction."""

LOT = 4096  # rows predicted at a time: the bar moves, and memory stays bounded


def evaluate(
    model: Any,
    data: Any,
    ood: Any = None,
    *,
    names: Sequence[str] | None = None,
    progress: bool = True,
) -> Evaluation | ClassEvaluation:
    """How good are the error bars? Every score of a model, or of predictions it made, in one call.

    Every row is scored; one without a finite prediction costs an infinite likelihood, and is counted in
    `invalid`. The corrected mean is scored too, without predicting anew: `evaluate(...).corrected`. Where the
    model predicts classes, the targets are class numbers, and the scores those of `ClassEvaluation`.

    Args:
        model: What `trustgp.fit` gave, or anything else whose `predict(inputs)` returns a `Prediction`;
            or such a `Prediction` itself.
        data: Rows the model has not seen: `(inputs, targets)`, a Dataset or a DataLoader. For a
            `Prediction`: its targets, or the rows it was made for, in the same order.
        ood: Foreign rows, to see whether they are told apart: inputs, `(inputs, targets)`, a Dataset or a
            DataLoader of either; or a `Prediction`, or `(Prediction, targets)`.
        names: Of the outputs, for the tables; None: "output 0", "output 1", ...
        progress: Show bars while predicting; in a terminal only.
    """
    rows = _familiar(model, data)
    outputs = rows.targets.shape[1]
    foreign = None if ood is None else _foreign(ood, rows.inputs, outputs)
    labels = _labels(names, outputs)
    with reporting(enabled=progress) as report:
        prediction = rows.predicted(model, outputs, report)
        strange = None if foreign is None else foreign.predicted(model, outputs, report)
    kind = _report_of(prediction)
    if strange is not None and _report_of(strange) is not kind:
        raise TypeError(
            f"ood is a {type(strange).__name__} but data a {type(prediction).__name__}; both must be "
            "predicted alike."
        )
    return kind.of(prediction, rows.targets, strange, foreign and foreign.targets, names=labels)


@dataclass(frozen=True)
class _Side:
    """Rows to be scored, familiar or foreign: inputs that are still to be predicted, or their prediction.

    Args:
        name: What to call them in an error.
        inputs: Of n rows; None: they are predicted.
        prediction: None: they are not.
        targets: Real numbers, shape [n, C]; None: not known.
    """

    name: str
    inputs: Inputs | None
    prediction: Prediction | None
    targets: Any

    def __post_init__(self) -> None:
        if self.targets is not None and (self.targets.is_complex() or self.targets.dtype == torch.bool):
            raise ValueError(f"{self.name} targets are {self.targets.dtype}; real numbers are needed.")

    def predicted(self, model: Any, outputs: int, report: Reporter) -> Prediction:
        """The prediction for all rows, lot by lot; the first lot shows whether the outputs fit."""
        if self.prediction is not None:
            return self.prediction
        lots = list(chunks(count(self.inputs), LOT))
        found = []
        for index in report.track(lots, stage=f"predicting {self.name}", total=len(lots)):
            part = model.predict(self.inputs if len(lots) == 1 else take(self.inputs, index))
            if not isinstance(part, Prediction):
                raise TypeError(
                    f"predict() of {type(model).__name__} returned a {type(part).__name__}; "
                    "a trustgp.Prediction is needed."
                )
            _check_shape(part, len(index), outputs, self.name)
            found.append(part)
        return found[0] if len(found) == 1 else Prediction.cat(found)


def _report_of(prediction: Prediction) -> Any:
    return next(REPORTS[kind] for kind in type(prediction).__mro__ if kind in REPORTS)


def _check_shape(prediction: Prediction, rows: int, outputs: int, name: str) -> None:
    """Raise unless there is one prediction for each target."""
    if not _report_of(prediction).fits(prediction, rows, outputs):
        found = list(as_matrix(prediction.mean).shape)
        raise ValueError(
            f"{name}: the prediction is {found} but the targets are {[rows, outputs]} "
            "(rows, outputs); they must agree."
        )


def _familiar(model: Any, data: Any) -> _Side:
    """The rows of `data`, and their targets."""
    if isinstance(model, Prediction):
        found = _Side("data", None, model, _read_targets(data, "data"))
        _check_shape(model, *found.targets.shape, name="data")
        return found
    if not callable(getattr(model, "predict", None)):
        raise TypeError(
            f"a {type(model).__name__} has no predict(); pass what trustgp.fit(network, ...) gives, "
            "or a Prediction."
        )
    rows = read_rows(data, name="data")
    return _Side("data", rows.inputs, None, rows.targets)


def _read_targets(data: Any, name: str) -> Tensor:
    """Targets [n, C] for a prediction, alone or with the rows it was made for, in the order of its rows."""
    if isinstance(data, Rows | DataLoader | Dataset):
        rows = read_rows(data, name=name)
        if not rows.ordered:
            raise ValueError(
                f"{name} is a loader that shuffles, so its rows are not in the order of the prediction; "
                "pass the model itself, or the targets as a tensor."
            )
        return rows.targets
    values = data[1] if _is_pair(data) else data
    if not isinstance(values, Tensor | np.ndarray):
        raise TypeError(f"{name} targets are a {type(values).__name__}; pass a tensor or an array.")
    targets = as_inputs(values)
    stand_in = torch.zeros(targets.shape[:1])  # for the inputs, which are not needed
    return read_rows((stand_in if targets.ndim else targets, targets), name=name).targets


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _foreign(ood: Any, inputs: Inputs | None, outputs: int) -> _Side:
    """Foreign rows, with targets [m, C] or without.

    Args:
        ood: As the user gave it.
        inputs: Of the familiar rows; None where predictions were given.
        outputs: C.
    """
    source, targets = ood if _is_pair(ood) else (ood, None)
    if isinstance(source, Prediction):
        targets = None if targets is None else _read_targets(targets, "ood")
        _check_shape(source, len(source) if targets is None else len(targets), outputs, "ood")
        found = _Side("ood", None, source, targets)
    elif inputs is None:
        raise TypeError(
            f"ood is a {type(ood).__name__}, but predictions were given and no model; pass a Prediction of "
            "the foreign rows, or (Prediction, targets)."
        )
    else:
        found = _foreign_rows(ood, inputs)
    if found.targets is not None and found.targets.shape[1] != outputs:
        raise ValueError(
            f"ood has {found.targets.shape[1]} targets a row but data has {outputs}; they must agree."
        )
    return found


def _foreign_rows(ood: Any, inputs: Inputs) -> _Side:
    """Inputs, and targets where there are any; the structure of the familiar inputs tells which is which."""
    found, wanted = _read_tensors(ood), structure(inputs)
    if structure(found) == wanted:
        found = (found,)
    if structure(found) not in (f"({wanted})", f"({wanted},tensor)"):
        raise ValueError(
            f"ood has the structure {structure(found)} but the inputs of data have {wanted}; pass inputs "
            "alike, or (inputs, targets)."
        )
    targets = read_rows(found, name="ood").targets if len(found) == 2 else None
    if count(found[0]) == 0:
        raise ValueError("ood holds no rows.")
    require_finite(found[0], "ood inputs")
    for mine, theirs in zip(leaves(inputs), leaves(found[0]), strict=True):
        if mine.ndim == theirs.ndim == 2 and mine.shape[1] != theirs.shape[1]:
            raise ValueError(
                f"ood inputs have {theirs.shape[1]} columns but those of data have {mine.shape[1]}."
            )
    return _Side("ood", found[0], None, targets)


def _read_tensors(source: Any) -> Inputs:
    """All that a source of rows gives, targets or none."""
    if isinstance(source, Rows):
        return source.inputs, source.targets
    if not isinstance(source, DataLoader | Dataset):
        return as_inputs(source)
    loader = source if isinstance(source, DataLoader) else DataLoader(source, batch_size=LOT)
    batches = [as_inputs(batch) for batch in loader]
    if not batches:
        raise ValueError("ood holds no rows.")
    return concatenate(batches)


def _labels(names: Sequence[str] | None, outputs: int) -> list[str]:
    labels = [f"output {c}" for c in range(outputs)] if names is None else [str(name) for name in names]
    if len(labels) != outputs or len(set(labels)) != outputs or ALL in labels:
        raise ValueError(
            f"names={labels} for {outputs} outputs; one each is needed, no two alike, none called '{ALL}'."
        )
    return labels
