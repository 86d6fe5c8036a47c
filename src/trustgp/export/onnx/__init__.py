"""From a graph of torch operations to an ONNX file, and back to answers."""
