"""Jumps of the error bar between experts."""
