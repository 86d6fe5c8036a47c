"""`trustgp study scale`: how do time and memory of a fit grow with the rows, at fixed rows per expert?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from trustgp.executors import Threads

from ...core.result import Figure, Result, Setting, provenance
from .figure import draw_scale
from .rows import BATCH, HELD_ROWS, STEPS, STRIDE, ScaleRows, scale_network, scale_rows
from .runs import WARM_ROWS, held_rows, likelihoods, measured_fit, warm_up
from .tables import Runs, scale_findings, scale_grid, scale_tables

TITLE = "Does the time of a fit grow in step with the rows?"


@dataclass(frozen=True)
class ScaleSize:
    """How large the study is.

    Args:
        experts: Numbers of experts, each twice the one before.
        expert_rows: Training rows for each of them.
        expert_bytes: The budget of each of them; a fit gets so many times as much.
        hidden: Widths of the network's hidden layers.
        held: Rows that validate, and as many that test.
        steps: Of the network's training; None: by device.
    """

    experts: tuple[int, ...]
    expert_rows: int = 3_906
    expert_bytes: int = 16 * 2**20
    hidden: tuple[int, ...] = (200,) * 5
    held: int = HELD_ROWS
    steps: int | None = None

    @property
    def most(self) -> int:
        """Training rows of the largest fit."""
        return self.expert_rows * self.experts[-1]


QUICK = ScaleSize((2, 4), 150, 2**21, (16, 16), held=100, steps=60)


def size_for(device: str, *, quick: bool) -> ScaleSize:
    """Up to two million rows on a GPU, up to 125,000 elsewhere."""
    if quick:
        return QUICK
    return ScaleSize(tuple(2**k for k in range(1, 10 if torch.device(device).type == "cuda" else 6)))


def run(setting: Setting) -> Result:
    """Fit one network on more and more rows, for each seed."""
    size = size_for(setting.device, quick=setting.quick)
    runs = [one_seed(setting, size, seed) for seed in range(setting.seeds)]
    grid, place = scale_grid(runs), torch.device(setting.device).type
    draw_scale(grid, place, setting.out / "scale.png")
    return Result(
        study="scale",
        title=TITLE,
        protocol=_protocol(setting, size),
        tables=scale_tables(grid),
        figures=[Figure("scale.png", "Time and memory of each stage against the rows", CAPTION)],
        findings=scale_findings(grid, place),
        numbers={"seeds": runs},
        provenance=provenance(setting, "scale", rows=grid.along("rows")),
    )


def one_seed(setting: Setting, size: ScaleSize, seed: int) -> Runs:
    """Every number of rows, the smallest first, as JSON; what is done already is not done again."""
    progress = not setting.console.quiet

    @cache  # made when they are first needed
    def ground() -> tuple[ScaleRows, nn.Module]:
        rows = scale_rows(size.most, seed=seed, held=size.held)
        options = {"seed": seed, "device": setting.device, "progress": progress}
        network = scale_network(rows.train, widths=size.hidden, steps=size.steps, **options)
        few = min(WARM_ROWS, size.expert_rows)
        warm_up(network, rows, n=few, device=setting.device, witness=None)
        return rows, network

    def measure(experts: int) -> dict[str, Any]:
        rows, network = ground()
        n, budget = experts * size.expert_rows, experts * size.expert_bytes
        options = {"num_experts": experts, "budget": budget, "seed": seed, "progress": progress}
        model, ledger = measured_fit(network, rows, n, device=setting.device, **options)
        held = held_rows(model)
        return {
            "rows": n,
            "asked": experts,
            "experts": model.num_experts,
            "failed": len(model.failed),
            "seconds": ledger.total,
            "stages": ledger.seconds,
            "stage_peaks": ledger.peaks,
            "peak": {place: ledger.peak(place) for place in ledger.held},
            "model_bytes": model.nbytes,
            "held_rows": sum(held) / len(held),
            "nll": likelihoods(model, network, rows),
        }

    found = []
    for experts in size.experts:
        found.append(setting.once(f"{experts}-{seed}", lambda experts=experts: measure(experts)))
        setting.console.print(f"seed {seed}: {found[-1]['rows']} rows, {found[-1]['seconds']:.1f} s")
    return found


def _protocol(setting: Setting, size: ScaleSize) -> list[str]:
    steps = STEPS[torch.device(setting.device).type] if size.steps is None else size.steps
    shape = "-".join(map(str, (21, *size.hidden, 7)))
    workers = "the GPU" if setting.device.startswith("cuda") else f"{Threads().workers} threads"
    return [
        f"The simulated 7-joint arm, slow motions: {size.experts[0] * size.expert_rows} to {size.most} rows "
        f"as recorded, the smaller numbers being the first rows of the larger; {size.held} rows "
        f"of other motions validate and as many test, every {STRIDE}th of their recording. Everything is "
        "scaled by the first training rows.",
        f"One network for all numbers of rows, {shape} ReLU, {steps} steps of AdamW with batches of {BATCH} "
        "on evenly spaced training rows; its training is not counted.",
        f"`trustgp.fit` with shared outputs, {size.expert_rows} rows for each expert asked for, a budget of "
        f"{size.expert_bytes / 2**20:g} MiB for each, without a witness, on {workers}. Experts far above the "
        "average size are split, so there may be more of them. With 2 experts each has one neighbour to "
        "borrow rows from, with 4 three, with more four: that makes the first doublings dearer.",
        "A stage lasts from its first line in the log to that of the next. Memory is the peak within a stage "
        "beside what was held before the fit: resident memory of the process, and what torch has allocated "
        "on the GPU.",
        f"{setting.seeds} seeds, of the motions, the network and the fit. Cells are mean ± standard "
        "deviation over seeds; NLL is per torque, in units of the training torques' spread.",
    ]


CAPTION = (
    "Mean over seeds. Dashed: in step with the rows, through the smallest fit. Memory is that of the device "
    "where the work is done, beside what was there before."
)
