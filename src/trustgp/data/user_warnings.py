"""Warnings that point at the user's own line, however deep the call is that gives them."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch

# our own frames, and those that torch's decorators put between them
INSIDE = tuple(str(Path(file).parent) + os.sep for file in (Path(__file__).parent, torch.__file__))


def warn_user(message: str) -> None:
    """Warn from the first line outside of this package."""
    frame, level = sys._getframe(1), 2  # the caller of this function is the second level
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
