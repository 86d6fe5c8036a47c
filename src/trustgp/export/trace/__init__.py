"""Tracing of Python code to one graph of torch operations."""
