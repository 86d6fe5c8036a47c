"""Blocks of the README and the results (quality, cost), and of the comparison with the paper's form."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean

from ...core.claim import tally as counted
from . import comparisons
from .comparisons import CORRECTED, IN_DOMAIN, OURS, SPLITS, WITNESS, Place, StoredCase, cases, stored_cases
from .stored import Stored, bullets, grid, listed, number, percent, short, words

# Peers that people would pick.
PICKED = (
    *("know-nothing", "gated know-nothing", "ARD GP on inputs", "network + noise, tails"),
    *("ensemble of 5", "heteroscedastic ensemble of 5"),
    *("MC-dropout 20", "Laplace last layer", "Laplace GLM", "conformal, split", "conformal, CQR"),
)
FEW = ("ensemble of 5", "Laplace GLM", "network + noise, tails", "know-nothing")  # on the README
OWN = (OURS, CORRECTED)
Places = Sequence[Place]
FORM = "trustgp paper form"
WORTH = {"coverage": percent, "sharpness": number, "crps": partial(number, digits=3)}  # beside NLL


def table(stored: Stored) -> str:
    """Table of NLL by kind of rows, coverage and width on new motions, and costs."""
    found, tabled = cases(stored, "transfer"), stored_cases(stored, "tables")
    groups = _groups(stored)
    new = next(iter(groups))
    columns = ["", *(f"NLL, {kind}" for kind in groups), f"95 % covers, {new}", "width", "CRPS"]
    columns += ["training, s", "fit, s", "MiB", "ms a row"]
    rows, methods = [], {method for case in (*found, *tabled) for method in case.methods}
    for method in (method for method in (*PICKED, WITNESS, *OWN) if method in methods):
        line = [method, *(number(average(places, method, "nll")) for places in groups.values())]
        line += [form(average(groups[new], method, key)) for key, form in WORTH.items()]
        rows.append([*line, *_costs(stored, method)])
    kept = [0, *(place for place in range(1, len(columns)) if any(row[place] for row in rows))]
    made = grid([columns[place] for place in kept], [[row[place] for place in kept] for row in rows])
    return f"{made}\n\n{words(_about(stored, found, tabled))}"


def small(stored: Stored) -> str:
    """Table of NLL and coverage of a few methods by kind of rows, as means over cases and seeds."""
    kinds, rows = _groups(stored), []
    for method in (*OWN, *FEW):
        pairs = [[average(part, method, key) for key in ("nll", "coverage")] for part in kinds.values()]
        if any(nll is not None for nll, _ in pairs):
            cells = ("" if nll is None else f"{number(nll)} / {percent(c)}" for nll, c in pairs)
            rows.append([method, *cells])
    return grid(["NLL / coverage of 95 % intervals", *kinds], rows)


def tally(stored: Stored) -> str:
    """Table of the numbers of cases with a worse, alike and better NLL of `trustgp` than of each peer; in
    brackets after Holm's correction for the number of peers. Then the share of large errors flagged."""
    flagged = [one for one in stored.study("transfer")["findings"] if "a tenth of alarms" in one]
    return "\n\n".join([_counts(_groups(stored), PICKED), *map(words, flagged)])


def _groups(stored: Stored) -> dict[str, Places]:
    """Places of the arms by kind of rows, then of the tables, if they were run."""
    tabled = [(case, IN_DOMAIN) for case in stored_cases(stored, "tables")]
    return {**comparisons.kinds_of(cases(stored, "transfer")), **({"tables": tabled} if tabled else {})}


def sequences_tally(stored: Stored) -> str:
    """Table as of `tally` for networks on windows of states, against all peers; then the last findings."""
    found = cases(stored, "sequence")
    others = list(comparisons.other_tests(found))
    places = {SPLITS[0]: [(case, IN_DOMAIN) for case in found], "other arms": others}
    findings = bullets([f"{stored.seeds('sequence')}.", *stored.study("sequence")["findings"][-2:]])
    return f"{_counts(places, found[0].peers)}\n\n{findings}"


def _counts(places: Mapping[str, Places], methods: Sequence[str]) -> str:
    gaps = {kind: [case.gaps(OURS, test) for case, test in part] for kind, part in places.items()}
    peers = {peer for part in gaps.values() for one in part for peer in one}
    rows = []
    for peer in (peer for peer in methods if peer in peers):
        parts = [[one[peer] for one in part if peer in one] for part in gaps.values()]
        rows.append([peer, *((counted(part) or "").replace(" / ", "/") for part in parts)])
    return grid(["against", *places], rows)


def average(places: Places, method: str, key: str) -> float | None:
    """Mean over cases of the means over seeds; None if the method lacks the number in one of them."""
    values = [case.mean(method, key, test) for case, test in places]
    return fmean(values) if values and None not in values else None  # pyright: ignore


def _costs(stored: Stored, method: str) -> list[str]:
    """Seconds of training and of the fit, MiB and ms a row, alone on the machine."""
    alone = stored.numbers("transfer")["costs"].get(method, {})
    keys = {"training_seconds": 1, "fit_seconds": 1, "mebibytes": 1, "predict_seconds": 1000}
    return [short(factor * alone[key]) if alone.get(key) is not None else "" for key, factor in keys.items()]


def _about(stored: Stored, found: Sequence[StoredCase], tabled: Sequence[StoredCase]) -> str:
    origin = stored.study("transfer")["provenance"]
    arms = list(dict.fromkeys(case.about["trained"] for case in found))
    text = (
        f"Mean over {len(arms)} arms ({listed(arms)}), {stored.seeds('transfer')}; NLL in nats per torque, "
        "lower is better; width of the 95 % interval and CRPS in training deviations. A gap: not stored, "
        "or no likelihood. The witness alone is a part of trustgp."
    )
    if tabled:
        text += f" Tables: {len(tabled)} data sets, {stored.seeds('tables')}."
    text += f" Costs: SARCOS, known motions, each method alone on {origin.get('costs', origin['device'])}; "
    return f"{text}training is that of networks beyond the given one."


def transfer(stored: Stored) -> str:
    """Table for the training arm: scores of the paper's own form and of ours; the difference of their NLL."""
    rows, scores = [], {"nll": number, **WORTH}
    for case in cases(stored, "transfer"):
        pairs = [[form(case.mean(method, key)) for method in (FORM, OURS)] for key, form in scores.items()]
        nll, *worth = (" / ".join(pair) for pair in pairs)
        gap = case.against(FORM, OURS)
        rows.append([case.name, nll, "" if gap is None else gap.words(), *worth])
    columns = ["case", "NLL, paper's own form / trustgp", "difference (95 % interval)"]
    return grid([*columns, "95 % covers", "width", "CRPS"], rows)


def zero_shot(stored: Stored) -> str:
    """Sentences on which of the two forms has the lower NLL on other arms, beyond the interval."""
    places = comparisons.kinds_of(cases(stored, "transfer"))["other arms"]
    gaps = [gap for case, test in places if (gap := case.against(FORM, OURS, test=test)) is not None]
    counts = Counter(gap.verdict for gap in gaps)
    worst = {
        method: max(mean for case, test in places if (mean := case.mean(method, "nll", test)) is not None)
        for method in (FORM, OURS)
    }
    return words(
        f"Of {len(gaps)} pairs of arms, the paper's own form has the lower NLL in {counts['better']}, ours "
        f"in {counts['worse']}, alike in {counts['alike']}. The largest NLL: "
        f"{', '.join(f'{short(value)} ({method})' for method, value in worst.items())}."
    )
