"""Does a prediction cost more with more classes? Time and memory beyond the network's own.

Run: python benchmarks/classes.py [--classes 10 100 1000 3000] [--rows 2000] [--new 1000]
The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings

import torch
from torch import nn

import trustgp

WIDTH, INPUTS = 256, 64


def make(classes: int, rows: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network of which only the last layer depends on the number of classes, and labels it mostly gets."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes)
    ).eval()
    inputs = torch.randn(rows, INPUTS, generator=generator)
    with torch.no_grad():
        logits = network(inputs)
    noise = logits.std() * torch.randn(logits.shape, generator=generator)
    return network, inputs, (logits + noise).argmax(dim=1)


def seconds(function, repeats: int = 5) -> float:
    """The shortest of a few runs: the machine may be busy."""
    function()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return min(found)


def measure(classes: int, rows: int, new: int, outputs: str | None) -> dict[str, float]:
    """One number of classes."""
    network, inputs, labels = make(classes, rows + 500)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of many classes some have no row
        model = trustgp.fit(
            network,
            (inputs[:rows], labels[:rows]),
            likelihood=trustgp.Classification(),
            validation=(inputs[rows:], labels[rows:]),
            outputs=outputs,
            progress=False,
        )
    fitted = time.perf_counter() - start
    rows_in = inputs[:new]
    with torch.no_grad():
        alone = seconds(lambda: network(rows_in))
        whole = seconds(lambda: model.predict(rows_in))
        answer = seconds(lambda: model.predict(rows_in).probabilities)
    return {
        "classes": classes,
        "fit_s": fitted,
        "network_ms": 1e3 * alone,
        "beyond_ms": 1e3 * (whole - alone),
        "probabilities_ms": 1e3 * (answer - whole),
        "model_mib": model.nbytes / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000, 3000])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--new", type=int, default=1000)
    parser.add_argument("--outputs", default=None, help="None: what trustgp chooses")
    options = parser.parse_args()
    found = []
    for classes in options.classes:
        found.append(measure(classes, options.rows, options.new, options.outputs))
        one, first = found[-1], found[0]
        print(
            f"{classes:5d} classes: fit {one['fit_s']:.1f} s, network {one['network_ms']:.1f} ms, beyond it "
            f"{one['beyond_ms']:.1f} ms ({one['beyond_ms'] / first['beyond_ms']:.2f} x), softmax "
            f"{one['probabilities_ms']:.1f} ms, model {one['model_mib']:.1f} MiB "
            f"({one['model_mib'] / first['model_mib']:.2f} x)",
            flush=True,
        )
    print(json.dumps({"rows": options.rows, "new": options.new, "results": found}))


if __name__ == "__main__":
    main()
