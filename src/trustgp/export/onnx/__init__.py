"""ONNX files: from a graph of torch operations, and in onnxruntime."""
