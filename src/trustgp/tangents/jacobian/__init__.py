"""Per-sample gradients of any module, and what is made of them."""
