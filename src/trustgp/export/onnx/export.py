"""A fitted model as one ONNX file."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data.tensor_file import temporary_beside
from ...data.trees import Inputs, as_inputs
from ...executors.progress import LOGGER
from ..errors import ExportError, needs, where_called
from ..metadata import describe, sealed
from ..metadata import input_names as names_of
from ..trace.trace import traced
from ..verify import require_equal
from .runner import opened
from .translate import OPSETS, UntranslatedError, to_onnx

if TYPE_CHECKING:
    from ...model import UncertaintyModel

SLOW = 2.0  # seconds after which it says what it has done


def export_onnx(
    model: UncertaintyModel,
    path: str | Path,
    example_inputs: Inputs,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    input_units: Sequence[str] | None = None,
    output_units: Sequence[str] | None = None,
    calibration_date: str | datetime.date | None = None,
    opset: int = OPSETS[0],
) -> Path:
    """Write the network and its error bar to one self-contained ONNX file, for any number of rows.

    Its outputs are mean, variance, corrected, corrected_variance, novelty, expert, valid and score, with
    is_novel where `model.threshold` was called, and probabilities of a classifier. Before the file is
    there it is checked by onnx, and against `model.predict` in onnxruntime.

    Args:
        model: The fitted model; it is not changed.
        path: Of the file.
        example_inputs: A few rows, as the network takes them.
        input_names, input_units: Of the numbers of a row, such as "q1" and "rad"; they are put into the file.
        output_names, output_units: Of the network's outputs, likewise.
        calibration_date: When the model was calibrated; put into the file.
        opset: Version of the ONNX operations.

    Returns:
        The path.

    Raises:
        ExportError: When the model cannot be exported; the message names the layer.
    """
    needs("onnx", "onnxruntime")
    began, path = time.monotonic(), Path(path)
    if opset not in OPSETS:
        raise ValueError(f"opset={opset}; allowed are {OPSETS[0]} to {OPSETS[-1]}.")
    inputs = as_inputs(example_inputs)
    columns = (input_names, input_units, output_names, output_units)
    facts = describe(model, inputs, columns, calibration_date)
    content = sealed(_made(model, inputs, opset), facts)
    with temporary_beside(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _check(model, temporary.read_bytes(), inputs)
        os.replace(temporary, path)
    if (taken := time.monotonic() - began) > SLOW:
        LOGGER.info("%s: %.1f MB, traced, written and checked in %.0f s", path, len(content) / 1e6, taken)
    return path


def _made(model: UncertaintyModel, inputs: Inputs, opset: int) -> Any:
    """The ONNX model; what has no place in it is named by its layer."""
    try:
        return to_onnx(traced(model, inputs, plain=False), names_of(inputs), opset=opset)
    except UntranslatedError as error:
        layer = where_called(model.network, inputs, str(error.target).rpartition(".")[0])
        where = f"layer {layer} calls it" if layer else "it comes from the network's forward or its gradients"
        raise ExportError(
            f"{error}; {where}. Replace that layer, or use the model through predict."
        ) from error


def _check(model: UncertaintyModel, content: bytes, inputs: Inputs) -> None:
    """Raise unless onnx finds no fault with a file, and onnxruntime gives what `predict` gives."""
    import onnx

    onnx.checker.check_model(content, full_check=True)
    try:
        runner = opened(content, "the file")
    except ExportError:
        raise
    except Exception as error:  # of onnxruntime, which has no common class for them
        if type(error).__module__.startswith("onnxruntime"):
            raise ExportError(f"onnxruntime cannot run this graph, no file was written: {error}") from error
        raise
    require_equal(model, runner, inputs, what="exported graph")
