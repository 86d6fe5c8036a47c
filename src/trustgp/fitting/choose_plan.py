"""The first executor for which the memory is there, and what is kept while it works."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..data.quantities import size_text
from ..data.rows import Rows
from ..executors import Executor, nearby
from ..executors.progress import Reporter
from ..experts.features import chunk_rows
from .options import FitOptions
from .plan import Plan, check_memory, make_plan
from .prepare import PROBE_ROWS, Prepared

KEPT_FEATURES = 2**30  # bytes of explicit features that are kept while a model is fitted


def choose_plan(ready: Prepared, rows: Rows, options: FitOptions) -> tuple[Executor, Plan]:
    """The first of the executors for which the memory is there, and the plan.

    Raises:
        MemoryError: When it is there for none.
    """
    refused = None
    for executor, plan in _ways(ready, rows, options):
        try:
            check_memory(plan, options.memory, ready.network.device)
            return executor, plan
        except MemoryError as error:
            refused = error
    assert refused is not None
    raise refused


def _ways(ready: Prepared, rows: Rows, options: FitOptions) -> Iterator[tuple[Executor, Plan]]:
    """What may be tried, the best first: with the features of all rows kept during the fit, and without.

    Gradients are dear: without that they are made about three times. Only explicit features are as short as
    it takes.
    """
    tangents = ready.maps[0][0]
    explicit = tangents.num_columns(expert=False) is not None
    for executor in options.executors(ready.network.device):
        plan = _plan(ready, rows, options, nearby(executor).workers)  # memory is planned for this machine
        if explicit and len(rows) * tangents.row_bytes() <= KEPT_FEATURES:
            yield executor, plan.keeping()
        yield executor, plan


def _plan(ready: Prepared, rows: Rows, options: FitOptions, workers: int) -> Plan:
    """What the fit will do, from a probe on the first rows."""
    return make_plan(
        [tangent_map for tangent_map, _ in ready.maps],
        rows.take(torch.arange(min(PROBE_ROWS, chunk_rows(ready.maps[0][0]), len(rows)))),
        len(rows),
        options.num_experts,
        division=options.division,
        patchwork=options.patchwork,
        witness=options.witness,
        num_outputs=len(ready.blends) or ready.num_outputs,
        budget=options.budget.size,
        workers=workers,
    )


def say_plan(report: Reporter, plan: Plan, num_rows: int, ready: Prepared, outputs: str) -> None:
    """Tell the user what is about to be done, and what it takes."""
    count = ready.num_outputs
    passes = {
        "shared": f"{count} backward passes",
        "separate": f"{count} kernels",
        "pseudo": "one backward pass",
    }
    report.say(f"tangents: {ready.tangents}, {ready.reason}")
    report.say(
        f"{num_rows} rows, {plan.num_experts} experts: the model will hold about "
        f"{size_text(plan.state_bytes)}, the fit needs at most about {size_text(plan.peak_bytes)} beside the "
        f"data, and about {plan.seconds:.0f} s."
    )
    report.say(f"outputs: {outputs}, {passes[outputs]} for {count} {'output' if count == 1 else 'outputs'}")
