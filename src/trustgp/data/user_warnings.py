"""What a user is told: warnings at their own line, however deep the call, and which package is missing."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

# our own frames, and those that torch's decorators put between them
INSIDE = tuple(str(Path(file).parent) + os.sep for file in (Path(__file__).parent, torch.__file__))


def warn_user(message: str) -> None:
    """Warn from the first line outside of this package."""
    frame, level = sys._getframe(1), 2  # the caller of this function is the second level
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def optional_package(name: str, missing: str) -> Any:
    """A package that not everyone has, or an error that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(missing) from error
