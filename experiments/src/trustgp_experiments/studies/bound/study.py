"""`trustgp study bound`: how much of the kernel does a division into experts throw away?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trustgp import plots
from trustgp.data.rows import read_rows
from trustgp.executors import FitContext, Threads
from trustgp.executors.progress import reporting
from trustgp.experts.features import NO_COLUMNS, features_at
from trustgp.experts.gate import Division
from trustgp.experts.neighbours import Patchwork
from trustgp.fitting.divide import divide
from trustgp.fitting.options import FitOptions
from trustgp.fitting.prepare import prepare_network
from trustgp.math.low_rank import mass_between

from ...core.arm import arm_recipe, arm_rows
from ...core.grid import Grid, Place
from ...core.pivot import Measure, Pivot
from ...core.recipes import Pair
from ...core.result import Column, Figure, Result, Setting, provenance
from ...core.toy import NETWORKS, WIDTH, toy_data

EXPERTS = {"toy": ((2, 4, 8, 16, 32), (2, 8, 32)), "arm": ((2, 4, 8, 16, 32, 64), (2, 8, 32))}
COMPONENTS = {"toy": ((4,), (4,)), "arm": ((2, 8, 32), (8,))}  # of a full run, and of a quick one
EXACT = 4096  # rows up to which every pair is counted; of more rows, a random subset of so many
SHOWN = {"toy": 4, "arm": 8}  # components q of the figure and of the findings
DATA = {"toy": "toy (1-D)", "arm": "arm (21-D)"}
KINDS = {"ours": ("ours", plots.BLUE), "random": ("random, same sizes", plots.GREY)}
SHARES = (("ours", "ours", ""), ("random", "random", ""), ("kept", "ours keeps", "x"))
MEASURES = (
    Measure("experts", Column("experts", digits=0)),
    *(
        Measure(prefix + key, Column(before + name, digits=2 if unit else 3, unit=unit))
        for prefix, before in (("", ""), ("centred_", "centred: "))
        for key, name, unit in SHARES
    ),
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
    draw_bound(grid, setting.out / "bound.png")
    origin: dict[str, Any] = {"data": {data: found[0]["source"] for data, found in runs.items()}}
    origin["rows"] = {data: [run["rows"] for run in found] for data, found in runs.items()}
    origin["networks"] = {"toy": f"1-{WIDTH}-1 tanh", "arm": arm_recipe(setting.quick).words()}
    return Result(
        study="bound",
        title="How much of the kernel falls between the experts?",
        protocol=_protocol(setting, runs),
        tables=[_pivot(data).table(grid) for data in DATA],
        figures=[Figure("bound.png", "Kernel mass between experts against their number", CAPTION)],
        findings=[*(_finding(grid, data) for data in DATA), *_on_components(grid)],
        numbers={"seeds": runs},
        provenance=provenance(setting, "bound", **origin),
    )


def one_seed(setting: Setting, data: str, seed: int) -> dict[str, Any]:
    """What is dropped on one network, as JSON."""
    counts = EXPERTS[data][setting.quick], COMPONENTS[data][setting.quick]
    made, recipe = toy_data(), setting.sized(*NETWORKS)
    if data == "arm":
        made, recipe = arm_rows(seed=seed, quick=setting.quick), arm_recipe(setting.quick)
    network = recipe.train(made.train, seed=seed, **setting.place)
    found = shares_of(network, made.train, *counts, seed, not setting.console.quiet)
    return {"source": made.source, "rows": len(made.train[0]), "shares": found}


def shares_of(
    network: nn.Module,
    rows: Pair,
    experts: Sequence[int],
    components: Sequence[int],
    seed: int,
    progress: bool,
) -> list[dict[str, Any]]:
    """What each division leaves between experts, beside a random one with experts of the same sizes.

    For each number q of kernel principal components and each number of experts that is asked for: both; how
    many experts there are; the bound that `fit` would report; and by kernel ("kernel", "centred") the shares
    "ours" and "random".
    """
    read = read_rows(rows, name="train")
    ready = prepare_network(network, read, FitOptions.parse(seed=seed, budget="none"))
    tangents = ready.maps[0][0]
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(len(read), generator=generator)[:EXACT].sort().values
    with torch.no_grad():
        features = features_at(tangents, read, sample, NO_COLUMNS, None)
        gram = features.gram(features)
    kernels = {"kernel": gram, "centred": centred(gram)}
    wanted = [(q, count) for q in components for count in experts]
    found = []
    with reporting(enabled=progress) as bars, reporting(enabled=False) as quiet:
        for q, count in bars.track(wanted, stage="dividing", total=len(wanted)):
            options = {"division": Division(components=q), "patchwork": Patchwork(neighbours=0)}
            context = FitContext(tangents.network.device, seed, Threads(1), quiet)
            partition, bound = divide(tangents, read, count, context, **options)
            ours = partition.nearest
            random = ours[torch.randperm(len(ours), generator=generator)]
            labels = {"ours": ours, "random": random}
            labels = {kind: own[sample].to(gram.device) for kind, own in labels.items()}
            entry: dict[str, Any] = {"components": q, "asked": count, "experts": partition.gate.num_experts}
            for name, kernel in kernels.items():
                shares = {kind: mass_between(kernel, own, len(read)) for kind, own in labels.items()}
                entry[name] = {kind: float(share) for kind, share in shares.items()}
            found.append({**entry, "reported": float(bound)})
    return found


def centred(gram: Tensor) -> Tensor:
    """The kernel of features less their mean, shape [m, m]."""
    mean = gram.mean(dim=0)
    return gram - mean - mean[:, None] + gram.mean()


def _read(part: Mapping[str, Any]) -> dict[Place, dict[str, float]]:
    """By q and number asked for; "kept" is what stays within experts, over what it is with random ones."""
    found = {}
    for entry in part["shares"]:
        numbers = found[entry["components"], entry["asked"]] = {"experts": entry["experts"]}
        for name, prefix in (("kernel", ""), ("centred", "centred_")):
            ours, random = entry[name]["ours"], entry[name]["random"]
            shares = {"ours": ours, "random": random, "kept": (1 - ours) / (1 - random)}
            numbers |= {prefix + key: share for key, share in shares.items()}
        numbers["reported"] = entry["reported"]
    return found


def draw_bound(grid: Grid, path: Path) -> None:
    """Shares against the number of experts, one panel for each data set."""
    with plots.figure(path, width=9.0, height=3.8, dpi=110) as figure:
        panels = figure.subplots(1, len(DATA), sharey=True, squeeze=False)[0]
        for axes, data in zip(panels, DATA, strict=True):
            _draw_curves(axes, grid, [(data, SHOWN[data], count) for count in _counts(grid, data)])
            axes.set_title(DATA[data])
            axes.set_xlabel("experts")
        panels[0].set_ylabel("share of squared kernel between experts")
        panels[0].set_ylim(0, 1)
        panels[-1].legend(loc="lower right", fontsize=8)


def _draw_curves(axes: Any, grid: Grid, places: Sequence[Place]) -> None:
    experts = [grid.mean(place, "experts") for place in places]
    style: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.4, "capsize": 2}
    for kind, (label, colour) in KINDS.items():
        for prefix, line, suffix in (("", "-", ""), ("centred_", "--", ", centred")):
            mean, spread = zip(*(grid.spread(place, prefix + kind) for place in places), strict=True)
            style |= {"color": colour, "linestyle": line, "label": label + suffix}
            axes.errorbar(experts, mean, yerr=spread, **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(experts, [f"{count:.0f}" for count in experts])
    axes.minorticks_off()


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
