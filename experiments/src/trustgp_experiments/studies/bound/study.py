"""`trustgp study bound`: how much of the kernel does a division into experts drop?"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

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
from ...core.result import Column, Result, Setting, Table, make_result, note, prose
from ...core.toy import NETWORKS, WIDTH, toy_data

EXPERTS = {"toy": ((2, 4, 8, 16, 32), (2, 8, 32)), "arm": ((2, 4, 8, 16, 32, 64), (2, 8, 32))}
COMPONENTS = {"toy": ((4,), (4,)), "arm": ((2, 8, 32), (8,))}  # of a full run, and of a quick one
EXACT_ROWS = 4096  # up to which every pair is counted; of more rows, a random subset of so many
SHOWN = {"toy": 4, "arm": 8}  # components q of the findings
DATA = {"toy": "toy (1-D)", "arm": "arm (21-D)"}
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
ROWS = {"components": Column("q", digits=0), "asked": Column("asked for", digits=0)}
NOTE = note(__name__, "Tables")


def run(setting: Setting) -> Result:
    """Divide in several ways, and measure what falls between experts, for each seed."""
    grid = Grid.run(setting, one_seed, [(data,) for data in DATA], axes=AXES, read=_read)
    seeds = {data: grid.parts[data,] for data in DATA}
    origin: dict[str, Any] = {"data": {data: parts[0]["source"] for data, parts in seeds.items()}}
    origin["rows"] = {data: [part["rows"] for part in parts] for data, parts in seeds.items()}
    origin["networks"] = {"toy": f"1-{WIDTH}-1 tanh", "arm": arm_recipe(setting.quick).words()}
    first, network = {data: parts[0] for data, parts in seeds.items()}, origin["networks"]["arm"]
    protocol, numbers = prose(__name__, setting=setting, network=network, **first), {"seeds": seeds}
    title = "How much of the kernel falls between the experts?"
    return make_result(setting, "bound", title, protocol, numbers, summarise, **origin)


def one_seed(setting: Setting, data: str, seed: int) -> dict[str, Any]:
    """What is dropped on one network, as JSON."""
    counts = EXPERTS[data][setting.quick], COMPONENTS[data][setting.quick]
    made, recipe = toy_data(), setting.sized(*NETWORKS)
    if data == "arm":
        made, recipe = arm_rows(seed=seed, quick=setting.quick), arm_recipe(setting.quick)
    network = recipe.train(made.train, seed=seed, **setting.place)
    shares = shares_of(network, made.train, *counts, seed)
    return {"source": made.source, "rows": len(made.train[0]), "shares": shares}


def shares_of(
    network: nn.Module, rows: Pair, experts: Sequence[int], components: Sequence[int], seed: int
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
    sample = torch.randperm(len(read), generator=generator)[:EXACT_ROWS].sort().values
    with torch.no_grad():
        features = features_at(tangents, read, sample, NO_COLUMNS, None)
        gram = features.gram(features)
    kernels = {"kernel": gram, "centred": centred(gram)}
    entries = []
    with reporting(enabled=False) as quiet:
        for q, count in ((q, count) for q in components for count in experts):
            options = {"division": Division(components=q), "patchwork": Patchwork(neighbours=0)}
            context = FitContext(tangents.network.device, seed, Threads(1), quiet)
            partition, bound = divide(tangents, read, count, context, **options)
            ours = partition.nearest
            divisions = {"ours": ours, "random": ours[torch.randperm(len(ours), generator=generator)]}
            labels = {kind: division[sample].to(gram.device) for kind, division in divisions.items()}
            entry: dict[str, Any] = {"components": q, "asked": count, "experts": partition.gate.num_experts}
            for name, kernel in kernels.items():
                entry[name] = {k: float(mass_between(kernel, own, len(read))) for k, own in labels.items()}
            entries.append({**entry, "reported": float(bound)})
    return entries


def centred(gram: Tensor) -> Tensor:
    """The kernel of features less their mean, shape [m, m]."""
    mean = gram.mean(dim=0)
    return gram - mean - mean[:, None] + gram.mean()


def _read(part: Mapping[str, Any]) -> dict[Place, dict[str, float]]:
    """By q and number asked for; "kept" is what stays within experts, over what it is with random ones."""
    cells = {}
    for entry in part["shares"]:
        numbers = cells[entry["components"], entry["asked"]] = {"experts": entry["experts"]}
        for name, prefix in (("kernel", ""), ("centred", "centred_")):
            ours, random = entry[name]["ours"], entry[name]["random"]
            shares = {"ours": ours, "random": random, "kept": (1 - ours) / (1 - random)}
            numbers |= {prefix + key: share for key, share in shares.items()}
        numbers["reported"] = entry["reported"]
    return cells


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """A table and a finding for each data set, and one about the components."""
    grid = Grid.of(AXES, {(data,): seeds for data, seeds in numbers["seeds"].items()}, _read)
    title = "Share of the squared kernel between experts"
    tables = [
        Pivot(f"{title}: {name}", ROWS, MEASURES, {"data": data}, note=NOTE).table(grid)
        for data, name in DATA.items()
    ]
    return tables, [*(_finding(grid, data) for data in DATA), *_on_components(grid)]


def _counts(grid: Grid, data: str) -> list[int]:
    return sorted(grid.along("asked", data=data, components=SHOWN[data]))


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
