"""How long a fit will take: pieces of it are done with a few rows, timed, and counted up."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import FULL
from ..data.rows import Rows
from ..data.trees import Inputs, count, take
from ..executors import Threads
from ..executors.base import Inline
from ..experts.expert import AROUND, PRIOR_ROWS, PRIOR_SUBSET, Problem, Task, solve_expert
from ..experts.features import NO_COLUMNS, chunk_rows
from ..math.evidence import Prior
from ..tangents.base import TangentMap, chunk_bytes
from .divide import bound_rows
from .options import FitOptions

PROBED, TRIED = {"cpu": 256, "cuda": 1024}, {"cpu": 192, "cuda": 4096}  # rows at most: made, and of an expert
PASSES = 3  # forward passes that a row's features take, about
STEEP = 1.8  # the power of its rows with which the time of an expert grows, measured from 150 to 1,400
SYMMETRIC = 0.6  # of the kernel of rows with themselves, the share that is computed
WITNESS_EXTRA = 2.5  # its time over that of its factorisations, measured
JUDGING = 20  # times a factorisation, that predicting left-out trajectories takes, measured
OVERLAP = 1.4  # what several workers gain on one GPU: nothing to twice as much


def timed(work: Callable[[], Any], device: torch.device, clock=time.perf_counter) -> float:
    """Seconds that `work` takes."""
    finish = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    finish()
    start = clock()
    work()
    finish()
    return clock() - start


def seconds_left(
    maps: list[TangentMap], sample: Inputs, shape: Any, options: FitOptions, work: float
) -> tuple[float, float]:
    """From the division of the rows on; and where the features of all rows are made only once.

    `shape` is that of a plan's experts; the multiplications of the witness are its `work`.
    """
    tangents, kernels, n, several = maps[0], len(maps), shape.n, shape.experts > 1
    workers, answered = shape.workers, shape.answered
    common, device = options.likelihood.common_prior, tangents.network.device
    probe = partial(_pace, tangents, sample, shape)
    alone = Inline() if device.type == "cuda" else Threads(1)
    ((_, (row, linear, pair, expert, cube)),) = alone.run(probe, [common])
    speed = workers if device.type == "cpu" else min(workers, OVERLAP)
    gate = shape.subset if several and tangents.num_columns(expert=False) is None else 0
    pairs = ((n + answered) * gate + answered * shape.rows) / speed
    pairs += several * SYMMETRIC * (shape.subset**2 + bound_rows(n) ** 2)  # by one worker
    rounds = max(shape.experts / speed, 1)
    again = several * (shape.subset + bound_rows(n) + n / speed) + rounds * (shape.rows + shape.offered)
    linearised = min(n, PRIOR_ROWS * PRIOR_SUBSET, PRIOR_ROWS * shape.experts) if common else n
    rest = kernels * (rounds * expert + pairs * pair + answered * row / speed)
    rest += linearised * linear / speed + WITNESS_EXTRA * work * cube
    if options.light and options.groups is not None and not options.likelihood.needs_held_out:
        rest += kernels * rounds * JUDGING * cube * min(n, AROUND) ** 3 / 3
    outputs_alone = n * row / PASSES / speed  # where features are made once, the same pass gives these
    return rest + kernels * again * row + outputs_alone, rest + kernels * row * n / speed


@torch.no_grad()
def _pace(tangents: TangentMap, sample: Inputs, shape: Any, common: bool) -> tuple[float, ...]:
    """Seconds of a worker for a row's features, its J theta, the kernel of two rows, an average expert with
    its features there, and a factorisation over a third of its rows cubed."""
    network, device, outputs = tangents.network, tangents.network.device, shape.served
    # on a CPU its own time, which short calls tell well, times the load that others put on it meanwhile
    clock, began = time.perf_counter if device.type == "cuda" else time.thread_time, time.perf_counter()
    own, chunk = clock(), chunk_rows(tangents)
    full = device.type == "cuda" and chunk <= FULL  # then its time is that of its rows
    size = max(1, min(chunk, max(8, min(shape.n // 64, PROBED[device.type]))) // 2)
    size = min(chunk, shape.n) if full else size
    few, many = (take(sample, torch.arange(k) % count(sample)) for k in (size, min(chunk, 2 * size)))

    def rate(work: Callable[[Inputs], Any], together: int) -> tuple[Any, float]:
        """What it gives, and seconds a row of so many in a call: what it adds, and its part of every call."""
        found = work(few)  # and whatever is done once
        if full:
            return found, timed(partial(work, few), device, clock) / size
        less, more = (timed(partial(work, rows), device, clock) for rows in (few, many))
        added = min(max(0.0, more - less), less) / size
        return found, added + (less - size * added) / min(together, shape.n)

    theta = tangents.direction(NO_COLUMNS)
    features, row = rate(tangents, chunk)
    linear = row  # about: of a common prior it is made for few rows
    if not common:
        _, linear = rate(lambda rows: network.directional(rows, theta), network.pass_rows(few))
    held = min(chunk_bytes(tangents) // max(1, tangents.row_bytes()), TRIED[device.type])
    held = max(1, min(held, shape.rows // (2 if device.type == "cuda" else 5)))
    part = held / shape.rows
    lent, offered = (int(part * k) for k in (shape.lend * shape.neighbours, shape.offered))
    every, generator = torch.arange(held - lent + offered), torch.Generator(device).manual_seed(0)

    def varied(value: Tensor) -> Tensor:  # no two rows alike
        chosen = value[every.to(device) % size]
        return chosen * torch.rand(chosen.shape, generator=generator, device=device).to(chosen)

    known = tangents.kind.from_tensors({name: varied(one) for name, one in features.tensors().items()})
    targets = torch.randn(len(every), outputs, generator=generator, dtype=torch.float64, device=device)
    chosen = tangents.num_columns(expert=True) != tangents.num_columns(expert=False)  # by the inputs
    rows, level = Rows(take(few, every % size) if chosen else few, targets), known.diag().mean()
    problem = Problem(rows, tangents, torch.arange(outputs), targets.cpu(), None, known, targets)
    problem = replace(problem, prior=Prior(level / 30, torch.ones_like(level)) if common else None)
    task = Task(every[: held - lent], every[held - lent :], lent)

    def solve() -> None:
        with suppress(ValueError, RuntimeError):  # of what is wrong the fit itself will tell
            solve_expert(problem, task)

    eye = torch.eye(512, dtype=torch.float64, device=device)
    pieces = (
        (lambda: known.gram(known), SYMMETRIC * len(known) ** 2),
        (solve, part**STEEP),
        (lambda: torch.linalg.cholesky(eye), len(eye) ** 3 / 3),
    )
    for piece, _ in pieces[::2] if device.type == "cuda" else ():  # what a library does once is soon done
        piece()
    pace = (row, linear, *(timed(piece, device, clock) / times for piece, times in pieces))
    load = (time.perf_counter() - began) / max(1e-9, clock() - own)
    return tuple(load * one for one in pace)
