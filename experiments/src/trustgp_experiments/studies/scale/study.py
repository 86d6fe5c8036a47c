"""`trustgp study scale`: how do time and memory of a fit grow with the rows, at fixed rows per expert?"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import nn

from trustgp import metrics
from trustgp.api import fit
from trustgp.executors import Threads
from trustgp.model import UncertaintyModel

from ...core.arm import ArmRows, scaled_rows
from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.recipes import Pair, mlp_recipe
from ...core.result import Column, Result, Setting, Table, make_result, prose
from ...core.stage_timer import stages
from ...datasets import simulate, standardise
from ...peers import ConstantNoise

HELD_ROWS = 20_000  # that validate, and as many that test
STRIDE = 10  # of these, since neighbours in time hardly differ
SCALING_ROWS = 100_000  # the first training rows, whose mean and spread scale everything
BATCH = 1024
STEPS = {"cuda": 10_000, "cpu": 1_500}
TRAINED_ROWS = 500_000  # at most, evenly spaced
WARM_ROWS = 2_000  # of a small fit that loads libraries before anything is timed
MAX_GROWTH = 2.2  # of the time when the rows double
NOISE = "network + noise"
ROWS = {"rows": Column("rows", digits=0)}
TIMES = [
    Measure("experts", Column("experts", digits=0)),
    Measure("seconds", Column("time", digits=2, unit="s")),
    Measure("growth", Column("over half the rows", digits=2, unit="x")),
    Measure("speed", Column("rows per second", digits=0)),
    Measure("trustgp", Column("NLL: trustgp", digits=3)),
    Measure(NOISE, Column(f"NLL: {NOISE}", digits=3)),
]
SIZES = [
    Measure("model", Column("model", digits=0, unit="MB")),
    Measure("held_rows", Column("rows held by an expert", digits=0)),
]


@dataclass(frozen=True)
class ScaleSize:
    """Size of the study."""

    experts: tuple[int, ...]  # numbers of them, each twice the one before
    expert_rows: int = 3_906  # training rows for each of them
    expert_bytes: int = 16 * 2**20  # the budget of each of them; a fit gets so many times as much
    hidden: tuple[int, ...] = (200,) * 5  # widths of the network's hidden layers
    held: int = HELD_ROWS  # rows that validate, and as many that test
    steps: int | None = None  # of the network's training; None: by device

    @property
    def rows(self) -> int:
        return self.expert_rows * self.experts[-1]


QUICK = ScaleSize((2, 4), 150, 2**21, (16, 16), held=100, steps=60)


def size_for(device: str, *, quick: bool) -> ScaleSize:
    """Size with up to two million rows on a GPU and up to 125,000 elsewhere."""
    end = 10 if torch.device(device).type == "cuda" else 6
    return QUICK if quick else ScaleSize(tuple(2**k for k in range(1, end)))


def run(setting: Setting) -> Result:
    """Fit one network on more and more rows, for each seed."""
    size, device = size_for(setting.device, quick=setting.quick), torch.device(setting.device).type
    numbers = {"device": device, "seeds": [one_seed(setting, size, s) for s in range(setting.seeds)]}
    rows = _grid(numbers).along("rows")
    title = "Does the time of a fit grow in step with the rows?"
    steps, workers = size.steps or STEPS[device], f"{Threads().workers} threads"
    workers = "the GPU" if device == "cuda" else workers
    protocol = prose(__name__, setting=setting, size=size, steps=steps, workers=workers)
    return make_result(setting, "scale", title, protocol, numbers, summarise, rows=rows)


def one_seed(setting: Setting, size: ScaleSize, seed: int) -> list[dict[str, Any]]:
    """Measurements for each number of rows, the smallest first, as JSON values; each is cached."""
    place, device = {"seed": seed, **setting.place}, torch.device(setting.device).type

    @cache  # made when they are first needed
    def ground() -> tuple[ArmRows, nn.Module]:
        rows = scale_rows(size.rows, seed=seed, held=size.held)
        network = scale_network(rows.train, size.hidden, size.steps or STEPS[device], **place)
        warm = {"num_experts": 2, "device": setting.device, "progress": False}
        fit_first(network, rows, min(WARM_ROWS, size.expert_rows), **warm)
        return rows, network

    def measure(experts: int) -> dict[str, Any]:
        rows, network = ground()
        n, budget = experts * size.expert_rows, experts * size.expert_bytes
        with stages(setting.device) as ledger:
            model = fit_first(network, rows, n, num_experts=experts, budget=budget, **place)
        counts = {"rows": n, "asked": experts, "experts": model.num_experts, "failed": len(model.failed)}
        costs = {"seconds": ledger.total, "stages": ledger.seconds, "peak": ledger.peak}
        sizes = {"model_bytes": model.nbytes, "held_rows": fmean(held_rows(model))}
        return {**counts, **costs, **sizes, "nll": likelihoods(model, network, rows)}

    entries = []
    for experts in size.experts:
        entries.append(setting.once(f"{experts}-{seed}", partial(measure, experts)))
        setting.console.print(f"seed {seed}: {entries[-1]['rows']} rows, {entries[-1]['seconds']:.1f} s")
    return entries


def _grid(numbers: Mapping[str, Any]) -> Grid:
    return Grid.of(("rows",), {(): numbers["seeds"]}, _read)


def _read(entries: list[dict[str, Any]]) -> dict[tuple[int], dict[str, Any]]:
    """Numbers by rows: memory in megabytes, and time also relative to that of half the rows."""
    growth = [None, *(after["seconds"] / before["seconds"] for before, after in pairwise(entries))]
    cells = {}
    for entry, grown in zip(entries, growth, strict=True):
        sizes = {"model": entry["model_bytes"]}
        sizes |= {f"peak, {place}": entry["peak"].get(place) for place in entries[0]["peak"]}
        cells[entry["rows"],] = {
            **{key: entry[key] for key in ("experts", "seconds", "held_rows")},
            **entry["nll"],
            "growth": grown,
            "speed": entry["rows"] / entry["seconds"],
            **{f"time of {stage}": entry["stages"].get(stage, 0.0) for stage in entries[0]["stages"]},
            **{key: None if size is None else size / 1e6 for key, size in sizes.items()},
        }
    return cells


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Tables of time, stages and memory, with a row for each number of rows; and findings."""
    grid, first = _grid(numbers), numbers["seeds"][0][0]
    stages = [Measure(f"time of {name}", Column(name, digits=2, unit="s")) for name in first["stages"]]
    peaks = [Measure(n, Column(n, digits=0, unit="MB")) for n in (f"peak, {p}" for p in first["peak"])]
    note = "At the peak, beside what there was before the fit."
    tables = [
        Pivot("Time, and how it grows", ROWS, TIMES).table(grid),
        Pivot("Time of each stage", ROWS, stages).table(grid),
        Pivot("Memory", ROWS, [*peaks, *SIZES], note=note).table(grid),
    ]
    return tables, _findings(grid, list(first["stages"]), f"peak, {numbers['device']}")


def _findings(grid: Grid, stages: list[str], peak: str) -> list[str]:
    rows = grid.along("rows")
    growth = {n: grid.mean((n,), "growth") for n in rows[1:]}
    worst = max(growth, key=growth.__getitem__)
    last, before = (rows[-1],), rows[rows.index(worst) - 1]
    verdict = "as promised" if growth[worst] <= MAX_GROWTH else "more than promised"
    seconds, ours, noise, model = (grid.mean(last, key) for key in ("seconds", "trustgp", NOISE, "model"))
    shares = {stage: grid.mean(last, f"time of {stage}") / seconds for stage in stages}
    longest = max(shares, key=shares.__getitem__)
    peaks = [grid.mean((n,), peak) for n in rows if grid.values((n,), peak) is not None]
    memory = f"At its peak the fit takes {peaks[0]:.0f} MB for the fewest rows and" if peaks else ""
    memory += f" {peaks[-1]:.0f} MB for the most, of which the model is {model:.0f} MB." if peaks else ""
    sentences = [
        f"Twice the rows take {fmean(growth.values()):.2f} times as long on average and {growth[worst]:.2f} "
        f"times at most, from {before} rows to {worst}: {verdict} ({MAX_GROWTH}).",
        f"{rows[-1]} rows take {seconds:.1f} s, {rows[-1] / seconds:.0f} rows per second; "
        f"{100 * shares[longest]:.0f} % of it is {longest}.",
        memory,
        f"With all rows the held-out NLL is {ours:.3f} per torque; with one constant noise it is "
        f"{noise:.3f}.",
    ]
    return [sentence for sentence in sentences if sentence]


def scale_rows(rows: int, *, seed: int, held: int = HELD_ROWS) -> ArmRows:
    """Slow motions; a larger set of training rows begins with the smaller. Other rows validate and test."""
    recording = simulate(rows=rows, seed=seed, blocks=True)
    scaling = standardise(recording.inputs[:SCALING_ROWS], recording.targets[:SCALING_ROWS])
    half = held * STRIDE
    others = simulate(rows=2 * half, seed=seed + 2**31, blocks=True)  # a seed that nothing else uses
    validation, test = (scaled_rows(scaling, others, slice(at, at + half, STRIDE)) for at in (0, half))
    return ArmRows(scaled_rows(scaling, recording, slice(None)), validation, test)


def scale_network(rows: Pair, widths: tuple[int, ...], steps: int, **place: Any) -> nn.Module:
    """ReLU network, trained for about `steps` steps on evenly spaced rows; `place` has seed and device."""
    n = len(rows[0])
    chosen = torch.arange(min(n, TRAINED_ROWS)) * n // min(n, TRAINED_ROWS)
    recipe = mlp_recipe([21, *widths, 7], epochs=max(1, steps * BATCH // len(chosen)))
    return replace(recipe, batch_size=BATCH).train((rows[0][chosen], rows[1][chosen]), **place)


def fit_first(network: nn.Module, rows: ArmRows, n: int, **options: Any) -> UncertaintyModel:
    """Model fitted to the first n rows without a witness; `options` are those of `fit`."""
    return fit(network, rows.first(n), validation=rows.validation, witness=None, **options)


def likelihoods(model: UncertaintyModel, network: nn.Module, rows: ArmRows) -> dict[str, float]:
    """Mean negative log likelihood per torque of the test rows, for trustgp and for network + noise."""
    peers: dict[str, Any] = {"trustgp": model, "network + noise": ConstantNoise.fit(network, rows.validation)}
    predictions = {name: peer.predict(rows.test[0]) for name, peer in peers.items()}
    return {
        name: float(metrics.gaussian_nll(p.mean, p.variance, rows.test[1].to(p.mean.device)).mean())
        for name, p in predictions.items()
    }


def held_rows(model: UncertaintyModel) -> list[int]:
    """Number of training rows in each expert, kernel after kernel."""
    return [len(expert.rows) for mixture in model.mixtures for expert in mixture.experts]
