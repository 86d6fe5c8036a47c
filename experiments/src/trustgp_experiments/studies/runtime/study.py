"""`trustgp study runtime`: what does an error bar cost at run time, and what is it worth?"""

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from trustgp.executors import usable_cores

from ...core.result import Result, Setting, make_result, prose
from .calls import COMPILED, EAGER, GRAPH, ONNX, RECORDED, Workload, measure
from .fixtures import MEMBERS, SAMPLES, FittedCase, quality
from .networks import Kind, kinds
from .tables import HEADLINE, summarise
from .timing import ENOUGH, Interleaved, reason_of

TITLE = "What does an error bar cost at run time?"
FULL = Interleaved(rounds=200, warm_up=3, patience=6.0, least=5)
LARGE = Interleaved(rounds=200, warm_up=2, patience=2.0, least=1)  # of many rows
QUICK = Interleaved(rounds=3, warm_up=1, patience=1.0, least=1)
BATCHES, QUICK_BATCHES = (1, 64), (1, 4)
FIRST = "MLP"
QUICK_KINDS = (FIRST, "ConvNet")  # the small ones


def run(setting: Setting) -> Result:
    """Train, fit and time one network after another; one that fails is skipped, with the reason."""
    networks, skipped, every = {}, {}, kinds(quick=setting.quick, device=setting.device)
    chosen = {name: _smallest_budget(every[name]) for name in QUICK_KINDS} if setting.quick else every
    for name, kind in chosen.items():
        try:
            networks[name] = [_one(setting, kind, seed) for seed in range(setting.seeds)]
        except Exception as error:  # a missing extra, a full GPU: the other networks do not need it
            skipped[name] = reason_of(error)
    made = [name for name, seeds in networks.items() if seeds[0]["made"]]
    numbers = {"device": setting.device.split(":")[0], "networks": networks, "skipped": skipped}
    origin = {"cores": usable_cores(), "rounds": _timing(setting, 1).rounds}
    trained = {name: kind for name, kind in chosen.items() if name not in skipped}
    values = {"kinds": trained, "made": made, "cuda": numbers["device"] == "cuda", "enough": ENOUGH}
    values |= {"samples": SAMPLES, "members": MEMBERS, "one": _timing(setting, 1)}
    protocol = prose(__name__, setting=setting, many=_timing(setting, 64), **values)
    return make_result(setting, "runtime", TITLE, protocol, numbers, summarise, **origin)


def _one(setting: Setting, kind: Kind, seed: int) -> dict[str, Any]:
    """Results of one network: a part for its quality, and one for each batch size and number of threads."""
    name = f"{kind.name.lower()}-{seed}"
    case = FittedCase(kind, seed=seed, device=setting.device, folder=setting.part(name))
    scores = setting.once(f"{name}-quality", lambda: {"quality": quality(case), "made": case.rows.made})
    entries = []
    for load in workloads(setting, kind):
        timing = _timing(setting, load.batch)
        entries += setting.once(f"{name}-{load.name}", partial(measure, case, load, timing))
    return {**scores, "entries": entries}


def _smallest_budget(kind: Kind) -> Kind:
    """Copy of a kind with one budget beside the default, since each is fitted, traced and exported."""
    return replace(kind, budgets=lambda network: dict([*kind.budgets(network).items()][-1:]))


def workloads(setting: Setting, kind: Kind) -> list[Workload]:
    """Workloads of a network, with separate ones for compiled and recorded calls; a quick run exports and
    traces the first network only."""
    cuda = setting.device.startswith("cuda")
    counts = [1] if cuda or setting.quick else sorted({1, usable_cores()})
    loads, whole = [], not setting.quick or kind.name == FIRST
    for batch, threads in product(setting.sized(BATCHES, QUICK_BATCHES), counts):
        exported = whole and not cuda and (not setting.quick or (batch, threads) == HEADLINE)
        wanted = {EAGER: True, GRAPH: whole and batch == 1, ONNX: exported}
        loads.append(Workload(batch, threads, [runtime for runtime, there in wanted.items() if there]))
    if cuda:
        loads += [Workload(load.batch, load.threads, [RECORDED]) for load in loads]
    compiled = not setting.quick and (not cuda or kind.name == FIRST)  # that takes minutes
    return [*loads, Workload(*HEADLINE, [COMPILED])] if compiled else loads


def _timing(setting: Setting, batch: int) -> Interleaved:
    if setting.quick:
        return QUICK
    timing = FULL if batch == 1 else LARGE
    return replace(timing, patience=timing.patience / 3) if setting.device.startswith("cuda") else timing
