"""`trustgp.evaluate`: reads the rows, or pictures, checks them, predicts, and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, overload

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..data.chunking import chunks
from ..data.rows import Rows, Unpack, as_pair, batches_of, is_stream, read_rows, require_finite
from ..data.trees import ArrayLike, Inputs, as_inputs, concatenate, count, leaves, structure, take
from ..executors.progress import Reporter, reporting
from ..likelihoods.prediction import ClassPrediction, Prediction
from ..tangents.network import as_matrix
from .detection_evaluation import DetectionEvaluation, ScoredScenes
from .evaluation import ClassEvaluation, Evaluation
from .score_report import ALL

LOT = 4096  # rows predicted at a time: the bar moves, and memory stays bounded
PICTURES = 32  # the same of pictures


class ReadsScenes(Protocol):
    """A detector's model: it reads pictures and things itself."""

    def read_scenes(self, given: Any, *, name: str, foreign: bool = False) -> Any:
        """Pictures and things, None where foreign pictures come alone."""


@overload
def evaluate(  # pyright: ignore[reportOverlappingOverload]
    model: ReadsScenes,
    data: Any,
    ood: Any = None,
    *,
    names: Sequence[str] | None = None,
    progress: bool = True,
) -> DetectionEvaluation:
    """Of a detector."""


@overload
def evaluate(
    model: Any,
    data: Any,
    ood: Any = None,
    *,
    names: Sequence[str] | None = None,
    progress: bool = True,
    unpack: Unpack | None = None,
) -> Evaluation | ClassEvaluation:
    """Of any other model."""


def evaluate(
    model: Any,
    data: Any,
    ood: Any = None,
    *,
    names: Sequence[str] | None = None,
    progress: bool = True,
    unpack: Unpack | None = None,
) -> Evaluation | ClassEvaluation | DetectionEvaluation:
    """How good are the error bars? Every score of a model, or of predictions it made, in one call.

    Every row is scored; one without a finite prediction costs an infinite likelihood, and is counted in
    `invalid`. The corrected mean is scored too, without predicting anew: `evaluate(...).corrected`. Where the
    model predicts classes, the targets are class numbers, and the scores those of `ClassEvaluation`. Where it
    is a detector's, the rows are pictures with the things in them, and the scores those of
    `DetectionEvaluation`.

    Args:
        model: What `trustgp.fit` gave, or anything else whose `predict(inputs)` returns a `Prediction`;
            or such a `Prediction` itself.
        data: Rows the model has not seen: `(inputs, targets)`, a Dataset or a DataLoader. For a
            `Prediction`: its targets, or the rows it was made for, in the same order. For a detector:
            pictures and things, as `fit` takes them.
        ood: Foreign rows, to see whether they are told apart: inputs, `(inputs, targets)`, a Dataset or a
            DataLoader of either; or a `Prediction`, or `(Prediction, targets)`. For a detector: pictures, or
            pictures and things; a thing whose label lies beyond its classes is an unknown one.
        names: Of the outputs, for the tables; None: "output 0", "output 1", ... For a detector: of its
            classes.
        progress: Show bars while predicting; in a terminal only.
        unpack: `lambda batch: (inputs, targets)`, where the batches of `data` and `ood` are something else.

    Returns:
        An `Evaluation`, `ClassEvaluation` or `DetectionEvaluation`: look at it, or at its scores one by one.
    """
    if hasattr(model, "read_scenes"):  # a detector's
        return _evaluate_detector(model, data, ood, names, progress=progress, unpack=unpack)
    source, targets = _familiar(model, data, unpack)
    outputs = targets.shape[1]
    foreign, ood_targets = (None, None) if ood is None else _foreign(model, ood, source, outputs, unpack)
    labels = _names(names, outputs, "output")
    with reporting(enabled=progress) as report:
        prediction = _predicted(model, source, "data", outputs, report)
        strange = None if foreign is None else _predicted(model, foreign, "ood", outputs, report)
    said = [prediction] if strange is None else [prediction, strange]
    kinds: set[Any] = {ClassEvaluation if isinstance(one, ClassPrediction) else Evaluation for one in said}
    if len(kinds) > 1:
        raise TypeError(
            f"ood is a {type(strange).__name__} but data a {type(prediction).__name__}; both must be "
            "predicted alike."
        )
    return kinds.pop().of(prediction, targets, strange, ood_targets, names=labels)


def _names(names: Sequence[str] | None, number: int, noun: str) -> list[str]:
    """Those of the columns of the table."""
    labels = [f"{noun} {c}" for c in range(number)] if names is None else [str(name) for name in names]
    if len(labels) != number or len(set(labels)) != number or ALL in labels:
        plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
        raise ValueError(
            f"names={labels} for {number} {plural}; one each is needed, no two alike, none called '{ALL}'."
        )
    return labels


def _evaluate_detector(
    model: Any, data: Any, ood: Any, names: Sequence[str] | None, *, progress: bool, unpack: Unpack | None
) -> DetectionEvaluation:
    """The same for a model that reads pictures and things itself, and predicts `Detections`."""
    if unpack is not None:
        raise ValueError("unpack= is not for detectors: pictures are passed with their things.")
    images, things = model.read_scenes(data, name="data")
    if not any(len(one.labels) for one in things):
        raise ValueError("data: there are no targets in any picture, so nothing can be scored.")
    foreign = None if ood is None else model.read_scenes(ood, name="ood", foreign=True)
    with reporting(enabled=progress) as report:
        scenes = _predicted_scenes(model, images, things, "data", report)
        labels = _names(names, scenes.found[0].probabilities.shape[1] - 1, "class")
        strange = None if foreign is None else _predicted_scenes(model, foreign[0], foreign[1], "ood", report)
    return DetectionEvaluation.of(scenes, strange, names=labels)


def _predicted_scenes(model: Any, images: Any, targets: Any, name: str, report: Reporter) -> ScoredScenes:
    """Detections in all pictures, some at a time."""
    starts, found = range(0, len(images), PICTURES), []
    for start in report.track(starts, stage=f"predicting {name}", total=len(starts)):
        found += [one.cpu() for one in model.predict(images[start : start + PICTURES])]
    if targets is not None:
        targets = [replace(one, boxes=one.boxes.cpu(), labels=one.labels.cpu()) for one in targets]
    sizes = [(int(image.shape[-2]), int(image.shape[-1])) for image in images]
    return ScoredScenes(found, targets, sizes)


def _predicted(model: Any, source: Any, name: str, outputs: int, report: Reporter) -> Prediction:
    """The prediction for inputs, lot by lot; the first lot shows whether the outputs fit."""
    if isinstance(source, Prediction):
        return source
    lots = list(chunks(count(source), LOT))
    found = []
    for index in report.track(lots, stage=f"predicting {name}", total=len(lots)):
        part = model.predict(source if len(lots) == 1 else take(source, index))
        if not isinstance(part, Prediction):
            raise TypeError(
                f"predict() of {type(model).__name__} returned a {type(part).__name__}; "
                "a trustgp.Prediction is needed."
            )
        _check_shape(part, len(index), outputs, name)
        found.append(part)
    return found[0] if len(found) == 1 else Prediction.cat(found)


def _check_shape(prediction: Prediction, rows: int, outputs: int, name: str) -> None:
    """Raise unless there is one prediction for each target; a row has one label however many classes."""
    found = list(as_matrix(prediction.mean).shape)
    if found != [rows, found[1] if isinstance(prediction, ClassPrediction) else outputs]:
        raise ValueError(
            f"{name}: the prediction is {found} but the targets are {[rows, outputs]} "
            "(rows, outputs); they must agree."
        )


def _familiar(model: Any, data: Any, unpack: Unpack | None) -> tuple[Any, Tensor]:
    """The inputs of `data`, or their prediction where that was given, and their targets."""
    if isinstance(model, Prediction):
        targets = _read_targets(data, "data", unpack)
        _check_shape(model, *targets.shape, name="data")
        return model, targets
    if not callable(getattr(model, "predict", None)):
        raise TypeError(
            f"a {type(model).__name__} has no predict(); pass what trustgp.fit(network, ...) gives, "
            "or a Prediction."
        )
    rows = read_rows(data, name="data", unpack=unpack, network=_network(model))
    return rows.inputs, _real(rows.targets, "data")


def _network(model: Any) -> nn.Module | None:
    """That of a fitted model; others take data frames as numbers."""
    network = getattr(model, "network", None)
    return network if isinstance(network, nn.Module) else None


def _read_targets(data: Any, name: str, unpack: Unpack | None = None) -> Tensor:
    """Targets [n, C] for a prediction, alone or with the rows it was made for, in the order of its rows."""
    if isinstance(data, Rows | DataLoader | Dataset):
        rows = read_rows(data, name=name, unpack=unpack)
        if not rows.ordered:
            raise ValueError(
                f"{name} is a loader that shuffles, so its rows are not in the order of the prediction; "
                "pass the model itself, or the targets as a tensor."
            )
        return _real(rows.targets, name)
    values = data[1] if isinstance(data, tuple | list) and len(data) == 2 else data
    if not isinstance(values, ArrayLike):
        raise TypeError(f"{name} targets are a {type(values).__name__}; pass a tensor, array or series.")
    targets = as_inputs(values)
    stand_in = torch.zeros(targets.shape[:1])  # for the inputs, which are not needed
    return _real(read_rows((stand_in if targets.ndim else targets, targets), name=name).targets, name)


def _real(targets: Tensor, name: str) -> Tensor:
    if targets.is_complex() or targets.dtype == torch.bool:
        raise ValueError(f"{name} targets are {targets.dtype}; real numbers are needed.")
    return targets


def _foreign(
    model: Any, ood: Any, familiar: Any, outputs: int, unpack: Unpack | None
) -> tuple[Any, Tensor | None]:
    """Foreign inputs or their prediction, as the familiar rows have, and their targets [m, C], if known."""
    source, targets = ood if isinstance(ood, tuple | list) and len(ood) == 2 else (ood, None)
    if isinstance(source, Prediction):
        targets = None if targets is None else _read_targets(targets, "ood")
        _check_shape(source, len(source) if targets is None else len(targets), outputs, "ood")
    elif isinstance(familiar, Prediction):
        raise TypeError(
            f"ood is a {type(ood).__name__}, but predictions were given and no model; pass a Prediction of "
            "the foreign rows, or (Prediction, targets)."
        )
    else:
        source, targets = _foreign_rows(_read_tensors(ood, _network(model), unpack), familiar)
    if targets is not None and targets.shape[1] != outputs:
        raise ValueError(f"ood has {targets.shape[1]} targets a row but data has {outputs}; they must agree.")
    return source, targets


def _foreign_rows(found: Inputs, inputs: Inputs) -> tuple[Inputs, Tensor | None]:
    """Inputs, and targets where there are any; the structure of the familiar inputs tells which is which."""
    wanted = structure(inputs)
    if structure(found) == wanted:
        found = (found,)
    if structure(found) not in (f"({wanted})", f"({wanted},tensor)"):
        raise ValueError(
            f"ood has the structure {structure(found)} but the inputs of data have {wanted}; pass inputs "
            "alike, or (inputs, targets)."
        )
    targets = _real(read_rows(found, name="ood").targets, "ood") if len(found) == 2 else None
    if count(found[0]) == 0:
        raise ValueError("ood holds no rows.")
    require_finite(found[0], "ood inputs")
    for pair in zip(leaves(inputs), leaves(found[0]), strict=True):
        mine, theirs = (leaf.shape[1] if leaf.ndim == 2 else None for leaf in pair)
        if None not in (mine, theirs) and mine != theirs:
            raise ValueError(f"ood inputs have {theirs} columns but those of data have {mine}.")
    return found[0], targets


def _read_tensors(source: Any, network: nn.Module | None, unpack: Unpack | None) -> Inputs:
    """All that a source of rows gives, targets or none."""
    if isinstance(source, Rows):
        return source.inputs, source.targets
    if not is_stream(source):
        return as_inputs(source, network)
    loader, _ = batches_of(source, LOT)
    pairs = (batch if unpack is None else as_pair(batch, "a batch of ood", unpack) for batch in loader)
    batches = [as_inputs(batch, network) for batch in pairs]
    if not batches:
        raise ValueError("ood holds no rows.")
    return concatenate(batches)
