"""Per-sample gradients of any module."""
