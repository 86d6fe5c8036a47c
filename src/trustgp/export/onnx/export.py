"""A fitted model as one ONNX file, and the reader of such files."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ...data.atomic_file import atomic_file
from ...data.tensor_file import ArtifactError, require_plain
from ...data.torch_modes import cpu_default
from ...data.trees import Inputs, leaves
from ...model import UncertaintyModel
from ..detector_file import as_served
from ..errors import ExportError, layer_with, require_packages
from ..metadata import DIGEST, FORMAT, PREFIX, is_whole, rows_like, sealed
from ..metadata import input_names as names_of
from ..trace.trace import traced
from ..verify import export_source
from .translate import UntranslatedError, to_onnx

EXTERNAL = 1  # in onnx.TensorProto.DataLocation: the numbers are in another file


@cpu_default()
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
) -> Path:
    """Write the network and its error bar to one self-contained ONNX file, for any number of rows.

    Its outputs are mean, variance, corrected, corrected_variance, novelty, expert, valid and score; is_novel
    if `model.threshold` was called, and probabilities for a classifier. Those of a detector are listed in
    `trustgp.detection.export.DetectorGraph`, for all queries. The file is written only if onnx accepts it and
    onnxruntime computes the same as `model.predict`. Returns the path.

    Args:
        model: The fitted model, an `UncertaintyModel` or a `DetectionModel`; it is not changed.
        path: The file to write.
        example_inputs: A few rows, or pictures, as the network takes them.
        input_names, input_units: For each number of a row, such as "q1" and "rad"; part of the metadata.
        output_names, output_units: For each output of the network, likewise.
        calibration_date: Date of the calibration; part of the metadata.

    Raises:
        ExportError: When the model cannot be exported; the message names the layer.

    Examples:
        >>> path = trustgp.export_onnx(model, "arm.onnx", inputs[:2])
    """
    require_packages("onnx", "onnxruntime")
    import onnx

    path = Path(path)
    source = export_source(model)
    inputs = source.inputs(example_inputs)
    facts = source.facts(inputs, (input_names, input_units, output_names, output_units), calibration_date)
    with atomic_file(path) as temporary:  # first: an error of the folder comes before the work
        try:
            graph = to_onnx(traced(model, inputs, plain=False), names_of(inputs))
        except UntranslatedError as error:
            where = layer_with(model.network, inputs, error.target) or "the network's backward pass"
            raise ExportError(f"{where} uses {error}; replace that layer, or use model.predict.") from error
        temporary.write_bytes(sealed(graph, facts))
        content = temporary.read_bytes()
        onnx.checker.check_model(content, full_check=True)
        try:
            runner = load_runner(content, "the file")
        except ArtifactError as error:
            what = f"onnxruntime cannot run this graph, no file written: {error}. It has fewer operations"
            raise ExportError(f"{what} in float64: fit a float32 copy of such a network.") from error
        source.check(runner, inputs, what="exported graph")
    return path


class OnnxRunner:
    """A file in onnxruntime: a function of rows that returns a dict of arrays."""

    def __init__(self, session: Any, metadata: Mapping[str, str]) -> None:
        self.session = session
        self.metadata = MappingProxyType(dict(metadata))
        self.input_names = tuple(tensor.name for tensor in session.get_inputs())
        self.output_names = tuple(tensor.name for tensor in session.get_outputs())
        # types such as tensor(int64); onnxruntime has names of its own for two
        names = (tensor.type.removeprefix("tensor(").removesuffix(")") for tensor in session.get_inputs())
        other = {"float": "float32", "double": "float64"}
        self._types = tuple(np.dtype(other.get(name, name)) for name in names)

    def __call__(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """The outputs for these rows, by name; arrays or tensors, nested as the network takes them."""
        tensors = leaves(rows_like(inputs, self.metadata["structure"]))
        arrays = {name: leaf.numpy(force=True) for name, leaf in zip(self.input_names, tensors, strict=True)}
        for (name, array), kind in zip(arrays.items(), self._types, strict=True):
            if array.dtype != kind:
                raise TypeError(f"'{name}' is {array.dtype}; the network takes {kind}.")
        return dict(zip(self.output_names, self.session.run(None, arrays), strict=True))


def open_onnx(path: str | Path, *, threads: int = 1) -> OnnxRunner | Any:
    """Open a file of `export_onnx` in onnxruntime; a detector's file opens as an `ExportedDetector`.

    The file must be undamaged (its SHA-256 detects damage, not attackers), self-contained, and hold standard
    operations only.

    Args:
        path: The file; a link is refused.
        threads: Number of threads of onnxruntime.

    Raises:
        ArtifactError: A ValueError that describes the fault of the file.

    Examples:
        >>> path = trustgp.export_onnx(model, "arm.onnx", inputs[:2])
        >>> variance = trustgp.export.open_onnx(path)(inputs)["variance"]
    """
    require_packages("onnx", "onnxruntime")
    path = Path(path)
    if path.is_symlink():
        raise ArtifactError(f"{path} is a symbolic link; pass the file itself.")
    require_plain(path)
    return as_served(load_runner(path.read_bytes(), str(path), threads=threads), str(path))


def load_runner(content: bytes, where: str, *, threads: int = 1) -> OnnxRunner:
    """Open the bytes of a file of any model in onnxruntime; `where` is its name in messages."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # the error is enough; the log would quote the file unescaped
    try:
        metadata = _validated(content, where)
        # from bytes, so that no other file is read; the fallback would print, and try the same again
        settings: Any = {"providers": ["CPUExecutionProvider"], "enable_fallback": 0}
        return OnnxRunner(onnxruntime.InferenceSession(content, options, **settings), metadata)
    except ArtifactError:
        raise
    except Exception as error:  # protobuf and onnxruntime have no common class of errors
        raise ArtifactError(f"{where} is not an ONNX file, damaged, or cannot be run: {error}") from error


def _validated(content: bytes, where: str) -> dict[str, str]:
    """Metadata of a file, with names without the prefix. Raise ArtifactError if it must not be run."""
    import onnx

    model = onnx.load_model_from_string(content)
    graphs = list(_graphs(model.graph))
    for tensor in (tensor for _, constants in graphs for tensor in constants):
        if tensor.data_location == EXTERNAL or tensor.external_data:
            place = {entry.key: entry.value for entry in tensor.external_data}.get("location", "?")
            what = f"{where}: tensor '{tensor.name}' is in another file ({place})"
            raise ArtifactError(f"{what}; only self-contained files are opened.")
    nodes = [node for graph, _ in graphs for node in graph.node]
    foreign = sorted({part.domain for part in (*model.opset_import, *nodes)} - {"", "ai.onnx"})
    if foreign or model.functions:
        raise ArtifactError(f"{where} holds operators of {foreign or 'its own'}; only standard ones are run.")
    table = {entry.key: entry.value for entry in model.metadata_props}
    if DIGEST not in table:
        raise ArtifactError(f"{where} was not written by trustgp.export_onnx; export the model again.")
    if not is_whole(content):
        raise ArtifactError(f"{where} is damaged: its SHA-256 is not the one it was written with.")
    metadata = {name.removeprefix(PREFIX): value for name, value in table.items() if name != DIGEST}
    if (version := metadata.get("format")) != str(FORMAT):
        raise ArtifactError(f"{where} has format {version}; this trustgp reads {FORMAT}. Export it again.")
    if "structure" not in metadata:
        raise ArtifactError(f"{where} lacks the structure of its inputs; export the model again.")
    return metadata


def _graphs(graph: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the graph and those nested in it, each with its constants, including those in operations."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    sparse = [tensor for pair in graph.sparse_initializer for tensor in (pair.values, pair.indices)]
    inline = [tensor for a in attributes for tensor in (*([a.t] if a.HasField("t") else []), *a.tensors)]
    yield graph, [*graph.initializer, *sparse, *inline]
    for a in attributes:
        for inner in (*([a.g] if a.HasField("g") else []), *a.graphs):
            yield from _graphs(inner)
