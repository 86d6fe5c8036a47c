"""How long do 20,000 single calls of a shipped model take, and does it stay the same? The last line is JSON.

    python benchmarks/calls.py [--calls 20000] [--predict-calls 2000] [--rows 4000] [--out FILE]

An MLP 21-5x200-7 with its error bar, exported to one ONNX file and called by onnxruntime in one thread; then
`predict` of the same model, fewer times. Published are the time to load, the first call, p50, p99, p99.9 and
the longest, what memory grew by, and whether 1,000 repeats gave the same bits. Times are measured, never
promised: on a machine that does other work too the longest call is that of the machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from endurance import endure

import trustgp
from trustgp import export_onnx
from trustgp_experiments.peers import mlp, train
from trustgp_experiments.studies.runtime.calls import onnx_session

INPUTS = 64  # different ones, in turn


def fitted(rows: int) -> tuple[trustgp.UncertaintyModel, torch.Tensor]:
    """A model of smooth made-up torques, and inputs to ask about."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows + 500 + INPUTS, 21, generator=generator)
    weights = torch.randn(21, 7, generator=generator) / 21**0.5
    targets = (inputs @ weights).sin() + 0.05 * torch.randn(len(inputs), 7, generator=generator)
    network = train(mlp([21, *[200] * 5, 7]), inputs[:rows], targets[:rows], epochs=20, learning_rate=3e-3)
    held = slice(rows, rows + 500)
    model = trustgp.fit(
        network,
        (inputs[:rows], targets[:rows]),
        validation=(inputs[held], targets[held]),
        outputs="pseudo",
        witness=None,
        budget="16 MiB",
        progress=False,
    )
    return model, inputs[-INPUTS:]


def exported(model: trustgp.UncertaintyModel, inputs: torch.Tensor, calls: int, file: Path) -> dict[str, Any]:
    """What onnxruntime does."""
    export_onnx(model, file, inputs[:2])
    began = time.perf_counter()
    session = onnx_session(file, threads=1)
    load = time.perf_counter() - began
    name = session.get_inputs()[0].name
    feeds = [{name: inputs[i : i + 1].numpy()} for i in range(len(inputs))]
    found = endure(lambda feed: session.run(None, feed), feeds, calls=calls)
    return {"load_ms": round(1e3 * load, 2), "file_bytes": file.stat().st_size, **found.table()}


def predicted(model: trustgp.UncertaintyModel, inputs: torch.Tensor, calls: int) -> dict[str, Any]:
    """What `predict` does."""

    def call(row: torch.Tensor) -> list[Any]:
        said = model.predict(row)
        return [said.mean.numpy(), said.variance.numpy()]

    return endure(call, [inputs[i : i + 1] for i in range(len(inputs))], calls=calls).table()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--predict-calls", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--out", type=Path, help="where to write the JSON too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, inputs = fitted(options.rows)
    with tempfile.TemporaryDirectory() as folder:
        result = {
            "benchmark": "calls",
            "torch": torch.__version__,
            "rows": options.rows,
            "experts": model.num_experts,
            "model_bytes": model.nbytes,
            "threads": 1,
            "onnxruntime": exported(model, inputs, options.calls, Path(folder) / "model.onnx"),
            "predict": predicted(model, inputs, options.predict_calls),
        }
    for name, value in result.items():
        print(f"{name}: {value}")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
