"""`trustgp demo`: both parts, their tables, figures and `results.json`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import plots
from .alone import alone
from .demo_arm import FULL, QUICK, Arm, run_arm
from .demo_arm_figure import draw_arm
from .demo_toy import Toy, draw_toy, run_toy
from .scoring import Scores
from .toy_models import NUM_EXPERTS

PARTS = ("toy", "arm")
MOTIONS = {
    "same": "motions like the training's",
    "shifted": "elsewhere, as slow",
    "fast": "elsewhere, and faster",
}


def run_demo(
    out: Path, *, seed: int = 0, quick: bool = False, parts: Sequence[str] = PARTS, console: Console
) -> int:
    """Run the parts, write their figures and `results.json` into `out`, and print what they found.

    Args:
        out: A folder, made if it is not there.
        seed: Of data, networks and fits.
        quick: A smaller arm, for CI.
        parts: Some of `PARTS`.
        console: Where to print; bars are shown in a terminal only.

    Returns:
        0, or 1 when matplotlib is missing.
    """
    start = time.perf_counter()
    try:
        plots.require_matplotlib()
    except ImportError as error:
        console.print(f"trustgp demo: {error}", markup=False, soft_wrap=True)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"seed": seed, "quick": quick}
    for part in parts:
        results[part] = _RUN[part](out, seed, quick, console)
    results["seconds"] = round(time.perf_counter() - start, 1)
    target = out / "results.json"
    target.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"All numbers: {target} ({results['seconds']:.0f} s in all)", soft_wrap=True)
    return 0


def toy_table(toy: Toy) -> Table:
    """How far the standard deviation jumps at the experts' borders."""
    table = Table(
        title=f"Toy: steps of the std between {NUM_EXPERTS} experts",
        title_justify="left",
    )
    for name in ("experts", "borders", "mean ratio", "largest ratio"):
        table.add_column(name, justify="left" if name == "experts" else "right")
    for name, numbers in toy.summary().items():
        steps = (f"{numbers[key]:.2f}" for key in ("mean_jump", "largest_jump"))
        table.add_row(name, str(numbers["borders"]), *steps)
    return table


def arm_table(arm: Arm) -> Table:
    """Every method on every motion."""
    table = Table(title="Arm: errors and error bars of 7 torques, in training units", title_justify="left")
    table.add_column("error bar")
    for name in ("NLL", "RMSE", "in 95 %", "std", "novelty", "AUROC std", "AUROC nov."):
        table.add_column(name, justify="right")
    for motion, title in MOTIONS.items():
        table.add_section()
        table.add_row(f"[bold]{title}[/bold]")
        for method, scores in arm.scores.items():
            table.add_row(f"  {method}", *_cells(scores[motion]))
    return table


def _cells(scores: Scores) -> list[str]:
    areas = ("" if area is None else f"{area:.3f}" for area in (scores.auroc_std, scores.auroc_novelty))
    return [
        f"{scores.nll:.2f}",
        f"{scores.rmse:.3f}",
        f"{100 * scores.coverage:.1f} %",
        f"{scores.std:.3f}",
        f"{scores.novelty:.3f}",
        *areas,
    ]


def _toy(out: Path, seed: int, quick: bool, console: Console) -> dict[str, Any]:
    """Part one; it is quick as it is."""
    toy = alone(lambda: run_toy(seed=seed, progress=True))
    draw_toy(toy, out / "toy.png")
    console.print(toy_table(toy))
    console.print(f"Figure: {out / 'toy.png'}\n", soft_wrap=True)
    return toy.summary()


def _arm(out: Path, seed: int, quick: bool, console: Console) -> dict[str, Any]:
    """Part two."""
    size = QUICK if quick else FULL
    arm = alone(lambda: run_arm(size=size, seed=seed, progress=True))
    draw_arm(arm, out / "arm.png")
    console.print(arm_table(arm))
    figures, ours = arm.figures, arm.scores["trustgp"]
    error, bar = ours["fast"].rmse / ours["same"].rmse, ours["fast"].std / ours["same"].std
    console.print(
        f"From known motions to faster ones elsewhere the error grows {error:.0f}-fold, "
        f"the error bar of trustgp {bar:.0f}-fold."
    )
    console.print(
        f"{figures['train_rows']} training rows, {figures['parameters']} parameters, {figures['experts']} "
        f"experts, {figures['model_bytes'] / 2**20:.0f} MiB; training {figures['training_seconds']:.1f} s, "
        f"trustgp.fit {figures['fit_seconds']:.1f} s."
    )
    console.print(f"Figure: {out / 'arm.png'}\n", soft_wrap=True)
    return arm.summary()


_RUN = {"toy": _toy, "arm": _arm}
