"""Is the error bar right without validation rows, and with few of them? The last line is JSON.

    [TRUSTGP_DATA=...] python benchmarks/honesty.py [--seeds 3] [--parts memorised few]

Protocol, written before any figure. Every data set is split by the seed; inputs and targets are standardised
by the training rows. The last 2,000 rows, or half of them where there are fewer, are the test rows and
nothing else. NLL is by `log_prob`, coverage that of the 95 % interval, both of the network's own output and
corrected.

* memorised: eight networks 3-128-128-2 (ReLU, Adam, 800 steps at 1e-3) on 60, 100, 150 or 300 independent
  rows of smooth functions with noise of 0.1 or 0.3; 2,000 new rows; no validation rows.
* few: diabetes, Friedman 1 to 3 (400 training rows, noise of about a tenth of the spread), Snelson, and
  thinned arms (every 20th row of SARCOS and Barrett); networks of two layers of 64 (Adam, 1,500 steps at
  3e-3, weight decay 1e-4); 0, 30, 100 and 300 validation rows, as far as there are so many.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from itertools import pairwise

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import trustgp

VALIDATION = (0, 30, 100, 300)
Pair = tuple[Tensor, Tensor]


def trained(sizes: list[int], rows: Pair, *, seed: int, steps: int, rate: float, decay: float) -> nn.Module:
    """A ReLU network, by full batches."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pairs = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
        network = nn.Sequential(*[layer for pair in pairs for layer in pair][:-1])
    optimiser = torch.optim.AdamW(network.parameters(), rate, weight_decay=decay)
    for _ in range(steps):
        optimiser.zero_grad()
        (network(rows[0]) - rows[1]).square().mean().backward()
        optimiser.step()
    return network.eval()


def scores(model: trustgp.UncertaintyModel, rows: Pair) -> dict[str, float]:
    """NLL and coverage, about the network's output and corrected."""
    found = {}
    said = model.predict(rows[0])
    for name, one in (("", said), ("corrected_", said.corrected)):
        lower, upper = one.interval(0.95)
        found[f"{name}nll"] = float(-one.log_prob(rows[1]).mean())
        found[f"{name}coverage"] = float(((lower <= rows[1]) & (rows[1] <= upper)).double().mean())
    return found


def fitted(
    network: nn.Module, rows: Pair, seed: int, validation: Pair | None = None
) -> trustgp.UncertaintyModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return trustgp.fit(network, rows, validation=validation, seed=seed, progress=False)


def memorised(seed: int) -> dict[str, float]:
    """One network that has learnt its rows by heart."""
    n, noise = (60, 100, 150, 300)[seed % 4], (0.1, 0.3)[seed // 4 % 2]
    generator = torch.Generator().manual_seed(seed)
    mix, phase = torch.randn(3, 2, generator=generator), 6 * torch.rand(2, generator=generator)
    x = 2 * torch.rand(n + 2000, 3, generator=generator) - 1
    y = torch.sin(2 * x @ mix + phase) + 0.3 * x[:, :1] * x[:, 1:2]
    y = y + noise * torch.randn(y.shape, generator=generator)
    train, test = (x[:n], y[:n]), (x[n:], y[n:])
    network = trained([3, 128, 128, 2], train, seed=seed, steps=800, rate=1e-3, decay=0.0)
    return {"rows": n, "noise": noise, **scores(fitted(network, train, seed), test)}


def tables(seed: int) -> dict[str, Pair]:
    """The data sets of `few`, rows in a random order."""
    from sklearn import datasets

    found: dict[str, Pair] = {
        "diabetes": tuple(map(torch.from_numpy, datasets.load_diabetes(return_X_y=True)))
    }
    for name, spread in (("friedman1", 0.5), ("friedman2", 40.0), ("friedman3", 0.03)):
        make = getattr(datasets, f"make_{name}")
        found[name] = tuple(map(torch.from_numpy, make(2700, noise=spread, random_state=seed)))
    if os.environ.get("TRUSTGP_DATA"):
        from trustgp_experiments.datasets import load

        for name in ("snelson", "sarcos", "barrett"):
            recording = load(name)
            step = 1 if name == "snelson" else 20
            found[name] = recording.inputs[::step], recording.targets[::step]
    order = torch.Generator().manual_seed(seed)
    shuffled = {}
    for name, (x, y) in found.items():
        place = torch.randperm(len(x), generator=order)
        shuffled[name] = x.reshape(len(x), -1)[place], y.reshape(len(y), -1)[place]
    return shuffled


def few(seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """Of every data set, by how many validation rows there were."""
    result = {}
    for name, (x, y) in tables(seed).items():
        test = min(2000, len(x) // 2)
        held = min(max(VALIDATION), (len(x) - test) // 3)
        n = min(400, len(x) - test - held)
        centre, spread = ([f(v[:n].double(), dim=0) for v in (x, y)] for f in (torch.mean, torch.std))
        x, y = ((v.double() - c).div(s).float() for v, c, s in zip((x, y), centre, spread, strict=True))
        train, test_rows = (x[:n], y[:n]), (x[-test:], y[-test:])
        sizes = [x.shape[1], 64, 64, y.shape[1]]
        network = trained(sizes, train, seed=seed, steps=1500, rate=3e-3, decay=1e-4)
        result[name] = {}
        for k in [k for k in VALIDATION if k <= held]:
            validation = (x[n : n + k], y[n : n + k]) if k else None
            result[name][str(k)] = scores(fitted(network, train, seed, validation), test_rows)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--networks", type=int, default=8, help="that have learnt their rows by heart")
    parser.add_argument("--parts", nargs="+", default=["memorised", "few"], choices=["memorised", "few"])
    arguments = parser.parse_args()
    console, result = Console(width=120), {}
    if "memorised" in arguments.parts:
        runs = [memorised(seed) for seed in track(range(arguments.networks), "memorised", console=console)]
        shown = Table(
            "rows", "noise", "NLL", "coverage", "corrected NLL", "coverage", title="learnt by heart"
        )
        for run in runs:
            shown.add_row(*(f"{value:.3g}" for value in run.values()))
        console.print(shown)
        result["memorised"] = runs
    if "few" in arguments.parts:
        runs = [few(seed) for seed in track(range(arguments.seeds), "few validation rows", console=console)]
        shown = Table(
            "data", "validation rows", "NLL", "coverage", "lowest", "corrected NLL", "coverage", "lowest"
        )
        for name in runs[0]:
            for k in runs[0][name]:
                each = [run[name][k] for run in runs]
                row = []
                for lead in ("", "corrected_"):
                    cover = [one[f"{lead}coverage"] for one in each]
                    row += [
                        sum(one[f"{lead}nll"] for one in each) / len(each),
                        sum(cover) / len(cover),
                        min(cover),
                    ]
                shown.add_row(name, k, *(f"{value:.3f}" for value in row))
        console.print(shown)
        result["few"] = runs
    print(json.dumps({"torch": torch.__version__, **result}))


if __name__ == "__main__":
    main()
