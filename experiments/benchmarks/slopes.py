"""How do time, memory and bytes of a fit grow with rows, outputs, parameters, experts? The last line is JSON.

    OMP_NUM_THREADS=1 python benchmarks/slopes.py --out benchmarks/results/slopes.json   # minutes, on a CPU
    python benchmarks/slopes.py --small                                                  # does it run?

An MLP with two hidden layers and random weights, made-up rows, the default fit on one thread, without a
witness; one of n (rows), C (outputs), P (parameters, by the width) and M (experts) is raised at a time, the
others stay. "n, as it comes" leaves the number of experts to the fit. Every fit runs in a process of its own.
Seconds are those that the process was at work, memory is its peak beside what it held before the fit, bytes
are those of the model. A slope is that of a straight line through logarithms: over all points, and between
the last two.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trustgp
from trustgp_experiments.core.stage_timer import stages

BASE = {"n": 4000, "C": 4, "width": 64, "M": 16}
SERIES: dict[str, tuple[str, list[int]]] = {
    "n": ("n", [1000, 4000, 16_000, 64_000, 256_000]),
    "n, as it comes": ("n", [1000, 4000, 16_000, 64_000, 256_000]),
    "C": ("C", [1, 2, 4, 8, 16, 32]),
    "P": ("width", [32, 128, 512, 1024]),
    "M": ("M", [2, 4, 8, 16, 32, 64]),
}
SMALL = {"n": [200, 400], "n, as it comes": [200, 400], "C": [1, 2], "P": [8, 16], "M": [2, 4]}
INPUTS, HELD = 8, 300
MEASURES = ("seconds", "peak_mib", "model_mib")


def network_of(width: int, outputs: int) -> nn.Module:
    """8 inputs, two hidden layers."""
    torch.manual_seed(0)
    hidden = [nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(width, outputs)).eval()


def point(n: int, C: int, width: int, M: int | None) -> dict[str, Any]:
    """One fit here, and what it took; M is None: as many experts as the fit chooses."""
    torch.set_num_threads(1)
    network = network_of(width, C)
    inputs = torch.rand(n + HELD, INPUTS) * 2 - 1
    with torch.no_grad():
        targets = network(inputs) + 0.1 * torch.randn(n + HELD, C)
    rows, held = (inputs[:n], targets[:n]), (inputs[n:], targets[n:])
    options: dict[str, Any] = {"executor": trustgp.Threads(1), "witness": None, "progress": False}
    few = inputs[:200], targets[:200]
    trustgp.fit(network, few, validation=held, num_experts=2, **options)  # libraries are loaded
    with stages("cpu") as ledger:
        start = time.process_time()
        model = trustgp.fit(network, rows, validation=held, num_experts=M, **options)
        seconds = time.process_time() - start
    return {
        "parameters": sum(p.numel() for p in network.parameters()),
        "experts": model.num_experts,
        "seconds": seconds,
        "peak_mib": (ledger.peak("cpu") or 0) / 2**20,
        "model_mib": model.nbytes / 2**20,
    }


def slope(values: Sequence[float], measured: Sequence[float]) -> float | None:
    """Of a straight line through the logarithms, by least squares; None where a number is not positive."""
    if min(measured) <= 0:
        return None
    x, y = ([math.log(value) for value in some] for some in (values, measured))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return across / sum((a - mean_x) ** 2 for a in x)


def series(name: str, variable: str, values: Sequence[int]) -> dict[str, Any]:
    """What was measured at each value, a process each, and the slopes."""
    points = []
    for value in values:
        asked: dict[str, Any] = {**BASE, variable: value}
        if name == "n, as it comes":
            asked["M"] = None
        command = [sys.executable, __file__, "--point", json.dumps(asked)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        points.append(json.loads(done.stdout.splitlines()[-1]))
        print(name, value, points[-1], flush=True)
    along = [one["parameters"] for one in points] if name == "P" else list(values)
    measured = {key: [one[key] for one in points] for key in MEASURES}
    return {
        "values": along,
        "experts": [one["experts"] for one in points],
        **measured,
        "slopes": {key: slope(along, some) for key, some in measured.items()},
        "last": {key: slope(along[-2:], some[-2:]) for key, some in measured.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="two tiny sizes each: their slopes mean nothing")
    parser.add_argument("--point", help="one fit, asked for as JSON")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    asked = parser.parse_args()
    if asked.point is not None:
        print(json.dumps(point(**json.loads(asked.point))))
        return
    found = {
        name: series(name, variable, SMALL[name] if asked.small else values)
        for name, (variable, values) in SERIES.items()
    }
    text = json.dumps({"torch": torch.__version__, "threads": 1, "base": BASE, "series": found})
    if asked.out is not None:
        asked.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
