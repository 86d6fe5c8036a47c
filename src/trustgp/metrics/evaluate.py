"""`trustgp.evaluate`: read rows or pictures, check them, predict, and score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data.batches import Unpack, as_pair, batches_of, equal_lengths, is_stream, split_targets
from ..data.chunking import chunks
from ..data.rows import Rows, finite_rows, read_rows, require_all
from ..data.torch_modes import cpu_default
from ..data.trees import ArrayLike, Inputs, as_inputs, concatenate, count, leaves, structure, take
from ..executors.progress import Reporter, reporting
from ..likelihoods.multilabel import LabelPrediction, MultiLabel
from ..likelihoods.prediction import ClassPrediction, Prediction
from ..tangents.network import as_matrix
from .class_evaluation import ClassEvaluation, LabelEvaluation
from .detection_evaluation import DetectionEvaluation, ScoredScenes
from .evaluation import Evaluation
from .score_report import ALL

CHUNK_ROWS, CHUNK_PICTURES = 4096, 32  # predicted at a time: bars advance, and memory stays bounded

KINDS: dict[type, Any] = {ClassPrediction: ClassEvaluation, LabelPrediction: LabelEvaluation}  # or Evaluation


@cpu_default()
def evaluate(
    model: Any,
    data: Any,
    ood: Any = None,
    *,
    names: Sequence[str] | None = None,
    progress: bool = True,
    unpack: Unpack | None = None,
) -> Any:
    """Compute all scores of a model, or of its predictions, in one call.

    Every row is scored; one without a finite prediction costs an infinite NLL, and is counted in `invalid`.
    `evaluate(...).corrected` scores the corrected mean, too, without predicting again. Where the
    model predicts classes, the targets are class numbers, and the scores those of `ClassEvaluation`; where it
    predicts several labels, the targets are 0 or 1, and the scores those of `LabelEvaluation`. For a
    detector, the rows are pictures with their targets, and the scores those of `DetectionEvaluation`.

    Args:
        model: The result of `trustgp.fit`, or any object whose `predict(inputs)` returns a `Prediction`;
            or such a `Prediction` itself.
        data: Held-out rows that the model has not seen: `(inputs, targets)`, a Dataset or a DataLoader. For a
            `Prediction`: its targets, or (inputs, targets), in the same order. For a detector: pictures and
            targets, as for `trustgp.detection.fit`.
        ood: Foreign (out-of-distribution) rows, to score their separation: inputs, `(inputs, targets)`, a
            Dataset or a DataLoader of either; or a `Prediction`, or `(Prediction, targets)`. For a detector:
            pictures, or pictures and targets; labels beyond its classes are of unknown objects.
        names: Names of the outputs, for the tables; None: "output 0", "output 1", ... For a detector:
            names of its classes.
        progress: Show bars while predicting; in a terminal only.
        unpack: `lambda batch: (inputs, targets)`, where batches of `data` and `ood` have another form.

    Returns:
        An `Evaluation`, `ClassEvaluation`, `LabelEvaluation` or `DetectionEvaluation`: look at it, or at
        its scores one by one.

    Examples:
        >>> report = trustgp.evaluate(model, held_out, ood=10 * inputs, progress=False)
        >>> nll, crps, covered = report.nll, report.crps, report.coverage
    """
    if hasattr(model, "read_scenes"):  # a detector's
        if unpack is not None:
            raise ValueError("unpack= is not for detectors: pictures are passed with their targets.")
        return _evaluate_detector(model, data, ood, names, progress)
    if hasattr(model, "as_rows"):  # each position is a row
        ood = None if ood is None else model.predict(ood, unpack=unpack).rows
        data, model, unpack = model.as_rows(data, "data", unpack), model.row_model, None
    source, targets = _familiar(model, data, unpack)
    outputs = targets.shape[1]
    foreign, ood_targets = (None, None) if ood is None else _foreign(model, ood, source, outputs, unpack)
    _check_targets(model, {"data": targets, "ood": ood_targets})
    labels = _names(names, outputs, "output")
    with reporting(enabled=progress) as report:
        prediction = _predicted(model, source, "data", outputs, report)
        strange = None if foreign is None else _predicted(model, foreign, "ood", outputs, report)
    kind, other = (KINDS.get(type(one), Evaluation) for one in (prediction, strange))
    if strange is not None and kind is not other:
        raise TypeError("of data and ood one is a prediction of classes; both must be predicted alike.")
    return kind.of(prediction, targets, (strange, ood_targets), names=labels)


def _names(names: Sequence[str] | None, number: int, noun: str) -> list[str]:
    labels = [f"{noun} {c}" for c in range(number)] if names is None else [str(name) for name in names]
    if len(labels) != number or len(set(labels)) != number or ALL in labels:
        raise ValueError(f"names={labels}; {number} are needed, no two alike, none called '{ALL}'.")
    return labels


def _evaluate_detector(model: Any, data: Any, ood: Any, names: Any, progress: bool) -> DetectionEvaluation:
    """Evaluation of a model that reads pictures and targets itself, and predicts `Detections`."""
    images, targets = model.read_scenes(data, name="data")
    if not any(len(one.labels) for one in targets):
        raise ValueError("data: there are no targets in any picture, so nothing can be scored.")
    foreign = None if ood is None else model.read_scenes(ood, name="ood", foreign=True)
    with reporting(enabled=progress) as report:
        scenes = _predicted_scenes(model, images, targets, "data", report)
        labels = _names(names, scenes.detections[0].probabilities.shape[1] - 1, "class")
        strange = None if foreign is None else _predicted_scenes(model, foreign[0], foreign[1], "ood", report)
    return DetectionEvaluation.of(scenes, strange, names=labels)


def _predicted_scenes(model: Any, images: Any, targets: Any, name: str, report: Reporter) -> ScoredScenes:
    starts, detections = range(0, len(images), CHUNK_PICTURES), []
    for start in report.track(starts, stage=f"predicting {name}", total=len(starts)):
        detections += [one.cpu() for one in model.predict(images[start : start + CHUNK_PICTURES])]
    if targets is not None:
        targets = [replace(one, boxes=one.boxes.cpu(), labels=one.labels.cpu()) for one in targets]
    return ScoredScenes(detections, targets)


def _predicted(model: Any, source: Any, name: str, outputs: int, report: Reporter) -> Prediction:
    """Prediction for the inputs, made in chunks, of which each is checked for its shape."""
    if isinstance(source, Prediction):
        return source
    lots, parts = list(chunks(count(source), CHUNK_ROWS)), []
    for index in report.track(lots, stage=f"predicting {name}", total=len(lots)):
        part = model.predict(source if len(lots) == 1 else take(source, index))
        if not isinstance(part, Prediction):
            what = f"predict() of {type(model).__name__} returned a {type(part).__name__}"
            raise TypeError(f"{what}; a trustgp.Prediction is needed.")
        _check_shape(part, len(index), outputs, name)
        parts.append(part)
    return parts[0] if len(parts) == 1 else Prediction.cat(parts)


def _check_shape(prediction: Prediction, rows: int, outputs: int, name: str) -> None:
    """Raise ValueError unless each target has a prediction; with classes, a row has one target label."""
    shape = list(as_matrix(prediction.mean).shape)
    if shape != [rows, shape[1] if isinstance(prediction, ClassPrediction) else outputs]:
        what = f"{name}: the prediction is {shape} but the targets are {[rows, outputs]}"
        raise ValueError(f"{what} (rows, outputs); they must agree.")


def _familiar(model: Any, data: Any, unpack: Unpack | None) -> tuple[Any, Tensor]:
    """Inputs of `data`, or the prediction of them if that was given, and their targets."""
    if isinstance(model, Prediction):
        targets = _read_targets(data, "data")
        _check_shape(model, *targets.shape, name="data")
        return model, targets
    if not callable(getattr(model, "predict", None)):
        kind = type(model).__name__
        raise TypeError(f"a {kind} has no predict(); pass what trustgp.fit(...) returns, or a Prediction.")
    rows = read_rows(data, name="data", unpack=unpack, network=getattr(model, "network", None))
    return rows.inputs, rows.targets


def _read_targets(data: Any, name: str) -> Tensor:
    """Targets [n, C] for a prediction, given alone or as (inputs, targets)."""
    values = data[1] if isinstance(data, tuple | list) and len(data) == 2 else data
    if not isinstance(values, ArrayLike):
        raise TypeError(f"{name} targets are a {type(values).__name__}; pass a tensor, array or series.")
    targets = as_inputs(values)
    stand_in = torch.zeros(targets.shape[:1])  # for the inputs, which are not needed
    return read_rows((stand_in if targets.ndim else targets, targets), name=name).targets


def _check_targets(model: Any, given: dict[str, Tensor | None]) -> None:
    """Raise ValueError unless all targets are real numbers, or 0 and 1 where a row has several labels."""
    likelihood = getattr(getattr(model, "origin", None), "likelihood", None)
    outputs = model.shape.outputs if isinstance(likelihood, MultiLabel) else 0
    outputs = as_matrix(model.mean).shape[1] if isinstance(model, LabelPrediction) else outputs
    for name, targets in given.items():
        if targets is not None and outputs:
            MultiLabel().check(outputs, targets, name=name)
        elif targets is not None and (targets.is_complex() or targets.dtype == torch.bool):
            raise ValueError(f"{name} targets are {targets.dtype}; real numbers are needed.")


def _foreign(model: Any, ood: Any, familiar: Any, outputs: int, unpack: Unpack | None) -> tuple[Any, Any]:
    """Foreign inputs, or the prediction of them if that was given, and their targets [m, C] or None."""
    source, targets = ood if isinstance(ood, tuple | list) and len(ood) == 2 else (ood, None)
    if isinstance(source, Prediction):
        targets = None if targets is None else _read_targets(targets, "ood")
        _check_shape(source, len(source) if targets is None else len(targets), outputs, "ood")
    elif isinstance(familiar, Prediction):
        what = f"ood is a {type(ood).__name__}, but predictions were given and no model"
        raise TypeError(f"{what}; pass a Prediction of the foreign rows, or (Prediction, targets).")
    else:
        source, targets = _foreign_rows(ood, familiar, getattr(model, "network", None), unpack)
    if targets is not None and targets.shape[1] != outputs:
        raise ValueError(f"ood has {targets.shape[1]} targets a row but data has {outputs}; they must agree.")
    return source, targets


def _foreign_rows(source: Any, inputs: Inputs, network: Any, unpack: Unpack | None) -> tuple[Inputs, Any]:
    """Foreign inputs and targets (None: none given), separated by the structure of the familiar inputs."""
    if is_stream(source):
        loader, _ = batches_of(source, CHUNK_ROWS)
        pairs = (batch if unpack is None else as_pair(batch, "a batch of ood", unpack) for batch in loader)
        batches = [as_inputs(split_targets(batch) or batch, network) for batch in pairs]
        given: Any = concatenate([*equal_lengths(batches)] or [take(inputs, torch.arange(0))])
    else:
        source = (source.inputs, source.targets) if isinstance(source, Rows) else source
        given = as_inputs(split_targets(source) or source, network)
    wanted = structure(inputs)
    if structure(given) == wanted:
        given = (given,)
    if structure(given) not in (f"({wanted})", f"({wanted},tensor)"):
        what = f"ood has the structure {structure(given)} but the inputs of data have {wanted}"
        raise ValueError(f"{what}; pass inputs of that structure, or (inputs, targets).")
    targets = read_rows(given, name="ood").targets if len(given) == 2 else None
    if count(given[0]) == 0:
        raise ValueError("ood holds no rows.")
    require_all(finite_rows(given[0]), "ood inputs")
    for own, other in zip(leaves(inputs), leaves(given[0]), strict=True):
        if own.ndim == other.ndim == 2 and own.shape[1] != other.shape[1]:
            raise ValueError(f"ood inputs have {other.shape[1]} columns but those of data {own.shape[1]}.")
    return given[0], targets
