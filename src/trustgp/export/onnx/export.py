"""A fitted model as one ONNX file, and such a file opened: none else."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ...data.atomic_file import atomic_file
from ...data.tensor_file import ArtifactError, require_plain
from ...data.trees import Inputs, leaves
from ...executors.progress import LOGGER
from ...model import UncertaintyModel
from ..detector_file import as_served
from ..errors import ExportError, layer_with, needs
from ..metadata import DIGEST, FORMAT, PREFIX, is_whole, rows_like, sealed
from ..metadata import input_names as names_of
from ..source import ExportSource, export_source
from ..trace.trace import traced
from .translate import OPSETS, UntranslatedError, to_onnx

EXTERNAL = 1  # where a tensor's numbers are, in onnx.TensorProto.DataLocation
SLOW = 2.0  # seconds after which it says what it has done


def export_onnx(
    model: UncertaintyModel | Any,
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
    is_novel where `model.threshold` was called, and probabilities of a classifier. Of a detector they are
    those of `trustgp.detection.graph.DetectorGraph`, for all queries. Before the file is there it is checked
    by onnx, and against `model.predict` in onnxruntime. The path is returned.

    Args:
        model: The fitted model, an `UncertaintyModel` or a `DetectionModel`; it is not changed.
        path: Of the file.
        example_inputs: A few rows, or pictures, as the network takes them.
        input_names, input_units: Of the numbers of a row, such as "q1" and "rad"; they are put into the file.
        output_names, output_units: Of the network's outputs, likewise.
        calibration_date: When the model was calibrated; put into the file.
        opset: Version of the ONNX operations.

    Raises:
        ExportError: When the model cannot be exported; the message names the layer.
    """
    needs("onnx", "onnxruntime")
    began, path = time.monotonic(), Path(path)
    if opset not in OPSETS:
        raise ValueError(f"opset={opset}; allowed are {OPSETS[0]} to {OPSETS[-1]}.")
    source = export_source(model)
    inputs = source.inputs(example_inputs)
    columns = (input_names, input_units, output_names, output_units)
    facts = source.facts(inputs, columns, calibration_date)
    with atomic_file(path) as temporary:  # first: what cannot be written is refused before the work
        try:
            made = to_onnx(traced(model, inputs, plain=False), names_of(inputs), opset=opset)
        except UntranslatedError as error:
            where = layer_with(source.network, inputs, error.target) or "the way back through the network"
            raise ExportError(f"{where} uses {error}; replace that layer, or use model.predict.") from error
        content = sealed(made, facts)
        temporary.write_bytes(content)
        _check(source, temporary.read_bytes(), inputs)
    if (taken := time.monotonic() - began) > SLOW:
        LOGGER.info("%s: %.1f MB, traced, written and checked in %.0f s", path, len(content) / 1e6, taken)
    return path


def _check(source: ExportSource, content: bytes, inputs: Inputs) -> None:
    """Raise unless onnx finds no fault with a file, and onnxruntime gives what `predict` gives."""
    import onnx

    onnx.checker.check_model(content, full_check=True)
    try:
        runner = opened(content, "the file")
    except ArtifactError as error:
        raise ExportError(
            f"onnxruntime cannot run this graph, no file was written: {error}. It knows fewer operations "
            "in float64: fit a float32 copy of such a network."
        ) from error
    source.check(runner, inputs, what="exported graph")


class OnnxRunner:
    """A file in onnxruntime: called with inputs it gives a dict of arrays."""

    def __init__(self, session: Any, metadata: Mapping[str, str]) -> None:
        self.session = session
        self.metadata = MappingProxyType(dict(metadata))
        self.input_names = tuple(given.name for given in session.get_inputs())
        self.output_names = tuple(found.name for found in session.get_outputs())
        # such as tensor(int64); onnxruntime has names of its own for two
        inner = (given.type.removeprefix("tensor(").removesuffix(")") for given in session.get_inputs())
        known = {"float": "float32", "double": "float64"}
        self._types = tuple(np.dtype(known.get(name, name)) for name in inner)

    def __call__(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """The answers for these rows, by name; arrays or tensors, nested as the network takes them."""
        tensors = leaves(rows_like(inputs, self.metadata["structure"]))
        arrays = {}
        for name, kind, leaf in zip(self.input_names, self._types, tensors, strict=True):
            array = leaf.numpy(force=True)
            if array.dtype != kind:
                raise TypeError(f"'{name}' is {array.dtype}; the network takes {kind}.")
            arrays[name] = array
        return dict(zip(self.output_names, self.session.run(None, arrays), strict=True))


def open_onnx(path: str | Path, *, threads: int = 1) -> OnnxRunner | Any:
    """A file that `export_onnx` wrote, ready to run in onnxruntime; of a detector an `ExportedDetector`.

    The file must be whole (a SHA-256 over all of it finds damage, not attackers), stand by itself, and hold
    standard operations only.

    Args:
        path: The file; a link is refused.
        threads: Of onnxruntime.

    Raises:
        ArtifactError: A ValueError that says what is wrong with the file.
    """
    needs("onnx", "onnxruntime")
    path = Path(path)
    if path.is_symlink():
        raise ArtifactError(f"{path} is a symbolic link; pass the file itself.")
    require_plain(path)
    return as_served(opened(path.read_bytes(), str(path), threads=threads), str(path))


def opened(content: bytes, where: str, *, threads: int = 1) -> OnnxRunner:
    """The same for the bytes of a file; `where` is its name in messages."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = (
        4  # what is wrong with a file is in the error; the log would quote it as it is
    )
    try:
        metadata = _checked(content, where)
        # on the CPU, and from bytes, so that nothing else is read
        only = {
            "providers": ["CPUExecutionProvider"],
            "enable_fallback": 0,
        }  # which prints, and tries the same again
        session = onnxruntime.InferenceSession(content, options, **only)
        return OnnxRunner(session, metadata)
    except ArtifactError:
        raise
    except Exception as error:  # protobuf and onnxruntime have no common class for what they refuse
        raise ArtifactError(f"{where} cannot be run: {error}") from error


def _checked(content: bytes, where: str) -> dict[str, str]:
    """The metadata of a file that may be run; the prefix of the names is left out."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        raise ArtifactError(f"{where} is no ONNX file, or damaged: {error}") from error
    graphs = list(_graphs(model.graph))
    for tensor in (tensor for _, held in graphs for tensor in held):
        if tensor.data_location == EXTERNAL or tensor.external_data:
            places = {entry.key: entry.value for entry in tensor.external_data}
            raise ArtifactError(
                f"{where}: tensor '{tensor.name}' lies in another file ({places.get('location', '?')}); "
                "only files that stand by themselves are opened."
            )
    nodes = [node for graph, _ in graphs for node in graph.node]
    domains = {part.domain for part in (*model.opset_import, *nodes)}
    foreign = sorted(domains - {"", "ai.onnx"})
    if foreign or model.functions:
        raise ArtifactError(f"{where} holds operators of {foreign or 'its own'}; only standard ones are run.")
    table = {entry.key: entry.value for entry in model.metadata_props}
    if DIGEST not in table:
        raise ArtifactError(f"{where} was not written by trustgp.export_onnx; export the model again.")
    if not is_whole(content):
        raise ArtifactError(f"{where} is damaged: its SHA-256 is not the one it was written with.")
    metadata = {name.removeprefix(PREFIX): value for name, value in table.items() if name != DIGEST}
    if metadata.get("format") != str(FORMAT):
        raise ArtifactError(
            f"{where} has format {metadata.get('format')}; this trustgp reads {FORMAT}. Update it, or "
            "export the model again."
        )
    if "structure" not in metadata:
        raise ArtifactError(f"{where} does not say how its inputs are nested; export the model again.")
    return metadata


def _graphs(graph: Any) -> Iterator[tuple[Any, list[Any]]]:
    """The graph and those inside its operations, each with its constants, those in operations included."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    sparse = [tensor for one in graph.sparse_initializer for tensor in (one.values, one.indices)]
    held = [tensor for a in attributes for tensor in (*([a.t] if a.HasField("t") else []), *a.tensors)]
    yield graph, [*graph.initializer, *sparse, *held]
    for a in attributes:
        for inner in (*([a.g] if a.HasField("g") else []), *a.graphs):
            yield from _graphs(inner)
