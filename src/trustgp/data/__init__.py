"""Rows, their shapes, chunks and files."""
