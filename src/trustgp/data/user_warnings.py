"""Messages for users: warnings at their own line of code, missing packages, suggestions for wrong names."""

import contextlib
import difflib
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])
# our own frames, and those that decorators put between them
LIBRARY_FILES = tuple(str(Path(file).parent) + os.sep for file in (Path(__file__).parent, torch.__file__))
LIBRARY_FILES += (contextlib.__file__,)
NO_HINTS: Mapping[str, str] = {}


def warn_user(message: str) -> None:
    """Warn from the first line outside of this package."""
    frame, level = sys._getframe(1), 2  # the caller of this function is the second level
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LIBRARY_FILES):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def add_note(error: Exception, note: str) -> None:
    """Call `error.add_note(note)`. Python 3.10 prints no notes: there the message ends with it as well."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
        return
    vars(error)["__notes__"] = [*vars(error).get("__notes__", []), note]
    if error.args:
        error.args = (f"{error.args[0]}\n{note}", *error.args[1:])


def optional_package(name: str, missing: str) -> Any:
    """Optional package `name`; an ImportError with the text `missing` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(missing) from error


def nearest_name(given: str, allowed: Iterable[str]) -> str:
    """Question that suggests the allowed name closest to a misspelt one; empty if none is close."""
    matches = difflib.get_close_matches(given.lower(), list(allowed), n=1)
    return f' Did you mean "{matches[0]}"?' if matches else ""


def explain_call(
    rows: str, how: str = "Inputs and targets are one pair", hints: Mapping[str, str] = NO_HINTS
) -> Callable[[Function], Function]:
    """Decorator that explains wrong calls: for too many arguments the TypeError shows how to pass `rows`, for
    an unknown name it has the hint for this name, or the closest name."""

    def explained(function: Function) -> Function:
        parameters = inspect.signature(function).parameters
        positional = [one.name for one in parameters.values() if one.kind is not one.KEYWORD_ONLY]
        name, pair = function.__name__, f"{how}: {rows}"
        example = "progress" if "progress" in parameters else "batch_size"

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if len(args) > len(positional):
                shown = ", ".join(place for place in positional if place != "self")
                several = sum(isinstance(one, torch.nn.Module) for one in args) > 1 and "network" in shown
                tip = "Several networks are one list: fit([a, b, c], (inputs, targets))" if several else pair
                raise TypeError(f"{name}() takes {shown}; all else is named, such as {example}=. {tip}.")
            for unknown in (option for option in options if option not in parameters):
                hint = hints.get(unknown) or nearest_name(unknown, parameters) or f" {pair}."
                allowed = ", ".join(one for one in parameters if one not in positional)
                raise TypeError(f"{name}() has no option {unknown}=.{hint} There are {allowed}.")
            return function(*args, **options)

        return call  # pyright: ignore[reportReturnType]

    return explained
