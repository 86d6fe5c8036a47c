"""`trustgp demo`: its parts one after another, their tables, their figures and `results.json`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core.registry import require_extras
from ..core.result import alone
from ..core.toy import NUM_EXPERTS
from .arm import FULL, QUICK, draw_arm, run_arm
from .toy import draw_toy, run_toy

PARTS = ("toy", "arm")
MOTIONS = {
    "same": "motions like the training's",
    "shifted": "elsewhere, as slow",
    "fast": "elsewhere, and faster",
}
TOY_COLUMNS = {  # of a number: the head of its column, and how it is written
    "borders": ("borders", "{}"),
    "mean_jump": ("mean ratio", "{:.2f}"),
    "largest_jump": ("largest ratio", "{:.2f}"),
}
ARM_COLUMNS = {
    "nll": ("NLL", "{:.2f}"),
    "rmse": ("RMSE", "{:.3f}"),
    "coverage": ("in 95 %", "{:.1%}"),
    "std": ("std", "{:.3f}"),
    "novelty": ("novelty", "{:.3f}"),
    "auroc_std": ("AUROC std", "{:.3f}"),
    "auroc_novelty": ("AUROC nov.", "{:.3f}"),
}


def run_demo(
    out: Path, *, seed: int = 0, quick: bool = False, parts: Sequence[str] = PARTS, console: Console
) -> int:
    """Run the parts, write their figures and `results.json` into the folder `out`, and print what they found.

    A missing extra is an ImportError that names it; else 0 is returned.
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


def result_table(
    title: str,
    first: str,
    columns: Mapping[str, tuple[str, str]],
    sections: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> Table:
    """Numbers by section (of which one may be called ""), row and column; None is a gap."""
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for head, _ in columns.values():
        table.add_column(head, justify="right")
    for heading, rows in sections.items():
        if heading:
            table.add_section()
            table.add_row(f"[bold]{heading}[/bold]")
        for name, numbers in rows.items():
            cells = [
                "" if numbers[key] is None else text.format(numbers[key]).replace("%", " %")
                for key, (_, text) in columns.items()
            ]
            table.add_row(f"  {name}" if heading else name, *cells)
    return table


def _toy(out: Path, seed: int, quick: bool, console: Console) -> dict[str, Any]:
    toy = alone(lambda: run_toy(seed=seed, progress=True))
    draw_toy(toy, out / "toy.png")
    summary = toy.summary()
    title = f"Toy: steps of the std between {NUM_EXPERTS} experts"
    console.print(result_table(title, "experts", TOY_COLUMNS, {"": summary}))
    console.print(f"Figure: {out / 'toy.png'}\n", soft_wrap=True)
    return summary


def _arm(out: Path, seed: int, quick: bool, console: Console) -> dict[str, Any]:
    arm = alone(lambda: run_arm(size=QUICK if quick else FULL, seed=seed, progress=True))
    draw_arm(arm, out / "arm.png")
    sections = {
        title: {method: arm.scores[method][m] for method in arm.scores} for m, title in MOTIONS.items()
    }
    title = "Arm: errors and error bars of 7 torques, in training units"
    console.print(result_table(title, "error bar", ARM_COLUMNS, sections))
    figures, ours = arm.figures, arm.scores["trustgp"]
    error, bar = (ours["fast"][measure] / ours["same"][measure] for measure in ("rmse", "std"))
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
    return {**figures, "scores": arm.scores}


_RUN = {"toy": _toy, "arm": _arm}
