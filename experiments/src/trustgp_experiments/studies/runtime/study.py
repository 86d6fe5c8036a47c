"""`trustgp study runtime`: what does an error bar cost at run time, and what is it worth?"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from trustgp.executors import usable_cores

from ...core.result import Figure, Result, Setting, Table, provenance
from .calls import COMPILED, EAGER, GRAPH, ONNX, RECORDED, Workload, measure
from .fixtures import MEMBERS, SAMPLES, FittedCase, quality
from .networks import Kind, kinds
from .tables import HEADLINE, draw_bars, draw_frontier, findings, headline, merged_networks, tables
from .timing import ENOUGH, Interleaved, reason_of

TITLE = "What does an error bar cost at run time?"
FULL = Interleaved(rounds=200, warm_up=3, patience=6.0, least=5)
LARGE = Interleaved(rounds=200, warm_up=2, patience=2.0, least=1)  # of many rows
QUICK = Interleaved(rounds=3, warm_up=1, patience=1.0, least=1)
BATCHES, QUICK_BATCHES = (1, 64), (1, 4)
FIRST = "MLP"
QUICK_KINDS = (FIRST, "ConvNet")


def run(setting: Setting) -> Result:
    """Train, fit and time one network after another."""
    found, skipped = _measured(setting)
    entries, qualities = merged_networks(found)
    first = headline(entries)
    draw_bars(first, setting.out / "bars.png")
    draw_frontier(first, qualities, setting.out / "frontier.png")
    return Result(
        study="runtime",
        title=TITLE,
        protocol=_protocol(setting, skipped, [name for name, seeds in found.items() if seeds[0]["made"]]),
        tables=tables(entries, qualities, setting.device),
        figures=[
            Figure("bars.png", "Times the plain network", BARS),
            Figure("frontier.png", "Quality against time", FRONTIER),
        ],
        findings=findings(entries, qualities, skipped),
        numbers={"device": setting.device.split(":")[0], "networks": found, "skipped": skipped},
        provenance=provenance(setting, "runtime", cores=usable_cores(), rounds=_timing(setting, 1).rounds),
    )


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Tables and findings."""
    entries, qualities = merged_networks(numbers["networks"])
    made = tables(entries, qualities, numbers["device"])
    return made, findings(entries, qualities, numbers["skipped"])


def _measured(setting: Setting) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """By network, for each seed its quality and entries; and why networks are not among them."""
    found, skipped = {}, {}
    for name, kind in _chosen(setting).items():
        try:
            found[name] = [_one(setting, kind, seed) for seed in range(setting.seeds)]
        except Exception as error:  # an extra that is not there, a full GPU: the other networks need it not
            skipped[name] = reason_of(error)
    return found, skipped


def _chosen(setting: Setting) -> dict[str, Kind]:
    """The networks by name; in a quick run the small ones."""
    found = kinds(quick=setting.quick, device=setting.device)
    return {name: kind for name, kind in found.items() if not setting.quick or name in QUICK_KINDS}


def _one(setting: Setting, kind: Kind, seed: int) -> dict[str, Any]:
    """One network: a part for its quality, and one for each batch size and number of threads."""
    name = f"{kind.name.lower()}-{seed}"
    case = FittedCase(kind, seed=seed, device=setting.device, folder=setting.part(name))
    good = setting.once(f"{name}-quality", lambda: quality(case))
    entries = []
    for load in workloads(setting, kind):
        timing = _timing(setting, load.batch)
        entries += setting.once(
            f"{name}-{load.name}", lambda load=load, timing=timing: measure(case, load, timing)
        )
    made = setting.once(f"{name}-made", lambda: case.rows.made)
    return {"quality": good, "entries": entries, "made": made}


def workloads(setting: Setting, kind: Kind) -> list[Workload]:
    """What is compiled or recorded stands by itself; in a quick run only the first network is exported and
    traced."""
    cuda = setting.device.startswith("cuda")
    counts = [1] if cuda or setting.quick else sorted({1, usable_cores()})
    found = []
    whole = not setting.quick or kind.name == FIRST
    for batch, threads in product(setting.sized(BATCHES, QUICK_BATCHES), counts):
        exported = whole and not cuda and (not setting.quick or (batch, threads) == HEADLINE)
        wanted = {EAGER: True, GRAPH: whole and batch == 1, ONNX: exported}
        found.append(Workload(batch, threads, [runtime for runtime, there in wanted.items() if there]))
    if cuda:
        found += [Workload(load.batch, load.threads, [RECORDED]) for load in found]
    compiled = not setting.quick and (not cuda or kind.name == FIRST)  # that takes minutes
    return [*found, Workload(*HEADLINE, [COMPILED])] if compiled else found


def _timing(setting: Setting, batch: int) -> Interleaved:
    if setting.quick:
        return QUICK
    found = FULL if batch == 1 else LARGE
    return replace(found, patience=found.patience / 3) if setting.device.startswith("cuda") else found


def _protocol(setting: Setting, skipped: dict[str, str], made: list[str]) -> list[str]:
    chosen = _chosen(setting)
    one, many = _timing(setting, 1), _timing(setting, 64)
    cuda = setting.device.startswith("cuda")
    slow = f"{one.patience:g} s ({many.patience:g} s for larger batches)"
    return [
        *(
            f"{name}: {kind.shape}; trained for about {kind.size.steps} steps of {kind.size.batch} on "
            f"{kind.size.train} rows, error bars fitted on {kind.size.fitted} of them, {kind.size.held} each "
            "to validate, to test, and new."
            for name, kind in chosen.items()
            if name not in skipped
        ),
        *([f"Made-up patterns, since the images are not here: {', '.join(made)}."] if made else []),
        f"Methods: the network; {SAMPLES} passes with dropout, one after another and as one batch; an "
        f"ensemble of {MEMBERS}; Laplace's GLM predictive of the last layer and of all (KFAC; curvature by "
        "laplace-torch); trustgp as it comes and at three budgets. The same network, trained with dropout, "
        "serves all but the ensemble, whose members are trained for the MLP and the ConvNet and only timed "
        "for the others.",
        "Runtimes: torch eager; "
        + (
            "CUDA graph, a whole call recorded once and played, its inputs copied in and its answer out, "
            "measured by itself: trustgp's `predict` records the pass through the network, so it stands here "
            "and not under torch eager, where Laplace stands; "
            if cuda
            else ""
        )
        + "torch graph, the same operations traced once and run without the network's "
        "Python code; torch compiled (Inductor; one row and one thread only, measured by itself, trustgp as "
        "it comes and at its middle budget only, and on a GPU of the first network only: it takes minutes); "
        "onnxruntime on the CPU. In the last three the passes of MC-dropout draw no masks and the members "
        "of the ensemble are one network, which favours these two; of more than one row they are not "
        "measured there.",
        f"In each of {one.rounds} rounds every call is made once, each round beginning with another, after "
        f"up to {one.warm_up} calls that do not count. A call so slow that {one.rounds} would take more "
        f"than {slow} takes part in fewer rounds, evenly spread, at least {one.least} ({many.least}): the "
        f"table says how many. Below {ENOUGH} calls no p99 is told. Ratios are medians of ratios within a "
        "round"
        + (
            "; the GPU is waited for before and after each call, and inputs lie there."
            if cuda
            else ", on one thread of the time that this thread was at work: other work on the machine does "
            "not count into them, but does into the milliseconds."
        ),
        f"{setting.seeds} seed{'s' if setting.seeds > 1 else ''} of rows, weights and fits; cells are means.",
    ]


BARS = "Batch 1, one thread: median time over that of the plain network in the same runtime."
FRONTIER = (
    "Batch 1, one thread: NLL (lower is better) and AUROC of new rows (higher is better) against "
    "milliseconds. Grey: the network; blue: trustgp; orange: MC-dropout; red: ensemble; green: Laplace."
)
