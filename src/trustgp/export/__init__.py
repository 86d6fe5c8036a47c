"""Export of the network and its error bar as one graph, for machines without Python or trustgp."""

from .compiled import Compiled, compile, open_compiled
from .detector_file import ExportedDetector
from .errors import ExportError
from .module.graph import Graph
from .onnx.export import OnnxRunner, export_onnx, open_onnx
from .trace.trace import traced

__all__ = [
    "Compiled", "ExportError", "ExportedDetector", "Graph", "OnnxRunner", "compile", "export_onnx",
    "open_compiled", "open_onnx", "traced",
]  # fmt: skip
