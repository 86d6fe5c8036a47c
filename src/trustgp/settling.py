"""Settling on a plan: the first executor for which the memory is there, and what is kept while it works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from .data import Rows
from .executors import Executor, nearby
from .experts import chunk_rows
from .gating import Division
from .patchwork import Patchwork
from .plan import Plan, check_memory, make_plan
from .preparing import PROBE_ROWS, Prepared
from .witness import Witness

KEPT_FEATURES = 2**30  # bytes of explicit features that are kept while a model is fitted


@dataclass(frozen=True)
class Wanted:
    """What was asked of the model's size."""

    num_experts: int | None
    division: Division
    patchwork: Patchwork
    witness: Witness | None
    budget: int | None
    memory: int | None
    learnt: int  # outputs


def plan_that_fits(
    ready: Prepared, rows: Rows, wanted: Wanted, executors: Sequence[Executor]
) -> tuple[Executor, Plan, bool]:
    """The first of the executors for which the memory is there, the plan, and whether features are kept.

    Raises:
        MemoryError: When it is there for none.
    """
    ways = _ways(ready, rows, wanted, executors)
    while True:
        executor, plan, keep = next(ways)
        try:
            check_memory(plan, wanted.memory, ready.network.device)
            return executor, plan, keep
        except MemoryError:
            if executor is executors[-1] and not keep:  # the last way there is
                raise


def _ways(
    ready: Prepared, rows: Rows, wanted: Wanted, executors: Sequence[Executor]
) -> Iterator[tuple[Executor, Plan, bool]]:
    """What may be tried, the best first: with the features of all rows kept during the fit, and without.

    Gradients are dear: without that they are made about three times. Only explicit features are as short as
    it takes.
    """
    tangents = ready.maps[0][0]
    short = tangents.width(expert=False) is not None and len(rows) * tangents.row_bytes() <= KEPT_FEATURES
    for executor in executors:
        plan = _plan(ready, rows, wanted, nearby(executor).workers)  # memory is planned for this machine
        if short:
            yield executor, plan.keeping(), True
        yield executor, plan, False


def _plan(ready: Prepared, rows: Rows, wanted: Wanted, workers: int) -> Plan:
    """What the fit will do, from a probe on the first rows."""
    return make_plan(
        [tangent_map for tangent_map, _ in ready.maps],
        rows.take(torch.arange(min(PROBE_ROWS, chunk_rows(ready.maps[0][0]), len(rows)))),
        len(rows),
        wanted.num_experts,
        division=wanted.division,
        patchwork=wanted.patchwork,
        witness=wanted.witness,
        num_outputs=wanted.learnt,
        budget=wanted.budget,
        workers=workers,
    )
