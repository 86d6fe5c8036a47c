"""Frames of sensor values as rows, the fields of their predictions that a monitor uses, and its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.rows import Rows
from ..data.trees import Inputs, leaves, map_tensors, rebuilt, structure
from ..likelihoods.base import NoveltyThreshold
from ..math.quantiles import check_share, held_out_quantile, needed_rows
from ..model import UncertaintyModel

NEEDED = ("mean", "variance", "novelty")
MAX_HELD_OUT_ROWS = 1000  # from which the limits are computed


class FrameError(ValueError):
    """A frame that cannot be converted to a row."""


def _as_row(frame: Inputs, like: Inputs) -> Inputs:
    """Frame as inputs of one row, in shape and type like `like`; FrameError if it does not fit or is NaN."""
    if structure(frame) != structure(like):
        raise FrameError(f"the structure is {structure(frame)}, not {structure(like)}")
    fitted = []
    for leaf, row in zip(leaves(frame), leaves(like), strict=True):
        if tuple(leaf.shape) not in (row.shape, row.shape[1:]):
            raise FrameError(f"the shape is {tuple(leaf.shape)}, not {tuple(row.shape[1:])}")
        fitted.append(leaf.reshape(row.shape).to(row.dtype))
        if not bool(torch.isfinite(fitted[-1]).all()):
            raise FrameError("values are NaN or infinite")
    return rebuilt(frame, iter(fitted))


def read_frame(frame: Any, wanted: str | None) -> Inputs:
    """Frame of arrays, lists or numbers with every leaf as a tensor; `wanted`: its structure, if known."""
    if isinstance(frame, dict):
        return {key: read_frame(value, None) for key, value in frame.items()}
    nested = isinstance(frame, (tuple, list)) and wanted != "tensor"
    if nested and ((wanted or "").startswith("(") or not all(isinstance(value, Real) for value in frame)):
        return tuple(read_frame(value, None) for value in frame)
    if isinstance(frame, Tensor):
        if frame.is_complex() or frame.is_quantized:
            raise FrameError(f"values are {frame.dtype}, not real numbers")
        if frame.is_meta or frame.layout != torch.strided:
            raise FrameError(f"values are {'on no device' if frame.is_meta else frame.layout}, not an array")
        return frame.detach()
    if np.ma.is_masked(frame):
        raise FrameError("values are masked")
    try:
        array = np.asarray(frame)
    except ValueError as error:  # rows of unequal length
        raise FrameError(f"values are no array: {error}") from error
    if array.dtype.kind not in "fiub":
        raise FrameError(f"values are {array.dtype}, not real numbers")
    extended = array.dtype.kind == "f" and array.dtype.itemsize > 8
    return torch.tensor(array.astype(np.float64 if extended else array.dtype.newbyteorder("=")))


class FrameReader:
    """Reader of frames that returns a model's predictions; the first frame defines the form of all."""

    def __init__(self, model: Any) -> None:
        fitted = isinstance(model, UncertaintyModel)
        self._model, self._structure = model, model.origin.structure if fitted else None
        self._dtype = next(model.network.parameters()).dtype if fitted else None
        self._row: Inputs | None = None  # the first, whose structure, shapes and types are those of all

    def __call__(self, frame: Any, limit: Tensor | None) -> Reading:
        """The prediction for a frame; a FrameError if it cannot be converted to a row."""
        values = read_frame(frame, self._structure)
        if self._row is not None:
            return read_prediction(self._model, _as_row(values, self._row))
        row, reading = self._first(values)
        outputs = reading.uncertainty.shape[1]
        if limit is not None and len(limit) not in (1, outputs):
            what = f"std= has {len(limit)} limits, but the model has {outputs} outputs"
            raise ValueError(f"{what}; pass one number or one for each output.")
        self._row = row
        _as_row(values, row)  # refuses NaN, which counted as zero
        return reading

    def _first(self, frame: Inputs) -> tuple[Inputs, Reading]:
        """First form of a frame, as one row, that the model accepts, and its prediction; NaN counts as 0."""
        first: Exception | None = None
        for row in _candidate_rows(map_tensors(torch.nan_to_num, frame), self._dtype):
            try:
                answer = read_prediction(self._model, row)
                if len(answer.mean) == 1:
                    return row, answer
                raise ValueError(f"the model returns {len(answer.mean)} rows instead of one.")
            except Exception as error:
                first = first or error
        shapes = [tuple(leaf.shape) for leaf in leaves(frame)]
        what = f"the model accepts no frame with the structure {structure(frame)} and the shapes {shapes}"
        raise ValueError(f"{what}: {first} Pass one row, with or without the batch dimension.") from first


def _candidate_rows(frame: Inputs, dtype: torch.dtype | None) -> Iterator[Inputs]:
    """Possible forms of a frame as one row, the likeliest first: with the batch dimension, or without."""
    tensors = leaves(frame)
    batched = all(leaf.ndim > 0 and leaf.shape[0] == 1 for leaf in tensors)
    flat = all(leaf.ndim < 2 for leaf in tensors)  # [1] is a row of one number
    for keeps in ((False, True) if flat else (True, False)) if batched else (False,):
        row = frame if keeps else map_tensors(lambda leaf: leaf[None], frame)
        yield map_tensors(lambda x: x.to(dtype or x.dtype) if x.is_floating_point() else x, row)
        yield map_tensors(lambda x: x.to(dtype or torch.float32), row)


class PredictionSource(Protocol):
    """Anything that predicts as an `UncertaintyModel` does, for example a session of onnxruntime.

    It takes a batch of inputs, and returns an object or a mapping with `mean` and `variance` [n] or [n, C],
    `novelty` [n], and optionally `score` [n] (default: the novelty), `expert` [n] or [n, kernels],
    `valid` [n], `probabilities` [n, K] and, where a row has several labels, `labels` [n, K], as tensors or
    arrays. If it has a mapping `metadata`, "threshold" in it is the default of the monitor's threshold.
    """

    def __call__(self, inputs: Any, /) -> Any:
        """The prediction for some rows."""


@dataclass(frozen=True)
class Reading:
    """Fields of the predictions of n rows, on the CPU."""

    mean: Tensor  # [n, C]
    std: Tensor  # [n, C]
    novelty: Tensor  # [n]
    score: Tensor  # [n]
    valid: Tensor  # bool, [n]
    expert: Tensor | None  # [n, kernels]; None: not given
    probabilities: Tensor | None  # of classes or labels, [n, K]; None: numbers are predicted
    labels: Tensor | None  # bool [n, K]; None: a row has one class, or numbers

    @property
    def uncertainty(self) -> Tensor:
        """Uncertainty of each row, float64: std [n, C]; for classes 1 - the largest probability [n, 1]; for
        labels the probability [n, 1] that the least certain one is wrong."""
        if self.probabilities is None:
            return self.std.double()
        p = self.probabilities.double()
        if self.labels is not None:
            return torch.minimum(p, 1.0 - p).amax(dim=1, keepdim=True)
        return 1.0 - p.amax(dim=1, keepdim=True)


def read_prediction(model: Any, inputs: Any) -> Reading:
    """The prediction of a model, or of a `PredictionSource`; TypeError if fields are missing."""
    prediction = getattr(model, "predict", model)(inputs)

    def field(name: str) -> Tensor | None:
        value = prediction.get(name) if isinstance(prediction, Mapping) else getattr(prediction, name, None)
        return None if value is None else torch.as_tensor(value).detach().cpu()

    mean, variance, novelty = (field(name) for name in NEEDED)
    if mean is None or variance is None or novelty is None:
        kind = type(prediction).__name__
        raise TypeError(f"the model returns a {kind} that lacks one of {', '.join(NEEDED)}.")
    mean, std = (value.reshape(len(novelty), -1) for value in (mean, variance.sqrt()))
    score, valid, expert = (field(name) for name in ("score", "valid", "expert"))
    finite = torch.isfinite(mean).all(dim=1) & torch.isfinite(std).all(dim=1)
    score, valid = novelty if score is None else score, finite if valid is None else finite & valid.bool()
    expert = None if expert is None else expert.reshape(len(novelty), -1)
    return Reading(mean, std, novelty, score, valid, expert, field("probabilities"), field("labels"))


def joint_limit(uncertainties: Tensor, false_alarm: float) -> Tensor | None:
    r"""Limits [C] that a new row exceeds in any of its C numbers with probability `false_alarm` at most.

    .. math:: l_c = \mathrm{median}_c \cdot Q_{1 - \alpha}( \max_c u_c / \mathrm{median}_c )

    One quantile for all numbers (`held_out_quantile`), so that many outputs cause no more false alarms than
    one. None if there are too few held-out rows [n, C], which must be finite.
    """
    if len(uncertainties) < needed_rows(1.0 - false_alarm):
        return None
    median = uncertainties.median(dim=0).values.clamp_min(torch.finfo(torch.float64).tiny)
    return median * held_out_quantile((uncertainties / median).amax(dim=1), 1.0 - false_alarm)


def find_limits(
    model: Any, threshold: float | None, limit: Tensor | None, rows: Any, false_alarm: float
) -> tuple[float, Tensor | None]:
    """Threshold and limit, float64, [C] or [1], of a monitor; see `trustgp.Monitor` for the options."""
    check_share("false_alarm", false_alarm, 0.01)
    reading = None
    if rows is not None:
        reading = read_prediction(model, rows)
    elif limit is None and isinstance(model, UncertaintyModel):
        rows_held: Rows | None = getattr(model.memory, "validation", None)
        if rows_held is not None:
            reading = read_prediction(model, rows_held.take(evenly(len(rows_held), MAX_HELD_OUT_ROWS)))
    if threshold is not None:
        score = float(threshold)
    elif rows is not None and reading is not None:
        score = float(NoveltyThreshold.fit(reading.score, false_alarm).threshold)
    elif isinstance(model, UncertaintyModel):
        fitted = model.novelty_threshold or NoveltyThreshold.fit(model.held_scores, false_alarm)
        score = float(fitted.threshold)
    elif (stored := getattr(model, "metadata", {}).get("threshold", "none")) != "none":
        score = float(stored)
    else:
        raise ValueError("there is no threshold: pass threshold=, a novelty score, or rows=, familiar rows.")
    if not score >= 0.0 or math.isinf(score):
        raise ValueError(f"threshold={score}; it must be a finite number of at least 0.")
    if limit is None and reading is not None:
        limit = joint_limit(reading.uncertainty[reading.valid], false_alarm)
    return score, limit


def given_limit(std: Any, confidence: float | None) -> Tensor | None:
    """The user's limit, float64, [C] or [1]; None: none was given."""
    if std is not None and confidence is not None:
        raise ValueError("pass std= for numbers or confidence= for classes, not both.")
    if confidence is not None:
        check_share("confidence", confidence, 0.6)
        return torch.tensor([1.0 - confidence], dtype=torch.float64)
    if std is None:
        return None
    limit = torch.as_tensor(std, dtype=torch.float64).detach().cpu().reshape(-1)
    if not len(limit) or not bool((limit > 0).all()):
        raise ValueError(f"std={std}; pass one positive number, or one for each output.")
    return limit
