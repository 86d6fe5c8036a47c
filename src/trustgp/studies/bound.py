"""`trustgp study bound`: how much of the kernel does a division throw away?

A division keeps the kernel within experts and drops it between them. The paper's bound is the share of the
squared kernel that is dropped; a good division is far below a random one of the same sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .. import plots
from ..datasets import standardise
from .ahead import work_ahead
from .alone import alone
from .arm_rows import arm_network, arm_rows, network_words
from .base import Column, Figure, Result, Setting, Table, provenance
from .bound_figure import draw_bound
from .bound_shares import EXACT, shares_of
from .summaries import mean_spread
from .toy import QUICK_EPOCHS, toy_data
from .toy_models import EPOCHS, WIDTH, train_toy

EXPERTS = {"toy": (2, 4, 8, 16, 32), "arm": (2, 4, 8, 16, 32, 64)}
QUICK_EXPERTS = {"toy": (2, 8, 32), "arm": (2, 8, 32)}
COMPONENTS = {"toy": (4,), "arm": (2, 8, 32)}
QUICK_COMPONENTS = {"toy": (4,), "arm": (8,)}
SHOWN = {"toy": 4, "arm": 8}  # components q of the figure and of the findings
DATA = {"toy": "toy (1-D)", "arm": "arm (21-D)"}
COLUMNS = {
    "experts": Column("experts", digits=0),
    "ours": Column("ours", digits=3),
    "random": Column("random", digits=3),
    "kept": Column("ours keeps", digits=2, unit="x"),
    "centred_ours": Column("centred: ours", digits=3),
    "centred_random": Column("centred: random", digits=3),
    "centred_kept": Column("centred: ours keeps", digits=2, unit="x"),
    "reported": Column("fit reports", digits=3),
}

Cells = dict[tuple[int, int], dict[str, list[float]]]


@dataclass(frozen=True)
class Problem:
    """A trained network and its rows.

    Args:
        network: On its device.
        rows: Inputs and targets.
        source: Of the rows.
    """

    network: nn.Module
    rows: tuple[Tensor, Tensor]
    source: str


def run(setting: Setting) -> Result:
    """Divide in several ways, and measure what falls between experts, for each seed."""
    plots.require_matplotlib()
    work_ahead(setting, one_seed, [(data, seed) for data in reversed(DATA) for seed in range(setting.seeds)])
    runs = {data: [one_seed(setting, data, seed) for seed in range(setting.seeds)] for data in DATA}
    cells = {data: _cells(found) for data, found in runs.items()}
    curves = {title: _curve(cells[data], SHOWN[data]) for data, title in DATA.items()}
    draw_bound(curves, setting.out / "bound.png")
    return Result(
        study="bound",
        title="How much of the kernel falls between the experts?",
        protocol=_protocol(setting, runs),
        tables=[_table(data, cells[data]) for data in DATA],
        figures=[Figure("bound.png", "Kernel mass between experts against their number", CAPTION)],
        findings=[*(_finding(data, cells[data]) for data in DATA), *_on_components(cells["arm"])],
        numbers={"seeds": runs},
        provenance=provenance(
            setting,
            "bound",
            data={data: found[0]["source"] for data, found in runs.items()},
            rows={data: [run["rows"] for run in found] for data, found in runs.items()},
            networks={"toy": f"1-{WIDTH}-1 tanh", "arm": network_words(setting.quick)},
        ),
    )


def one_seed(setting: Setting, data: str, seed: int) -> dict[str, Any]:
    """What is dropped on one network, as JSON."""
    return setting.once(f"{data}-{seed}", lambda: _measure(setting, data, seed))


def _measure(setting: Setting, data: str, seed: int) -> dict[str, Any]:
    problem = alone(lambda: _toy(seed, setting)) if data == "toy" else _arm(seed, setting)
    experts = (QUICK_EXPERTS if setting.quick else EXPERTS)[data]
    components = (QUICK_COMPONENTS if setting.quick else COMPONENTS)[data]
    found = shares_of(
        problem.network, problem.rows, experts, components, seed=seed, progress=not setting.console.quiet
    )
    return {"source": problem.source, "rows": len(problem.rows[0]), "shares": found}


def _toy(seed: int, setting: Setting) -> Problem:
    data = toy_data()
    rows = standardise(data.inputs, data.targets).inputs(data.inputs), data.targets
    epochs = QUICK_EPOCHS if setting.quick else EPOCHS
    network = train_toy(
        *rows, seed=seed, epochs=epochs, device=setting.device, progress=not setting.console.quiet
    )
    return Problem(network, rows, data.source)


def _arm(seed: int, setting: Setting) -> Problem:
    rows = arm_rows(seed=seed, quick=setting.quick)
    network = arm_network(
        rows.train,
        seed=seed,
        quick=setting.quick,
        device=setting.device,
        progress=not setting.console.quiet,
    )
    return Problem(network, rows.train, rows.source)


def _cells(runs: list[dict[str, Any]]) -> Cells:
    """Mean and spread over seeds, by components and number of experts asked for."""
    cells: Cells = {}
    for entries in zip(*(run["shares"] for run in runs), strict=True):
        numbers = [_numbers(entry) for entry in entries]
        where = entries[0]["components"], entries[0]["asked"]
        cells[where] = {key: mean_spread([one[key] for one in numbers]) for key in COLUMNS}
    return cells


def _numbers(entry: dict[str, Any]) -> dict[str, float]:
    """The columns of one seed; "kept" is what stays within experts, over what it is with random ones."""
    kernel, centred = entry["kernel"], entry["centred"]
    return {
        "experts": entry["experts"],
        "ours": kernel["ours"],
        "random": kernel["random"],
        "kept": (1 - kernel["ours"]) / (1 - kernel["random"]),
        "centred_ours": centred["ours"],
        "centred_random": centred["random"],
        "centred_kept": (1 - centred["ours"]) / (1 - centred["random"]),
        "reported": entry["reported"],
    }


def _curve(cells: Cells, components: int) -> dict[str, list[list[float]]]:
    """By column, mean and spread for each number of experts."""
    chosen = [numbers for (q, _), numbers in cells.items() if q == components]
    return {key: [numbers[key] for numbers in chosen] for key in COLUMNS}


def _table(data: str, cells: Cells) -> Table:
    rows = [[q, asked, *(numbers[key] for key in COLUMNS)] for (q, asked), numbers in cells.items()]
    return Table(
        f"Share of the squared kernel between experts: {DATA[data]}",
        [Column("q", digits=0), Column("asked for", digits=0), *COLUMNS.values()],
        rows,
        note="q: kernel principal components of the division. Random: experts of the same sizes, rows drawn "
        "by lot. Keeps: the share that stays within experts, as a multiple of the random one's. Centred: the "
        "same for the kernel less its mean. Mean ± standard deviation over seeds.",
    )


def _finding(data: str, cells: Cells) -> str:
    chosen = {asked: numbers for (q, asked), numbers in cells.items() if q == SHOWN[data]}
    low, high = min(chosen), max(chosen)
    below = sum(numbers["ours"][0] < numbers["random"][0] for numbers in chosen.values())
    return (
        f"{DATA[data]}: ours is below random for {below} of {len(chosen)} numbers of experts. With {low} "
        f"experts {chosen[low]['ours'][0]:.2f} of the squared kernel falls between them (random: "
        f"{chosen[low]['random'][0]:.2f}), with {high} asked for {chosen[high]['ours'][0]:.2f} "
        f"({chosen[high]['random'][0]:.2f}): there ours keeps {chosen[high]['kept'][0]:.1f} times as much."
    )


def _on_components(cells: Cells) -> list[str]:
    """Which number of components leaves least between experts, where several were tried."""
    tried = sorted({q for q, _ in cells})
    if len(tried) < 2:
        return []
    counts = sorted({asked for _, asked in cells})
    best = {count: min(tried, key=lambda q: cells[q, count]["ours"][0]) for count in counts}
    most = counts[-1]
    shares = ", ".join(f"{cells[q, most]['ours'][0]:.3f} with q = {q}" for q in tried)
    wins = ", ".join(f"q = {q} for {sum(b == q for b in best.values())}" for q in tried)
    return [
        f"Components: least falls between experts with {wins} of the {len(counts)} numbers of experts; "
        f"with {most} experts asked for it is {shares}."
    ]


def _protocol(setting: Setting, runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    toy, arm = (runs[data][0] for data in DATA)
    arms = {"sarcos": "the real SARCOS arm"}.get(arm["source"], "the simulated arm (SARCOS is not here)")
    return [
        "A division keeps the kernel within experts and drops it between them. Measured is the share of the "
        "squared kernel (the outputs' shared neural tangent kernel) that is dropped, the paper's bound.",
        f"Toy: {toy['rows']} rows ({toy['source']}), 1-{WIDTH}-1 tanh. Arm: {arm['rows']} training rows of "
        f"{arms}; network: {network_words(setting.quick)}.",
        f"Up to {EXACT} rows every pair is counted; of more, a random subset of {EXACT} rows, weighted for "
        "the pairs that were not drawn.",
        "Experts far above the average size are split, so there may be more of them than were asked for; the "
        "random division has experts of the very same sizes.",
        f"Seeds: {setting.seeds}, of split, network, division and subset.",
    ]


CAPTION = (
    "Solid: the neural tangent kernel; dashed: the same less its mean, which no division can tell apart. "
    "Bars are the standard deviation over seeds."
)
