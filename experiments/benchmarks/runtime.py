"""Where does the time of a single prediction go? The last line is JSON.

    python benchmarks/runtime.py [--calls 300] [--rows 3000] [--outputs shared] [--network mlp]

Calls `predict` with one row, in one thread, under Python's profiler, and tells of every function of trustgp
the share of the time that was spent in it and below it, and what a call takes without the profiler. How
methods and runtimes compare is the matter of `trustgp study runtime`.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import trustgp
from trustgp_experiments.peers import cnn, mlp

SHOWN = 0.02  # the least share that is told
PACKAGE = Path(trustgp.__file__).parent


def problem(name: str, rows: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with random weights, which do not matter here, and rows."""
    generator = torch.Generator().manual_seed(0)
    if name == "mlp":
        return mlp([21, *[200] * 5, 7]).eval(), *(torch.randn(rows, n, generator=generator) for n in (21, 7))
    images, targets = (
        torch.randn(rows, 1, 28, 28, generator=generator),
        torch.randn(rows, 10, generator=generator),
    )
    return cnn().eval(), images, targets


def seconds(model: trustgp.UncertaintyModel, network: nn.Module, row: Tensor, calls: int) -> dict[str, float]:
    """Median milliseconds of `predict`, and of the network alone."""
    found: dict[str, list[float]] = {"predict": [], "network": []}
    with torch.no_grad():
        for _ in range(calls):
            for name, call in (("predict", model.predict), ("network", network)):
                began = time.perf_counter()
                call(row)
                found[name].append(time.perf_counter() - began)
    return {name: 1e3 * median(values) for name, values in found.items()}


def shares(model: trustgp.UncertaintyModel, row: Tensor, calls: int) -> list[dict[str, Any]]:
    """Functions of trustgp by their share in all of `predict`, the largest first."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(calls):
        model.predict(row)
    profile.disable()
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    inside = {key: value for key, value in stats.items() if key[0].startswith(str(PACKAGE))}
    whole = max(value[3] for value in inside.values())
    table = [
        {
            "function": f"{'.'.join(Path(file).relative_to(PACKAGE).with_suffix('').parts)}.{name}",
            "share": round(value[3] / whole, 3),
            "calls": round(value[1] / calls, 2),
        }
        for (file, _, name), value in inside.items()
        if value[3] >= SHOWN * whole and not name.startswith("<")
    ]
    return sorted(table, key=lambda line: -line["share"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rows", type=int, default=3_000)
    parser.add_argument("--outputs", default="shared", choices=["shared", "separate", "pseudo"])
    parser.add_argument("--network", default="mlp", choices=["mlp", "cnn"])
    parser.add_argument("--out", type=Path, help="where to write the JSON too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    network, inputs, targets = problem(options.network, options.rows)
    model = trustgp.fit(
        network, (inputs, targets), outputs=options.outputs, witness=None, budget="16 MiB", progress=False
    )
    row = inputs[:1]
    for _ in range(20):
        model.predict(row)
    result = {
        "benchmark": "runtime",
        "torch": torch.__version__,
        "network": options.network,
        "outputs": options.outputs,
        "rows": options.rows,
        "experts": model.num_experts,
        "milliseconds": seconds(model, network, row, options.calls),
        "where": shares(model, row, options.calls),
    }
    for line in result["where"]:
        print(f"{line['share']:6.1%}  {line['calls']:6.2f} calls  {line['function']}")
    print(result["milliseconds"])
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
