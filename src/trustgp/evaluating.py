"""`trustgp.evaluate`: reads the rows, checks them, predicts, and scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .class_evaluation import ClassEvaluation, score_classes
from .class_prediction import ClassPrediction
from .data import (
    Inputs,
    Rows,
    as_inputs,
    chunks,
    concatenate,
    count,
    leaves,
    read_rows,
    require_finite,
    structure,
    take,
)
from .evaluation import Evaluation, score
from .likelihoods import Classification
from .prediction import Prediction
from .progress import Reporter, reporting
from .scorecard import ALL
from .tangents.network import as_matrix

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
    if not isinstance(model, Prediction) and not callable(getattr(model, "predict", None)):
        raise TypeError(
            f"a {type(model).__name__} has no predict(); pass what trustgp.fit(network, ...) gives, "
            "or a Prediction."
        )
    if isinstance(model, Prediction):
        inputs, targets = None, _targets_of_prediction(data)
        _check_shape(model, *targets.shape, name="data")
    else:
        rows = read_rows(data, name="data")
        inputs, targets = rows.inputs, _real(rows.targets, "data")
    outputs = targets.shape[1]
    foreign, foreign_targets = (None, None) if ood is None else _read_foreign(ood, inputs, outputs)
    labels = _labels(names, outputs)
    with reporting(enabled=progress) as report:
        prediction = model if inputs is None else _predict(model, inputs, outputs, report, "data")
        if foreign is not None and not isinstance(foreign, Prediction):
            foreign = _predict(model, foreign, outputs, report, "ood")
    if isinstance(prediction, ClassPrediction):
        return _score_classes(prediction, targets, foreign, foreign_targets)
    return score(prediction, targets, foreign, foreign_targets, names=labels)


def _score_classes(
    prediction: ClassPrediction, targets: Tensor, foreign: Any, foreign_targets: Tensor | None
) -> ClassEvaluation:
    """After a check of the class numbers [n, 1]."""
    if foreign is not None and not isinstance(foreign, ClassPrediction):
        raise TypeError(
            f"ood is a {type(foreign).__name__} but data holds classes; both must be predicted alike."
        )
    known = None if foreign_targets is None else foreign_targets.flatten()
    for name, values in (("data", targets), ("ood", foreign_targets)):
        if values is not None:
            Classification().check(prediction.cooled.shape[1], values, name=name)
    return score_classes(
        prediction, targets.flatten().long(), foreign, None if known is None else known.long()
    )


def _predict(model: Any, inputs: Inputs, outputs: int, report: Reporter, name: str) -> Prediction:
    """The prediction for all rows, lot by lot; the first lot shows whether the outputs fit."""
    n = count(inputs)
    lots = list(chunks(n, LOT))
    parts = []
    for index in report.track(lots, stage=f"predicting {name}", total=len(lots)):
        part = model.predict(inputs if len(lots) == 1 else take(inputs, index))
        if not isinstance(part, Prediction):
            raise TypeError(
                f"predict() of {type(model).__name__} returned a {type(part).__name__}; "
                "a trustgp.Prediction is needed."
            )
        _check_shape(part, len(index), outputs, name)
        parts.append(part)
    return parts[0] if len(parts) == 1 else Prediction.cat(parts)


def _check_shape(prediction: Prediction, rows: int, outputs: int, name: str) -> None:
    """Raise unless there is one prediction for each target; classes have one label however many there are."""
    if isinstance(prediction, ClassPrediction) and len(prediction) == rows:
        return
    found = tuple(as_matrix(prediction.mean).shape)
    if found != (rows, outputs):
        raise ValueError(
            f"{name}: the prediction is {list(found)} but the targets are {[rows, outputs]} "
            "(rows, outputs); they must agree."
        )


def _targets_of_prediction(data: Any) -> Tensor:
    """The targets [n, C] in `data`, which has to stand in the order of the prediction's rows."""
    if isinstance(data, Rows | DataLoader | Dataset):
        rows = read_rows(data, name="data")
        if not rows.ordered:
            raise ValueError(
                "data is a loader that shuffles, so its rows are not in the order of the prediction; "
                "pass the model itself, or the targets as a tensor."
            )
        return _real(rows.targets, "data")
    pair = isinstance(data, tuple | list) and len(data) == 2
    return _read_targets(data[1] if pair else data, "data")


def _read_targets(values: Any, name: str) -> Tensor:
    """Targets alone as [n, C], checked as those of `fit` are."""
    if not isinstance(values, Tensor | np.ndarray):
        raise TypeError(f"{name} targets are a {type(values).__name__}; pass a tensor or an array.")
    targets = as_inputs(values)
    stand_in = torch.zeros(targets.shape[:1])  # for the inputs, which are not needed
    return _real(read_rows((stand_in if targets.ndim else targets, targets), name=name).targets, name)


def _real(targets: Tensor, name: str) -> Tensor:
    if targets.is_complex() or targets.dtype == torch.bool:
        raise ValueError(f"{name} targets are {targets.dtype}; real numbers are needed.")
    return targets


def _read_foreign(ood: Any, inputs: Inputs | None, outputs: int) -> tuple[Any, Tensor | None]:
    """Foreign rows as (a Prediction or inputs, targets or None), targets of shape [m, C].

    Args:
        ood: As the user gave it.
        inputs: Of the familiar rows; None where predictions were given.
        outputs: C.
    """
    pair = isinstance(ood, tuple | list) and len(ood) == 2
    if isinstance(ood, Prediction):
        source, targets = ood, None
    elif pair and isinstance(ood[0], Prediction):
        source, targets = ood[0], _read_targets(ood[1], "ood")
    elif inputs is None:
        raise TypeError(
            f"ood is a {type(ood).__name__}, but predictions were given and no model; pass a Prediction of "
            "the foreign rows, or (Prediction, targets)."
        )
    else:
        source, targets = _foreign_rows(ood, inputs)
    if isinstance(source, Prediction):
        _check_shape(source, len(source) if targets is None else len(targets), outputs, "ood")
    if targets is not None and targets.shape[1] != outputs:
        raise ValueError(f"ood has {targets.shape[1]} targets a row but data has {outputs}; they must agree.")
    return source, targets


def _foreign_rows(ood: Any, inputs: Inputs) -> tuple[Inputs, Tensor | None]:
    """Inputs, and targets where there are any; the structure of the familiar inputs tells which is which."""
    if isinstance(ood, Rows):
        ood = (ood.inputs, ood.targets)
    if isinstance(ood, DataLoader | Dataset):
        loader = ood if isinstance(ood, DataLoader) else DataLoader(ood, batch_size=LOT)
        batches = [as_inputs(batch) for batch in loader]
        if not batches:
            raise ValueError("ood holds no rows.")
        ood = concatenate(batches)
    found, wanted = as_inputs(ood), structure(inputs)
    if structure(found) == wanted:
        found = (found,)
    if not (isinstance(found, tuple) and len(found) in (1, 2) and structure(found[0]) == wanted):
        raise ValueError(
            f"ood has the structure {structure(found)} but the inputs of data have {wanted}; pass inputs "
            "alike, or (inputs, targets)."
        )
    targets = None
    if len(found) == 2:
        targets = _real(read_rows(found, name="ood").targets, "ood")
    elif count(found[0]) == 0:
        raise ValueError("ood holds no rows.")
    require_finite(found[0], "ood inputs")
    for mine, theirs in zip(leaves(inputs), leaves(found[0]), strict=True):
        if mine.ndim == theirs.ndim == 2 and mine.shape[1] != theirs.shape[1]:
            raise ValueError(
                f"ood inputs have {theirs.shape[1]} columns but those of data have {mine.shape[1]}."
            )
    return found[0], targets


def _labels(names: Sequence[str] | None, outputs: int) -> list[str]:
    labels = [f"output {c}" for c in range(outputs)] if names is None else [str(name) for name in names]
    if len(labels) != outputs or len(set(labels)) != outputs or ALL in labels:
        raise ValueError(
            f"names={labels} for {outputs} outputs; one each is needed, no two alike, none called '{ALL}'."
        )
    return labels
