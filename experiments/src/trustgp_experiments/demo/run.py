"""`trustgp demo`: the toy, and the tables, figures and `results.json` of both parts."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from trustgp import plots
from trustgp.likelihoods.prediction import Prediction

from ..core.borders import jump_factors
from ..core.registry import require_extras
from ..core.result import Column, Table, threads, write_text
from ..core.toy import INDEPENDENT, NETWORK, NUM_EXPERTS, PATCHWORK, fit_toy
from ..datasets import snelson_like, standardise, truth
from ..report.terminal import as_rich
from .arm import FULL, LABELS, QUICK, draw_arm, run_arm

GAP = (2.4, 3.6)
NOISE = 0.28
VARIANTS = {"independent": INDEPENDENT, "patchwork": PATCHWORK}
TITLES = {
    "independent": "Independent experts: the band steps at their borders",
    "patchwork": "Patchwork: neighbours lend each other rows",
}


@dataclass(frozen=True)
class Band:
    """The error bar along the grid; borders and jumps as `border_jumps` returns them."""

    prediction: Prediction
    row_expert: Tensor  # which expert owns each training row, [n]
    borders: Tensor
    jumps: Tensor


@dataclass(frozen=True)
class Toy:
    """Results of part one: training rows [n], the grid [g], and on it the bands by variant."""

    inputs: Tensor
    targets: Tensor
    grid: Tensor
    bands: dict[str, Band]

    def summary(self) -> dict[str, dict[str, float]]:
        jumps = {name: band.jumps for name, band in self.bands.items()}
        numbers = {name: (len(j), float(j.mean()), float(j.max())) for name, j in jumps.items()}
        return {name: dict(zip(TOY_COLUMNS, row, strict=True)) for name, row in numbers.items()}


def run_toy(*, seed: int = 0, progress: bool = False) -> Toy:
    """Train a 1-200-1 tanh network and fit it twice; only the patchwork differs."""
    inputs, targets = snelson_like(gap=GAP, noise=NOISE, seed=seed)
    scaling = standardise(inputs, targets)
    rows = scaling.inputs(inputs), targets
    network = NETWORK.train(rows, seed=seed, progress=progress)
    grid = torch.linspace(-0.4, 6.4, 3401)[:, None]
    bands = {}
    for name, patchwork in VARIANTS.items():
        model = fit_toy(network, rows, patchwork=patchwork, seed=seed, progress=progress)
        prediction = model.predict(scaling.inputs(grid))
        bands[name] = Band(prediction, model.predict(rows[0]).expert, *border_jumps(prediction))
    return Toy(inputs[:, 0], targets[:, 0], grid[:, 0], bands)


def border_jumps(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """Grid points just left of a change of expert [b], and max(a/b, b/a) >= 1 of the deviations there [b]."""
    expert, std = prediction.expert, prediction.std.flatten()
    borders = (expert[1:] != expert[:-1]).nonzero().flatten()
    return borders, jump_factors(std[borders], std[borders + 1])


def draw_toy(toy: Toy, path: Path) -> None:
    """Draw both bands, one above the other, and their standard deviations."""
    with plots.figure(path, width=8.0, height=8.2, dpi=110) as figure:
        upper, middle, lower = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
        for axes, (name, numbers) in zip((upper, middle), toy.summary().items(), strict=True):
            _draw_variant(axes, toy, toy.bands[name])
            steps = f"steps: mean {numbers['mean_jump']:.2f}, largest {numbers['largest_jump']:.2f}"
            axes.set(title=f"{TITLES[name]}   ({steps})", ylabel="y", ylim=(-4.6, 4.6))
        upper.legend(loc="upper right", ncols=2, fontsize=8)
        _draw_deviations(lower, toy)


def _draw_variant(axes: Any, toy: Toy, band: Band) -> None:
    """Draw band, truth, borders, and the rows in the colour of their expert."""
    prediction = band.prediction
    for place in toy.grid[band.borders].tolist():
        axes.axvline(place, color=plots.GREY, linewidth=0.8, linestyle=(0, (2, 2)))
    mean, deviation = prediction.mean.flatten(), prediction.std.flatten()
    axes.plot(toy.grid, truth(toy.grid), color=plots.INK, linewidth=1, linestyle="--", label="truth")
    plots.draw_band(axes, toy.grid, mean, 3 * deviation, label="three sigma", line="network")
    experts = band.row_expert.unique().tolist()
    experts.sort(key=lambda e: float(toy.inputs[band.row_expert == e].mean()))  # neighbours differ in colour
    for colour, expert in enumerate(experts):
        rows = band.row_expert == expert
        dots = {"s": 11, "color": plots.PALETTE[colour % len(plots.PALETTE)], "zorder": 3}
        axes.scatter(toy.inputs[rows], toy.targets[rows], **dots, edgecolors="white", linewidths=0.3)


def _draw_deviations(axes: Any, toy: Toy) -> None:
    colours = {"independent": plots.ORANGE, "patchwork": plots.BLUE}
    for name, band in toy.bands.items():
        axes.plot(toy.grid, band.prediction.std.flatten(), color=colours[name], linewidth=1.5, label=name)
    axes.axvspan(*GAP, color=plots.GREY, alpha=0.12, linewidth=0)
    ticks = (0.25, 0.5, 1.0, 2.0)
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="x", ylabel="std of y", xlim=(float(toy.grid[0]), float(toy.grid[-1])))
    axes.axhline(NOISE, color=plots.INK, linewidth=1, linestyle="--", label="true noise")
    axes.text(sum(GAP) / 2, 0.32, "no rows", ha="center", color=plots.GREY)
    axes.set_title("Standard deviation of both")
    axes.legend(loc="upper right", ncols=3, fontsize=8)


TOY_COLUMNS = {"borders": Column("borders", 0), "mean_jump": Column("mean ratio", 2)}
TOY_COLUMNS |= {"largest_jump": Column("largest ratio", 2)}
ARM_COLUMNS = {"nll": Column("NLL", 2), "rmse": Column("RMSE"), "coverage": Column("in 95 %", 1, unit="%")}
ARM_COLUMNS |= {"half_width": Column("± of it"), "novel": Column("called novel", 1, unit="%")}
ARM_COLUMNS |= {"auroc": Column("AUROC of novelty")}


def run_demo(out: Path, *, seed: int = 0, quick: bool = False, console: Console) -> int:
    """Run both parts, write figures and `results.json`, print; raise ImportError if an extra is missing."""
    start = time.perf_counter()
    require_extras("The demo", ["plots"])
    out.mkdir(parents=True, exist_ok=True)
    results = {"toy": _toy(out, seed, console), "arm": _arm(out, seed, quick, console)}
    write_results(out, {"seed": seed, "quick": quick, **results}, start, console)
    return 0


def write_results(out: Path, results: dict[str, Any], start: float, console: Console) -> None:
    """Write `results.json`, with the seconds since the start, and print its path."""
    results = {**results, "seconds": round(time.perf_counter() - start, 1)}
    target = out / "results.json"
    write_text(target, json.dumps(results, indent=2) + "\n")
    console.print(f"All numbers: {target} ({results['seconds']:.0f} s in all)", soft_wrap=True)


def _toy(out: Path, seed: int, console: Console) -> dict[str, Any]:
    with threads(1):
        toy = run_toy(seed=seed, progress=True)
    draw_toy(toy, out / "toy.png")
    summary = toy.summary()
    rows = [[name, *(numbers[key] for key in TOY_COLUMNS)] for name, numbers in summary.items()]
    title = f"Toy: steps of the std between {NUM_EXPERTS} experts"
    console.print(as_rich(Table(title, [Column.text("experts"), *TOY_COLUMNS.values()], rows)))
    console.print(f"Figure: {out / 'toy.png'}\n", soft_wrap=True)
    return summary


def _arm(out: Path, seed: int, quick: bool, console: Console) -> dict[str, Any]:
    with threads(1):
        arm = run_arm(size=QUICK if quick else FULL, seed=seed, progress=True)
    draw_arm(arm, out / "arm.png")
    columns = [Column.text("error bar"), *ARM_COLUMNS.values()]
    console.print("Arm: errors and error bars of 7 torques, in deviations of the training torques.")
    console.print(
        "In 95 %: targets inside the 95 % interval; ±: half its width; novel: by default 1 % of known rows."
    )
    for motion, words in LABELS.items():
        rows = [[name, *_cells(by[motion])] for name, by in arm.scores.items()]
        console.print(as_rich(Table(words.capitalize(), columns, rows)))
    figures, ours = arm.figures, arm.scores["trustgp"]
    error, bar = (ours["fast"][measure] / ours["same"][measure] for measure in ("rmse", "half_width"))
    growth = f"the error grows {error:.0f}-fold, the interval of trustgp {bar:.0f}-fold"
    console.print(f"From known motions to faster ones elsewhere {growth}.")
    console.print(
        f"{figures['train_rows']} training rows, {figures['parameters']} parameters, {figures['experts']} "
        f"experts, {figures['model_bytes'] / 2**20:.0f} MiB; training {figures['training_seconds']:.1f} s, "
        f"trustgp.fit {figures['fit_seconds']:.1f} s."
    )
    console.print(f"Figure: {out / 'arm.png'}\n", soft_wrap=True)
    return {**figures, "scores": arm.scores}


def _cells(scores: dict[str, Any]) -> list[Any]:
    """Scores in the order of the columns; shares in percent."""
    values = [(scores[key], 100 if column.unit == "%" else 1) for key, column in ARM_COLUMNS.items()]
    return [None if value is None else factor * value for value, factor in values]
