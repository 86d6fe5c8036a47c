"""`trustgp demo`: its parts one after another, their tables, their figures and `results.json`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core.extras import require_extras
from ..core.single_thread import alone
from ..core.toy import NUM_EXPERTS
from .arm import FULL, QUICK, Arm, run_arm
from .arm_figure import draw_arm
from .toy import Toy, draw_toy, run_toy

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
        0; a missing extra is an ImportError that names it.
    """
    start = time.perf_counter()
    require_extras("The demo", ["plots"])
    out.mkdir(parents=True, exist_ok=True)
    results = {part: _RUN[part](out, seed, quick, console) for part in parts}
    write_results(out, {"seed": seed, "quick": quick, **results}, start, console)
    return 0


def write_results(out: Path, results: dict[str, Any], start: float, console: Console) -> None:
    """Write `results.json`, with the seconds since the start, and say where it is."""
    results = {**results, "seconds": round(time.perf_counter() - start, 1)}
    target = out / "results.json"
    target.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"All numbers: {target} ({results['seconds']:.0f} s in all)", soft_wrap=True)


def new_table(title: str, first: str, others: Sequence[str]) -> Table:
    """A table whose first column is words and whose others are numbers."""
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def toy_table(toy: Toy) -> Table:
    """How far the standard deviation jumps at the experts' borders."""
    title = f"Toy: steps of the std between {NUM_EXPERTS} experts"
    table = new_table(title, "experts", ("borders", "mean ratio", "largest ratio"))
    for name, numbers in toy.summary().items():
        steps = (f"{numbers[key]:.2f}" for key in ("mean_jump", "largest_jump"))
        table.add_row(name, str(numbers["borders"]), *steps)
    return table


def arm_table(arm: Arm) -> Table:
    """Every method on every motion."""
    names = ("NLL", "RMSE", "in 95 %", "std", "novelty", "AUROC std", "AUROC nov.")
    table = new_table("Arm: errors and error bars of 7 torques, in training units", "error bar", names)
    for motion, title in MOTIONS.items():
        table.add_section()
        table.add_row(f"[bold]{title}[/bold]")
        for method, by_motion in arm.scores.items():
            one = by_motion[motion]
            cells = [f"{one.nll:.2f}", f"{one.rmse:.3f}", f"{100 * one.coverage:.1f} %", f"{one.std:.3f}"]
            areas = ("" if area is None else f"{area:.3f}" for area in (one.auroc_std, one.auroc_novelty))
            table.add_row(f"  {method}", *cells, f"{one.novelty:.3f}", *areas)
    return table


def _toy(out: Path, seed: int, quick: bool, console: Console) -> dict[str, Any]:
    """Part one; it is quick as it is."""
    toy = alone(lambda: run_toy(seed=seed, progress=True))
    draw_toy(toy, out / "toy.png")
    console.print(toy_table(toy))
    console.print(f"Figure: {out / 'toy.png'}\n", soft_wrap=True)
    return toy.summary()


def _arm(out: Path, seed: int, quick: bool, console: Console) -> dict[str, Any]:
    """Part two."""
    arm = alone(lambda: run_arm(size=QUICK if quick else FULL, seed=seed, progress=True))
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
