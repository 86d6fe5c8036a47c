"""How much faster is an exported model than `predict` of an older version? The last line is JSON.

    git worktree add OLD 6abbd2c
    python benchmarks/before.py --before OLD/src [--calls 200] [--rows 6000] [--outputs shared]

Both versions fit the same model with the same seeds: an MLP 21-5x200-7 on made-up torques, with `--outputs`
and `--budget` as given, which without any are the defaults. Four are asked in turn for one row each, so that
what else the machine does falls on all: `predict` of the older version, with this model ("before") and with a
default fit ("before, default"); `predict` of this version; and this version's ONNX file in onnxruntime. Each
runs in a process of its own, in one thread. Ratios are medians of those within a round, of the seconds that
the calling thread was at work; milliseconds by the clock are told beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROLES = ("before", "before, default", "predict", "exported")


def fitted(rows: int, outputs: str, budget: str | None) -> tuple[Any, Any]:
    """The model, and a row to ask about; only what both versions have is used."""
    import torch

    import trustgp
    from trustgp.baselines import mlp, train

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows + 500, 21, generator=generator)
    weights = torch.randn(21, 7, generator=generator) / 21**0.5
    targets = (inputs @ weights).sin() + 0.05 * torch.randn(len(inputs), 7, generator=generator)
    network = train(mlp([21, *[200] * 5, 7]), inputs[:rows], targets[:rows], epochs=10, learning_rate=3e-3)
    options: dict[str, Any] = {"outputs": outputs, "budget": budget, "progress": False}
    if budget is not None:
        options["witness"] = None
    held = inputs[rows:], targets[rows:]
    return trustgp.fit(network, (inputs[:rows], targets[:rows]), validation=held, **options), inputs[:1]


def serve(role: str, rows: int, outputs: str, budget: str | None) -> None:
    """Make a call for each line that comes in, and answer with its seconds and its thread's."""
    import torch

    torch.set_num_threads(1)
    model, row = fitted(rows, outputs, budget)

    def call() -> object:
        return model.predict(row)

    if role == "exported":
        import trustgp
        from trustgp.studies.runtime_calls import onnx_session

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            trustgp.export_onnx(model, file, row)
            session = onnx_session(file, threads=1)
        feed = {session.get_inputs()[0].name: row.numpy()}

        def call() -> object:
            return session.run(None, feed)

    for _ in range(10):
        call()
    print("ready", flush=True)
    for _ in sys.stdin:
        call()  # what it needs is then in the caches
        began, busy = time.perf_counter(), time.thread_time()
        call()
        print(json.dumps([time.perf_counter() - began, time.thread_time() - busy]), flush=True)


def started(role: str, source: Path, options: argparse.Namespace) -> subprocess.Popen[str]:
    """A process with this role, on this source."""
    given = [f"--role={role}", f"--rows={options.rows}"]
    if role != "before, default":
        given += [f"--outputs={options.outputs}"]
        given += [] if options.budget is None else [f"--budget={options.budget}"]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, *given],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def asked(process: subprocess.Popen[str]) -> list[float]:
    """Seconds of one call, by the clock and of its thread."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="src of the older version")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rows", type=int, default=6_000)
    parser.add_argument("--outputs", default="shared", choices=["shared", "separate", "pseudo"])
    parser.add_argument("--budget", help='of both fits, such as "16 MiB"; then without a witness')
    parser.add_argument("--commit", default="6abbd2c", help="of the older version, to be told")
    parser.add_argument("--out", type=Path, help="where to write the JSON too")
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role is not None:
        serve(options.role, options.rows, options.outputs, options.budget)
        return
    if options.before is None or not (options.before / "trustgp").is_dir():
        parser.error(f"--before={options.before} holds no package trustgp; give the older version's src.")
    here = Path(__file__).resolve().parent.parent / "src"
    processes = {}
    for role in ROLES:  # one after another: a fit uses all cores
        processes[role] = started(
            role, options.before.resolve() if role.startswith("before") else here, options
        )
        assert processes[role].stdout.readline().strip() == "ready"
    rounds = [{role: asked(process) for role, process in processes.items()} for _ in range(options.calls)]
    for process in processes.values():
        process.stdin.close()
        process.wait()
    result = {
        "benchmark": "before",
        "before": options.commit,
        "rows": options.rows,
        "outputs": options.outputs,
        "budget": options.budget,
        "calls": options.calls,
        "milliseconds": {role: 1e3 * median(r[role][0] for r in rounds) for role in ROLES},
        "busy_milliseconds": {role: 1e3 * median(r[role][1] for r in rounds) for role in ROLES},
        "times_faster": {
            f"{role} than {old}": round(median(r[old][1] / r[role][1] for r in rounds), 2)
            for role in ROLES[2:]
            for old in ROLES[:2]
        },
    }
    for name, value in result.items():
        print(f"{name}: {value}")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
