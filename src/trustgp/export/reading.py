"""Opens a file that `export_onnx` wrote, and none else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..data import Inputs, as_inputs, leaves, structure
from ..safefile import ArtifactError
from .metadata import DIGEST, FORMAT, PREFIX, is_whole
from .refusing import needs

EXTERNAL = 1  # where a tensor's numbers are, in onnx.TensorProto.DataLocation


class Runner:
    """A file in onnxruntime: called with inputs it gives a dict of arrays.

    Args:
        session: Of onnxruntime.
        metadata: What the file says about itself.
    """

    def __init__(self, session: Any, metadata: Mapping[str, str]) -> None:
        self.session = session
        self.metadata = MappingProxyType(dict(metadata))
        self.input_names = tuple(given.name for given in session.get_inputs())
        self.output_names = tuple(found.name for found in session.get_outputs())
        self._types = tuple(NUMPY[given.type] for given in session.get_inputs())

    def __call__(self, inputs: Inputs) -> dict[str, np.ndarray]:
        """The answers for these rows, by name; arrays or tensors, nested as the network takes them."""
        taken = as_inputs(inputs)
        wanted = self.metadata["structure"]
        if structure(taken) != wanted:
            raise ValueError(f"inputs have the structure {structure(taken)}; the file was made for {wanted}.")
        arrays = {}
        for name, kind, leaf in zip(self.input_names, self._types, leaves(taken), strict=True):
            array = leaf.numpy(force=True)
            if array.dtype != kind:
                raise TypeError(f"'{name}' is {array.dtype}; the network takes {np.dtype(kind)}.")
            arrays[name] = array
        return dict(zip(self.output_names, self.session.run(None, arrays), strict=True))


NUMPY = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


def open_onnx(path: str | Path, *, threads: int = 1) -> Runner:
    """A file that `export_onnx` wrote, ready to run in onnxruntime.

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
    return opened(path.read_bytes(), str(path), threads=threads)


def opened(content: bytes, where: str, *, threads: int = 1) -> Runner:
    """The same for the bytes of a file; `where` is its name in messages."""
    metadata = checked(content, where)
    return Runner(session(content, threads), metadata)


def session(content: bytes, threads: int) -> Any:
    """An onnxruntime session on the CPU; from bytes, so that nothing else is read."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def checked(content: bytes, where: str) -> dict[str, str]:
    """The metadata of a file that may be run; the prefix of the names is left out."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, ValueError) as error:
        raise ArtifactError(f"{where} is no ONNX file, or damaged: {error}") from error
    for tensor in _tensors(model.graph):
        if tensor.data_location == EXTERNAL or tensor.external_data:
            places = {entry.key: entry.value for entry in tensor.external_data}
            raise ArtifactError(
                f"{where}: tensor '{tensor.name}' lies in another file ({places.get('location', '?')}); "
                "only files that stand by themselves are opened."
            )
    domains = {opset.domain for opset in model.opset_import} | {n.domain for n in _nodes(model.graph)}
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
    return metadata


def _nodes(graph: Any) -> Iterator[Any]:
    """All operations, those of inner graphs included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(inner)


def _tensors(graph: Any) -> Iterator[Any]:
    """All constants, those in operations and in inner graphs included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors(inner)
