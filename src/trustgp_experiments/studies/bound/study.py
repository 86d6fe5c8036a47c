"""`trustgp study bound`: how much of the kernel does a division throw away?

A division keeps the kernel within experts and drops it between them. The paper's bound is the share of the
squared kernel that is dropped; a good division is far below a random one of the same sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.arm import arm_recipe, arm_rows
from ...core.grid import Grid, Place
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Figure, Result, Setting, provenance
from ...core.toy import EPOCHS, QUICK_EPOCHS, WIDTH, toy_data, train_toy
from .figure import draw_bound
from .shares import EXACT, shares_of

EXPERTS = {"toy": (2, 4, 8, 16, 32), "arm": (2, 4, 8, 16, 32, 64)}
QUICK_EXPERTS = {"toy": (2, 8, 32), "arm": (2, 8, 32)}
COMPONENTS = {"toy": (4,), "arm": (2, 8, 32)}
QUICK_COMPONENTS = {"toy": (4,), "arm": (8,)}
SHOWN = {"toy": 4, "arm": 8}  # components q of the figure and of the findings
DATA = {"toy": "toy (1-D)", "arm": "arm (21-D)"}
MEASURES = (
    Measure("experts", Column("experts", digits=0)),
    Measure("ours", Column("ours", digits=3)),
    Measure("random", Column("random", digits=3)),
    Measure("kept", Column("ours keeps", digits=2, unit="x")),
    Measure("centred_ours", Column("centred: ours", digits=3)),
    Measure("centred_random", Column("centred: random", digits=3)),
    Measure("centred_kept", Column("centred: ours keeps", digits=2, unit="x")),
    Measure("reported", Column("fit reports", digits=3)),
)
AXES = ("data", "components", "asked")
NOTE = (
    "q: kernel principal components of the division. Random: experts of the same sizes, rows drawn by lot. "
    "Keeps: the share that stays within experts, as a multiple of the random one's. Centred: the same for "
    "the kernel less its mean. Mean ± standard deviation over seeds."
)


def run(setting: Setting) -> Result:
    """Divide in several ways, and measure what falls between experts, for each seed."""
    cases = [(data,) for data in DATA]
    grid = Grid.run(setting, one_seed, cases, axes=AXES, read=_read, ahead=cases[::-1])
    runs = {data: grid.parts[data,] for data in DATA}
    curves = {title: _curve(grid, data) for data, title in DATA.items()}
    draw_bound(curves, setting.out / "bound.png")
    return Result(
        study="bound",
        title="How much of the kernel falls between the experts?",
        protocol=_protocol(setting, runs),
        tables=[_pivot(data).table(grid) for data in DATA],
        figures=[Figure("bound.png", "Kernel mass between experts against their number", CAPTION)],
        findings=[*(_finding(grid, data) for data in DATA), *_on_components(grid)],
        numbers={"seeds": runs},
        provenance=provenance(
            setting,
            "bound",
            data={data: found[0]["source"] for data, found in runs.items()},
            rows={data: [run["rows"] for run in found] for data, found in runs.items()},
            networks={"toy": f"1-{WIDTH}-1 tanh", "arm": arm_recipe(setting.quick).words()},
        ),
    )


def one_seed(setting: Setting, data: str, seed: int) -> dict[str, Any]:
    """What is dropped on one network, as JSON."""
    experts = (QUICK_EXPERTS if setting.quick else EXPERTS)[data]
    components = (QUICK_COMPONENTS if setting.quick else COMPONENTS)[data]
    if data == "toy":
        toy = toy_data()
        rows, source = (toy.scaled, toy.targets), toy.source
        epochs = QUICK_EPOCHS if setting.quick else EPOCHS
        network = train_toy(*rows, seed=seed, epochs=epochs, **setting.place)
    else:
        arm = arm_rows(seed=seed, quick=setting.quick)
        rows, source = arm.train, arm.source
        network = arm_recipe(setting.quick).train(rows, seed=seed, **setting.place)
    found = shares_of(network, rows, experts, components, seed=seed, progress=setting.place["progress"])
    return {"source": source, "rows": len(rows[0]), "shares": found}


def _read(part: Mapping[str, Any]) -> dict[Place, dict[str, float]]:
    return {(entry["components"], entry["asked"]): _numbers(entry) for entry in part["shares"]}


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


def _curve(grid: Grid, data: str) -> dict[str, list[list[float]]]:
    """By measure, mean and spread for each number of experts."""
    places = [(data, SHOWN[data], count) for count in _counts(grid, data)]
    return {m.key: [grid.spread(place, m.key) for place in places] for m in MEASURES}


def _counts(grid: Grid, data: str) -> list[int]:
    return sorted(grid.along("asked", data=data, components=SHOWN[data]))


def _pivot(data: str) -> Pivot:
    rows = {"components": Column("q", digits=0), "asked": Column("asked for", digits=0)}
    title = f"Share of the squared kernel between experts: {DATA[data]}"
    return Pivot(title, rows, MEASURES, {"data": data}, note=NOTE)


def _finding(grid: Grid, data: str) -> str:
    counts = _counts(grid, data)
    low, high = counts[0], counts[-1]

    def share(kind: str, count: int) -> float:
        return grid.mean((data, SHOWN[data], count), kind)

    below = sum(share("ours", count) < share("random", count) for count in counts)
    return (
        f"{DATA[data]}: ours is below random for {below} of {len(counts)} numbers of experts. With {low} "
        f"experts {share('ours', low):.2f} of the squared kernel falls between them (random: "
        f"{share('random', low):.2f}), with {high} asked for {share('ours', high):.2f} "
        f"({share('random', high):.2f}): there ours keeps {share('kept', high):.1f} times as much."
    )


def _on_components(grid: Grid) -> list[str]:
    """Which number of components leaves least between experts of the arm, where several were tried."""
    tried = sorted(grid.along("components", data="arm"))
    if len(tried) < 2:
        return []
    counts = _counts(grid, "arm")
    best = {count: min(tried, key=lambda q: grid.mean(("arm", q, count), "ours")) for count in counts}
    most = counts[-1]
    shares = ", ".join(f"{grid.mean(('arm', q, most), 'ours'):.3f} with q = {q}" for q in tried)
    wins = ", ".join(f"q = {q} for {sum(b == q for b in best.values())}" for q in tried)
    return [
        f"Components: least falls between experts with {wins} of the {len(counts)} numbers of experts; "
        f"with {most} experts asked for it is {shares}."
    ]


def _protocol(setting: Setting, runs: Mapping[str, Sequence[dict[str, Any]]]) -> list[str]:
    toy, arm = (runs[data][0] for data in DATA)
    arms = {"sarcos": "the real SARCOS arm"}.get(arm["source"], "the simulated arm (SARCOS is not here)")
    return [
        "A division keeps the kernel within experts and drops it between them. Measured is the share of the "
        "squared kernel (the outputs' shared neural tangent kernel) that is dropped, the paper's bound.",
        f"Toy: {toy['rows']} rows ({toy['source']}), 1-{WIDTH}-1 tanh. Arm: {arm['rows']} training rows of "
        f"{arms}; network: {arm_recipe(setting.quick).words()}.",
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
