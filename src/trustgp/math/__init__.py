"""Tensors in, tensors out: the formulas, without files, devices, loggers or settings."""
