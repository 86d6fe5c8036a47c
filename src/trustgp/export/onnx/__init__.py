"""ONNX files: written from a graph of torch operations, and run in onnxruntime."""
