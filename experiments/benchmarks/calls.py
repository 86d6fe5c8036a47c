"""Times of 20,000 single calls of a shipped model, and whether answers repeat. The last line is JSON.

    python experiments/benchmarks/calls.py [--calls 20000] [--predict-calls 2000] [--rows 4000]

An MLP 21-5x200-7 with its error bar, exported to one ONNX file and called by onnxruntime in one thread; then
`predict` of the same model, fewer times. Reported are the time to load, the first call, p50, p99, p99.9 and
the longest, how much memory grew, and whether 1,000 repeats gave the same bits. Times are measured, not
promised: other load on the machine lengthens the longest call.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import trustgp
from trustgp import export_onnx
from trustgp_experiments.core.benchmark import print_figures
from trustgp_experiments.core.stage_timer import status_bytes
from trustgp_experiments.peers import mlp, train
from trustgp_experiments.studies.runtime.calls import onnx_session

NUM_INPUTS, NUM_VALIDATION = 64, 500  # inputs are called in turn
REPEATS = 1000  # further calls on the first input, whose answers are compared bit by bit
MAX_GROWTH = 2**20  # bytes


def endure(
    call: Callable[[Any], list[np.ndarray]], inputs: list[Any], calls: int, repeats: int = REPEATS
) -> dict[str, Any]:
    """Make many single calls in this thread: times, growth of memory, and whether answers repeat.

    Memory is compared between the end of the first fifth of the calls, when caches and arenas are full, and
    the end of them all; every time is written into an array that was allocated before.
    """
    began = time.perf_counter()
    call(inputs[0])
    first = time.perf_counter() - began
    seconds, before = np.zeros(calls), None
    for number in range(calls):
        if number == calls // 5:
            gc.collect()
            before = status_bytes("VmRSS")
        given, began = inputs[number % len(inputs)], time.perf_counter()
        call(given)
        seconds[number] = time.perf_counter() - began
    gc.collect()
    after = status_bytes("VmRSS")
    answers = ([np.array(array).tobytes() for array in call(inputs[0])] for _ in range(1 + repeats))
    expected = next(answers)
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    times = {name: np.quantile(seconds, share, method="inverted_cdf") for name, share in shares.items()}
    return {
        "calls": calls,
        "milliseconds": {name: round(1e3 * float(t), 4) for name, t in {"first": first, **times}.items()},
        "growth_bytes": None if before is None or after is None else max(0, after - before),
        "same_over_repeats": all([answer == expected for answer in answers]),
        "repeats": repeats,
    }


def fitted(rows: int) -> tuple[trustgp.UncertaintyModel, torch.Tensor]:
    """A model of smooth synthetic torques, and inputs for its calls."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows + NUM_VALIDATION + NUM_INPUTS, 21, generator=generator)
    weights = torch.randn(21, 7, generator=generator) / 21**0.5
    targets = (inputs @ weights).sin() + 0.05 * torch.randn(len(inputs), 7, generator=generator)
    network = train(mlp([21, *[200] * 5, 7]), inputs[:rows], targets[:rows], epochs=20, learning_rate=3e-3)
    parts = [(inputs[part], targets[part]) for part in (slice(rows), slice(rows, rows + NUM_VALIDATION))]
    options: dict[str, Any] = {"outputs": "pseudo", "witness": None, "budget": "16 MiB", "progress": False}
    return trustgp.fit(network, parts[0], validation=parts[1], **options), inputs[-NUM_INPUTS:]


def exported(model: trustgp.UncertaintyModel, inputs: torch.Tensor, calls: int, file: Path) -> dict[str, Any]:
    export_onnx(model, file, inputs[:2])
    began = time.perf_counter()
    session = onnx_session(file, threads=1)
    load = round(1e3 * (time.perf_counter() - began), 2)
    name = session.get_inputs()[0].name
    feeds = [{name: row.numpy()} for row in inputs.split(1)]
    table = endure(lambda feed: session.run(None, feed), feeds, calls)
    return {"load_ms": load, "file_bytes": file.stat().st_size, **table}


def predicted(model: trustgp.UncertaintyModel, row: torch.Tensor) -> list[Any]:
    prediction = model.predict(row)
    return [prediction.mean.numpy(), prediction.variance.numpy()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--predict-calls", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=4_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, inputs = fitted(options.rows)
    about = {"rows": options.rows, "experts": model.num_experts, "model_bytes": model.nbytes}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        result = {
            **{"benchmark": "calls", "torch": torch.__version__, "threads": 1, **about},
            "onnxruntime": exported(model, inputs, options.calls, file),
            "predict": endure(lambda row: predicted(model, row), [*inputs.split(1)], options.predict_calls),
        }
    print_figures(**result)


if __name__ == "__main__":
    main()
