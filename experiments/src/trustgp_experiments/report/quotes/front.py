"""Blocks of the README (quality, cost, where trustgp loses), and of the comparison with the paper's form."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from ...core.claim import tally as counted
from .comparisons import (
    CORRECTED,
    IN_DOMAIN,
    OURS,
    SPLITS,
    WITNESS,
    StoredCase,
    cases,
    kinds_of,
    other_tests,
    stored_cases,
)
from .elsewhere import classes, sequences
from .stored import Stored, bullets, grid, listed, number, percent, short, words

# Peers that people would pick, and ours last.
PICKED = (
    *("know-nothing", "gated know-nothing", "ARD GP on inputs", "network + noise, tails"),
    *("ensemble of 5", "heteroscedastic ensemble of 5"),
    *("MC-dropout 20", "Laplace last layer", "Laplace GLM", "conformal, split", "conformal, CQR"),
)
FEW = ("ensemble of 5", "Laplace GLM", "network + noise, tails", "know-nothing")  # on the README
OWN = (OURS, CORRECTED)
Places = Sequence[tuple[StoredCase, str]]
FORM, KNOWN = "trustgp paper form", SPLITS[1]
MAX_PEERS = 3  # that a sentence names
LOW, HIGH = 0.90, 0.985  # what a 95 % interval should cover


def table(stored: Stored) -> str:
    """NLL by kind of rows, coverage and width on new motions, and what they cost."""
    found, tabled = cases(stored, "transfer"), stored_cases(stored, "tables")
    kinds = kinds_of(found)
    new = next(iter(kinds))
    groups = {**kinds, "tables": [(case, IN_DOMAIN) for case in tabled]}
    columns = ["", *(f"NLL, {kind}" for kind in groups), f"95 % covers, {new}", "width"]
    columns += ["training, s", "fit, s", "MiB", "ms a row"]
    rows, methods = [], {method for case in (*found, *tabled) for method in case.methods}
    for method in (method for method in (*PICKED, WITNESS, *OWN) if method in methods):
        line = [method, *(number(average(places, method, "nll")) for places in groups.values())]
        line += [percent(average(kinds[new], method, "coverage"))]
        line += [number(average(kinds[new], method, "sharpness"))]
        rows.append([*line, *_costs(stored, method)])
    kept = [0, *(place for place in range(1, len(columns)) if any(row[place] for row in rows))]
    made = grid([columns[place] for place in kept], [[row[place] for place in kept] for row in rows])
    return f"{made}\n\n{words(_about(stored, found, tabled))}"


def small(stored: Stored) -> str:
    """NLL and coverage of a few methods by kind of rows, mean over cases and seeds."""
    tabled = stored_cases(stored, "tables")
    kinds: dict[str, Places] = dict(kinds_of(cases(stored, "transfer")))
    kinds |= {"tables": [(case, IN_DOMAIN) for case in tabled]} if tabled else {}
    rows = []
    for method in (*OWN, *FEW):
        pairs = [[average(part, method, key) for key in ("nll", "coverage")] for part in kinds.values()]
        if any(nll is not None for nll, _ in pairs):
            cells = ("" if nll is None else f"{number(nll)} / {percent(c)}" for nll, c in pairs)
            rows.append([method, *cells])
    return grid(["NLL / coverage of 95 % intervals", *kinds], rows)


def tally(stored: Stored) -> str:
    """In how many cases the NLL of `trustgp` is worse, alike and better than that of each peer; in brackets
    after Holm's correction for the number of peers."""
    tabled = stored_cases(stored, "tables")
    places: dict[str, Places] = {**kinds_of(cases(stored, "transfer"))}
    if tabled:
        places["tables"] = [(case, IN_DOMAIN) for case in tabled]
    return _counts(places, PICKED)


def sequences_tally(stored: Stored) -> str:
    """The same of networks for windows of states, against all peers; then the other findings of the study."""
    found = cases(stored, "sequence")
    places = {SPLITS[0]: [(case, IN_DOMAIN) for case in found], "other arms": list(other_tests(found))}
    return f"{_counts(places, found[0].peers)}\n\n{bullets(stored.study('sequence')['findings'][-2:])}"


def _counts(places: Mapping[str, Places], methods: Sequence[str]) -> str:
    gaps = {kind: [case.gaps(OURS, test) for case, test in part] for kind, part in places.items()}
    peers = {peer for part in gaps.values() for one in part for peer in one}
    rows = []
    for peer in (peer for peer in methods if peer in peers):
        parts = [[one[peer] for one in part if peer in one] for part in gaps.values()]
        rows.append([peer, *((counted(part) or "").replace(" / ", "/") for part in parts)])
    return grid(["against", *places], rows)


def average(places: Places, method: str, key: str) -> float | None:
    """Mean over cases of the means over seeds; None where the method has no such number in one of them."""
    values = [case.mean(method, key, test) for case, test in places]
    return fmean(values) if values and None not in values else None  # pyright: ignore


def _costs(stored: Stored, method: str) -> list[str]:
    """Seconds of training and of the fit, MiB and ms a row, alone on the machine."""
    alone = stored.numbers("transfer")["costs"].get(method, {})
    keys = {"training_seconds": 1, "fit_seconds": 1, "mebibytes": 1, "predict_seconds": 1000}
    return [short(factor * alone[key]) if alone.get(key) is not None else "" for key, factor in keys.items()]


def _about(stored: Stored, found: Sequence[StoredCase], tabled: Sequence[StoredCase]) -> str:
    result = stored.study("transfer")
    arms = list(dict.fromkeys(case.about["trained"] for case in found))
    text = (
        f"Mean over {len(arms)} arms ({listed(arms)}) and {len(result['provenance']['seeds'])} seeds; NLL in "
        "nats per torque, lower is better; width of the 95 % interval in training deviations. A gap: not "
        "stored, or no likelihood. The witness alone is a part of trustgp."
    )
    text += f" Tables: {len(tabled)} data sets." * bool(tabled)
    text += f" Costs: SARCOS, known motions, each method alone on {result['provenance']['device']}; training "
    return f"{text}is that of networks beyond the given one."


def loses(stored: Stored) -> str:
    """Where a peer is better beyond the interval over seeds; the most important first."""
    found, tabled = cases(stored, "transfer"), stored_cases(stored, "tables")
    found = sorted(found, key=lambda case: case.about["split"] == KNOWN)
    lost = [*_elsewhere(found), *_in_domain(found), *_coverage([*found, *tabled]), *_tables(tabled)]
    lost += [sentence for block in (sequences, classes) for sentence in block(stored)]
    return bullets(lost)


def _in_domain(found: Sequence[StoredCase]) -> list[str]:
    sentences, unsure = [], []
    for case in found:
        ahead, mostly = case.ahead(), case.mostly_ahead()
        if ahead:
            (first, gap), *rest = ahead
            verb = "have" if rest[1:] else "has"
            also = f"; so {verb} {_named([name for name, _ in rest])}" if rest else ""
            far = f"{gap.mean:.2f} ({gap.low:.2f} to {gap.high:.2f})"
            sentences.append(f"**{case.name}**: `{first}` has the lower NLL, by {far}{also}.")
        elif mostly:
            unsure.append(f"{case.name} ({_named(mostly)})")
    if unsure:
        sentences.append(f"Lower in most seeds, but within the interval over seeds: {'; '.join(unsure)}.")
    gaps = [(case, gap) for case in found if (gap := case.against(OURS, WITNESS)) and gap.verdict == "worse"]
    if gaps:
        cases_lost = listed([f"{case.name} by {gap.mean:.2f}" for case, gap in gaps])
        sentences.append(f"A part of trustgp, the witness alone, has the lower NLL on {cases_lost}.")
    return sentences


def _named(peers: Sequence[str]) -> str:
    """The first, and how many more there are."""
    more = [f"{len(peers) - MAX_PEERS} more"] if len(peers) > MAX_PEERS else []
    return listed([*(f"`{name}`" for name in peers[:MAX_PEERS]), *more])


def _elsewhere(found: Sequence[StoredCase]) -> list[str]:
    """On other arms, zero shot: in how many cases each peer is ahead."""
    places = kinds_of(found).get("other arms", ())
    if not places:
        return []
    lower = [(peer, gap, case, test) for case, test in places for peer, gap in case.ahead(test)]
    most = [f"`{peer}` in {n}" for peer, n in Counter(peer for peer, *_ in lower).most_common(4)]
    case, test = max(places, key=lambda place: place[0].mean(OURS, "nll", place[1]) or 0.0)
    worst = f"{short(case.mean(OURS, 'nll', test))} nats, {case.about['trained']} on {test}"
    text = "no peer has a lower NLL beyond the interval"
    if lower:
        peer, gap, far, on = max(lower, key=lambda one: abs(one[1].mean))
        text = f"lower NLL than ours have {listed(most)}, by most `{peer}` by {gap.mean:.2f} "
        text += f"({far.about['trained']} on {on})"
    parts = [case.against(OURS, WITNESS, test=test) for case, test in places]
    if count := sum(part is not None and part.verdict == "worse" for part in parts):
        text += f"; so has the witness alone, a part of trustgp, in {count}"
    return [f"On other arms, zero shot ({len(places)} cases): {text}. Our worst is {worst}."]


def _coverage(found: Sequence[StoredCase]) -> list[str]:
    """Cases in which the 95 % interval covers too little or too much."""
    off = []
    for method in OWN:
        shares = [(case.name, case.mean(method, "coverage")) for case in found]
        off += [f"{n} {percent(s)} ({method})" for n, s in shares if s is not None and not LOW <= s <= HIGH]
    bounds = f"less than {100 * LOW:.0f} % or more than {100 * HIGH:.1f} %"
    return [f"The 95 % interval covers {bounds} in: {listed(off)}."] if off else []


def _tables(found: Sequence[StoredCase]) -> list[str]:
    """Peers that are ahead on most tables."""
    gaps = [(peer, case.against(OURS, peer)) for case in found for peer in case.peers]
    counts = Counter((peer, gap.verdict) for peer, gap in gaps if gap is not None)
    ahead = Counter({peer: count for (peer, verdict), count in counts.items() if verdict == "worse"})
    lines = [f"`{peer}` in {n} (worse in {counts[peer, 'better']})" for peer, n in ahead.most_common(5)]
    who = f"a lower NLL beyond the interval have: {listed(lines)}" if lines else "no peer has a lower NLL"
    return [f"On {len(found)} tables {who}."] if found else []


def transfer(stored: Stored) -> str:
    """On the arm that trained: NLL of the paper's own form and of ours, their difference, and coverage."""
    rows = []
    for case in cases(stored, "transfer"):
        nll = [number(case.mean(method, "nll")) for method in (FORM, OURS)]
        gap = case.against(FORM, OURS)
        covers = [case.mean(method, "coverage") for method in (FORM, OURS)]
        shares = [percent(share).removesuffix(" %") for share in covers]
        rows.append([case.name, *nll, "" if gap is None else gap.words(), *shares])
    columns = ["case", "paper's own form", OURS, "its NLL above ours (95 % interval)"]
    return grid([*columns, "95 % covers, %: paper's own form", OURS], rows)


def zero_shot(stored: Stored) -> str:
    """On other arms: who has the lower NLL beyond the interval."""
    places = kinds_of(cases(stored, "transfer"))["other arms"]
    gaps = [gap for case, test in places if (gap := case.against(FORM, OURS, test=test)) is not None]
    counts = Counter(gap.verdict for gap in gaps)
    worst = {
        method: max(case.mean(method, "nll", test) or -float("inf") for case, test in places)
        for method in (FORM, OURS)
    }
    return words(
        f"Of {len(gaps)} pairs of arms, the paper's own form has the lower NLL in {counts['better']}, ours "
        f"in {counts['worse']}, alike in {counts['alike']}. The largest NLL: "
        f"{', '.join(f'{short(value)} ({method})' for method, value in worst.items())}."
    )
