"""`trustgp study scale`: how do time and memory of a fit grow with the rows, at fixed rows per expert?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from .. import plots
from ..executors import Threads
from .base import Figure, Result, Setting, provenance
from .scale_figure import draw_scale
from .scale_rows import BATCH, HELD_ROWS, STEPS, STRIDE, ScaleRows, scale_network, scale_rows
from .scale_runs import held_rows, likelihoods, measured_fit, warm_up
from .scale_tables import Runs, scale_findings, scale_tables

TITLE = "Does the time of a fit grow in step with the rows?"


@dataclass(frozen=True)
class Size:
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


QUICK = Size((2, 4, 8), 250, 2**21, (32, 32), held=200, steps=60)


def size_for(device: str, *, quick: bool) -> Size:
    """Up to two million rows on a GPU, up to 125,000 elsewhere."""
    if quick:
        return QUICK
    return Size(tuple(2**k for k in range(1, 10 if torch.device(device).type == "cuda" else 6)))


def run(setting: Setting) -> Result:
    """Fit one network on more and more rows, for each seed."""
    plots.require_matplotlib()
    size = size_for(setting.device, quick=setting.quick)
    runs = [one_seed(setting, size, seed) for seed in range(setting.seeds)]
    place = torch.device(setting.device).type
    draw_scale(runs, place, setting.out / "scale.png")
    return Result(
        study="scale",
        title=TITLE,
        protocol=_protocol(setting, size),
        tables=scale_tables(runs),
        figures=[Figure("scale.png", "Time and memory of each stage against the rows", CAPTION)],
        findings=scale_findings(runs, place),
        numbers={"seeds": runs},
        provenance=provenance(setting, "scale", rows=[entry["rows"] for entry in runs[0]]),
    )


def one_seed(setting: Setting, size: Size, seed: int) -> Runs:
    """Every number of rows, the smallest first, as JSON; what is done already is not done again."""
    ground = _Ground(setting, size, seed)
    found = []
    for experts in size.experts:
        entry = setting.once(f"{experts}-{seed}", lambda experts=experts: ground.measure(experts))
        setting.console.print(f"seed {seed}: {entry['rows']} rows, {entry['seconds']:.1f} s")
        found.append(entry)
    return found


@dataclass
class _Ground:
    """Rows and a network of one seed, made when they are first needed."""

    setting: Setting
    size: Size
    seed: int

    @cached_property
    def rows(self) -> ScaleRows:
        return scale_rows(self.size.most, seed=self.seed, held=self.size.held)

    @cached_property
    def network(self) -> nn.Module:
        network = scale_network(
            self.rows.train,
            seed=self.seed,
            device=self.setting.device,
            widths=self.size.hidden,
            steps=self.size.steps,
            progress=not self.setting.console.quiet,
        )
        warm_up(network, self.rows, device=self.setting.device, witness=None)
        return network

    def measure(self, experts: int) -> dict[str, Any]:
        """One fit, as JSON."""
        network, n = self.network, experts * self.size.expert_rows
        model, ledger = measured_fit(
            network,
            self.rows,
            n,
            device=self.setting.device,
            num_experts=experts,
            budget=experts * self.size.expert_bytes,
            seed=self.seed,
            progress=not self.setting.console.quiet,
        )
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
            "nll": likelihoods(model, network, self.rows),
        }


def _protocol(setting: Setting, size: Size) -> list[str]:
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
