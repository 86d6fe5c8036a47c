"""Settling on a plan: the first executor for which the memory is there, and what is kept while it works."""

from __future__ import annotations

from collections.abc import Sequence
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
    for executor in executors:
        plan = _plan(ready, rows, wanted, nearby(executor).workers)  # memory is planned for this machine
        plan, keep = _with_features(plan, ready, rows, wanted.memory)
        try:
            check_memory(plan, wanted.memory, ready.network.device)
            return executor, plan, keep
        except MemoryError:
            if executor is executors[-1]:
                raise
    raise AssertionError("there is always an executor")


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


def _with_features(plan: Plan, ready: Prepared, rows: Rows, most: int | None) -> tuple[Plan, bool]:
    """The plan with the features of all rows kept during the fit, and whether they are.

    Gradients are dear: without that they are made about three times. Only explicit features are as short as
    it takes, and only where the memory is there.
    """
    tangents, larger = ready.maps[0][0], plan.keeping()
    if tangents.width(expert=False) is None or len(rows) * tangents.row_bytes() > KEPT_FEATURES:
        return plan, False
    try:
        check_memory(larger, most, ready.network.device)
    except MemoryError:
        return plan, False
    return larger, True
