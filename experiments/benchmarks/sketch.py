"""How good and how fast is a sketch? The last line is JSON.

    python benchmarks/sketch.py [--seeds 20] [--rows 24]

1. The error of the sketched kernel against the exact one, root mean square over pairs of rows and seeds and
   relative to the geometric mean of the two diagonal entries, beside that of a count sketch of all gradients.
2. Seconds for each row: a sketch of 4,096, the gradient rows themselves, and the network alone.

The network is a small convolutional one with two outputs, its weights random.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from trustgp.tangents import JacobianRows, Sketch, output_mixes
from trustgp.tangents.network import prepare
from trustgp.tangents.projections import find_projections
from trustgp.tangents.sketch import SketchMap

DIMS = (64, 256, 1024, 4096)


def make_network() -> nn.Module:
    """Three convolutions and a Linear layer: 65,714 parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 80, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(80, 2),
        ).eval()


def seconds(function: Callable[[], object], rows: int) -> float:
    """Of the faster of two calls, for each row."""
    best = math.inf
    for _ in range(2):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best / rows


def relative_error(found: Tensor, exact: Tensor) -> float:
    size = exact.diagonal().sqrt()
    return float(((found - exact) / (size[:, None] * size)).square().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=24)
    options = parser.parse_args()
    network = prepare(make_network(), "all", None)
    inputs = torch.randn(options.rows, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    mix, _ = output_mixes("shared", 2, torch.Generator())[0]
    rows = JacobianRows().bind(network, mix, inputs, torch.zeros(options.rows, 2))
    first = Sketch().bind(network, mix, inputs, torch.zeros(options.rows, 2))
    exact = rows(inputs)
    gram = exact.gram(exact)
    errors = {}
    for dim in DIMS:
        squares: dict[str, list[float]] = {}
        for seed in range(options.seeds):
            sketch = Sketch(dim, seed=seed)
            # without projections it is the count sketch that models had before there were any
            for name, by in (
                ("projected", find_projections(first.gradients, inputs, sketch.width, sketch.seed)),
                ("count", None),
            ):
                made = SketchMap(first.gradients, sketch, first.working_bytes(), by)(inputs)
                squares.setdefault(name, []).append(relative_error(made.gram(made), gram))
        errors[dim] = {name: math.sqrt(sum(lot) / len(lot)) for name, lot in squares.items()}
        print(
            f"dim {dim:5}: error {errors[dim]['projected']:.4f}, of a count sketch {errors[dim]['count']:.4f}"
        )
    with torch.no_grad():
        times = {
            "sketch": seconds(lambda: first(inputs), options.rows),
            "rows": seconds(lambda: rows(inputs), options.rows),
            "network": seconds(lambda: network.matrix(inputs), options.rows),
        }
    print(", ".join(f"{name} {1e3 * value:.2f} ms a row" for name, value in times.items()))
    result = {
        "parameters": network.num_parameters,
        "seeds": options.seeds,
        "error": errors,
        "seconds_per_row": times,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
