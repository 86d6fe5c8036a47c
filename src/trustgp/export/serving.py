"""How long a model takes for one row, in the runtime that will serve it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..data.rows import Rows
from ..data.trees import Inputs
from ..executors import Threads
from ..executors.base import Inline
from ..fitting.duration import timed
from ..model import UncertaintyModel
from ..state.model_state import ModelState, predict
from . import compiled
from .errors import needs
from .onnx.export import export_onnx, open_onnx

RUNTIMES = ("eager", "onnx", "compiled")
CALLS = 30  # of each model that are timed
EXAMPLES = 4  # rows that an exported graph is checked on


def check_runtime(runtime: str, *, timed: bool) -> None:
    """Refuse one that is unknown, or, where times are asked for, whose packages are missing."""
    if runtime not in RUNTIMES:
        raise ValueError(f'runtime="{runtime}"; allowed are {", ".join(RUNTIMES)}.')
    if timed and runtime == "onnx":
        needs("onnx", "onnxruntime")


def times(
    states: Sequence[ModelState], rows: Rows, *, calls: int = CALLS, runtime: str = "eager"
) -> list[float]:
    """Median seconds of an answer about one row, of each model: they take turns, on one thread.

    On a CPU it is the time of that thread, which others on the machine do not add to.
    """
    gpu = states[0].device.type == "cuda" and runtime != "onnx"
    ones = [rows.take(torch.tensor([k % len(rows)])) for k in range(calls + 1)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        example = rows.take(torch.arange(min(EXAMPLES, len(rows))))
        runners = [served(state, runtime, example, Path(folder) / str(k)) for k, state in enumerate(states)]
        device = states[0].device if gpu else torch.device("cpu")
        clock = time.perf_counter if gpu else time.thread_time

        def measure(one: Inputs) -> list[float]:
            return [timed(partial(runner, one), device, clock) for runner in runners]

        spent = dict((Inline() if gpu else Threads(1)).run(measure, ones))
    # the first call of each warms up
    table = torch.tensor([spent[k] for k in range(1, calls + 1)], dtype=torch.float64)
    return table.median(dim=0).values.tolist()


def served(state: ModelState, runtime: str, example: Inputs, path: Path) -> Callable[[Inputs], Any]:
    """What answers about rows in a runtime; a file, if it needs one, goes to the path."""
    if runtime == "eager":
        return partial(predict, state)
    if runtime == "onnx":
        return open_onnx(export_onnx(UncertaintyModel(state), path.with_suffix(".onnx"), example), threads=1)
    package = compiled.compile(UncertaintyModel(state), path.with_suffix(".pt2"), example)
    return compiled.open_compiled(package)
