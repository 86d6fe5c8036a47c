"""`trustgp study distributed`: time against workers, beside the ideal, as in the paper's figure."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from trustgp.api import fit
from trustgp.executors import Executor, Ray, Threads, nearby, usable_cores

from ...core.arm import scaled_rows
from ...core.claim import words
from ...core.grid import Grid, keep_part
from ...core.pivot import Measure, Pivot
from ...core.recipes import mlp_recipe
from ...core.result import Column, Result, Setting, Table, make_result, prose
from ...datasets import simulate, standardise

KINDS = {"threads": Threads, "ray": lambda workers: Ray(workers=workers)}
STREAMS = (1, 2, 4)  # threads on a GPU, each with a stream
# rows, experts, widths of the network, repeats
CPU = (16_000, 16, [21, 200, 200, 7], 3)
CUDA = (100_000, 64, [21, *[200] * 5, 7], 3)
QUICK = (240, 3, [21, 8, 7], 2)
COMPARED_ROWS = 200  # on which the models are compared
EPOCHS = 3
TITLE = "How much sooner are the experts solved with more workers?"
TABLE = Pivot(
    "Time to solve the experts",
    {"executor": Column.text("executor"), "workers": Column("workers", digits=0)},
    [
        Measure("seconds", Column("seconds", digits=2, better="low", unit="s")),
        Measure("speed", Column("times as fast", digits=2, better="high", unit="x")),
        Measure("share", Column("of the ideal", digits=2)),
        Measure("start", Column("start", digits=1, unit="s")),
    ],
    note="Times as fast as one thread in the same repeat; of the ideal: that over the workers. Start: until "
    "the workers were up, once for each executor, not part of the seconds.",
)


class Stopwatch:
    """An executor that measures the time of each run of another one."""

    def __init__(self, executor: Executor) -> None:
        self.executor, self.workers, self.nearby = executor, executor.workers, nearby(executor)
        self.runs: list[tuple[int, float]] = []  # tasks, and seconds

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        began = time.perf_counter()
        yield from self.executor.run(function, tasks)
        self.runs.append((len(tasks), time.perf_counter() - began))

    def experts_seconds(self, num_experts: int) -> float:
        """Seconds of the last run that had a task for each expert: the experts are solved last."""
        return [seconds for tasks, seconds in self.runs if tasks == num_experts][-1]


def settings(device: str, cores: int) -> list[tuple[str, int]]:
    """Executors and numbers of workers: 1, 2, 4, ... up to the cores, two at least; streams on a GPU."""
    if device.startswith("cuda"):
        return [("threads", streams) for streams in STREAMS]
    counts = [2**power for power in range(16) if 2**power <= max(2, cores)]
    kinds = [kind for kind in KINDS if kind != "ray" or find_spec("ray")]
    return [(kind, workers) for kind in kinds for workers in counts]


def started(kind: str, workers: int) -> tuple[Executor, float]:
    """Executor whose workers are up, and the seconds that this took."""
    executor, began = KINDS[kind](workers), time.perf_counter()
    for _ in executor.run(time.sleep, [0.02] * 2 * workers):  # so long that no worker does the work of all
        pass
    return executor, time.perf_counter() - began


def run(setting: Setting) -> Result:
    """Fit the same model on every executor in turn, and measure the time of the experts."""
    runs = [keep_part(setting, measure, (), seed) for seed in range(setting.seeds)]
    first, numbers = runs[0], {"seeds": runs}
    origin = {"data": "arm_slow", "rows": first["rows"], "cores": first["cores"]}
    protocol = prose(__name__, setting=setting, run=first, repeats=_size(setting)[3])
    return make_result(setting, "distributed", TITLE, protocol, numbers, summarise, **origin)


def measure(setting: Setting, seed: int) -> dict[str, Any]:
    """Measure every executor once per repeat, so that other load of the machine falls on all of them."""
    n, num_experts, widths, repeats = _size(setting)
    arm = simulate(rows=n, seed=seed)
    scaling = standardise(arm.inputs, arm.targets)
    rows = scaled_rows(scaling, arm, slice(None))
    network = mlp_recipe(widths, epochs=EPOCHS).train(rows, seed=seed, device=setting.device)
    options: dict[str, Any] = {"witness": None, "seed": seed, "progress": False}
    other = simulate(rows=n, seed=seed + 1)  # rows that the network was not trained on
    options["validation"] = scaled_rows(scaling, other, slice(COMPARED_ROWS))  # calibration is not timed
    cores = usable_cores()
    chosen = settings(setting.device, cores)
    executors = {where: started(*where) for where in reversed(chosen)}
    times: dict[tuple[str, int], list[float]] = {where: [] for where in chosen}
    reference, differences, count = None, [0.0], 0
    for repeat in range(-1, repeats):  # the first loads what is needed, and does not count
        for where, seconds in times.items():
            watch = Stopwatch(executors[where][0])
            model = fit(network, rows, num_experts=num_experts, executor=watch, **options)
            count, variance = model.num_experts, model.predict(rows[0][:COMPARED_ROWS]).variance
            reference = variance if reference is None else reference
            differences.append(float(((variance - reference).abs() / reference).max()))
            if repeat >= 0:
                seconds.append(watch.experts_seconds(count))
    about = {"rows": n, "experts": count, "widths": widths, "cores": cores, "difference": max(differences)}
    names = ("executor", "workers", "seconds", "start")
    entries = [(*where, seconds, executors[where][1]) for where, seconds in times.items()]
    return {**about, "times": [dict(zip(names, entry, strict=True)) for entry in entries]}


def _size(setting: Setting) -> tuple[int, int, list[int], int]:
    return setting.sized(CUDA if setting.device.startswith("cuda") else CPU, QUICK)


def _grid(runs: Sequence[Mapping[str, Any]]) -> Grid:
    """Grid by executor and workers: a value for each repeat of each seed, also over the first executor's."""
    repeats = []
    for times in (run["times"] for run in runs):
        for k, first in enumerate(times[0]["seconds"]):
            repeats.append({})
            for entry in times:
                workers, seconds = entry["workers"], entry["seconds"][k]
                numbers = {"seconds": seconds, "speed": first / seconds, "start": entry["start"]}
                repeats[-1][entry["executor"], workers] = {**numbers, "share": first / seconds / workers}
    return Grid.of(("executor", "workers"), {(): repeats}, dict)


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Table of times; findings on each executor with the most workers, and on whether the models agree."""
    grid, sentences = _grid(numbers["seeds"]), []
    for kind in grid.along("executor"):
        most = max(grid.along("workers", executor=kind))
        speed, seconds = (grid.spread((kind, most), name) for name in ("speed", "seconds"))
        sentences.append(
            f"{most} workers ({kind}) solve the experts {words(speed)} times as fast as one thread, in "
            f"{words(seconds)} s: {100 * grid.mean((kind, most), 'share'):.0f} % of the ideal."
        )
    largest = max(run["difference"] for run in numbers["seeds"])
    where = f"variances on {COMPARED_ROWS} rows"
    differ = f"The {where} differ between executors by at most {largest:.1e}, relative."
    same = f"All executors gave the same {where}, to the bit."
    return [TABLE.table(grid)], [*sentences, differ if largest else same]
