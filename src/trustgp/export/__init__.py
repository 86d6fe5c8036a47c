"""One graph with the network and its error bar inside, for machines without Python or trustgp."""

from .compiled import Compiled, compile, open_compiled
from .graph import Graph
from .onnx import export_onnx
from .reading import Runner, open_onnx
from .refusing import ExportError
from .tracing import traced

__all__ = [
    "Compiled",
    "ExportError",
    "Graph",
    "Runner",
    "compile",
    "export_onnx",
    "open_compiled",
    "open_onnx",
    "traced",
]
