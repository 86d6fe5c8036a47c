"""Blocks of the README: one table with quality and cost, and where trustgp loses."""

from collections import Counter
from collections.abc import Sequence

from .comparisons import (
    CORRECTED,
    IN_DOMAIN,
    OURS,
    StoredCase,
    average,
    better_than_ours,
    cases,
    methods_of,
    mostly_better,
    other_tests,
    peers_of,
)
from .elsewhere import calls, classes, detectors, sequences
from .stored import NotRun, Stored, bullets, grid, listed, number, percent, seeds_of, short, words

# Peers that people would pick, and ours last.
PICKED = (
    *("network + noise", "network + noise, tails", "ensemble of 5", "heteroscedastic ensemble of 5"),
    *("MC-dropout 20", "Laplace last layer", "Laplace GLM", "conformal, split", "conformal, CQR"),
)
OWN = (OURS, CORRECTED)
BEYOND = "beyond the interval over seeds"
LOW, HIGH = 0.90, 0.985  # what a 95 % interval should cover


def picked(methods: Sequence[str]) -> list[str]:
    """Those of the README's table that there are, ours last."""
    return [method for method in (*PICKED, *OWN) if method in methods]


def table(stored: Stored) -> str:
    """NLL and coverage by split, mean over arms, and what they cost; tables where these were run."""
    found = cases(stored, "transfer")
    splits = list(dict.fromkeys(case.about["split"] for case in found))
    by_split = {split: [case for case in found if case.about["split"] == split] for split in splits}
    tabled = _tabled(stored)
    columns = ["", *(f"NLL, {split}" for split in splits)]
    columns += ["NLL, tables"] * bool(tabled) + [f"95 % covers, {split}" for split in splits]
    columns += ["training, s", "fit, s", "MiB", "ms a row"]
    rows = []
    for method in picked(methods_of([*found, *tabled])):
        line = [method, *(number(average(part, method, "nll")) for part in by_split.values())]
        line += [number(average(tabled, method, "nll"))] * bool(tabled)
        line += [percent(average(part, method, "coverage")) for part in by_split.values()]
        rows.append([*line, *_costs(stored, method)])
    dropped = [place for place in range(1, len(columns)) if not any(row[place] for row in rows)]
    kept = [place for place in range(len(columns)) if place not in dropped]
    made = grid([columns[place] for place in kept], [[row[place] for place in kept] for row in rows])
    return f"{made}\n\n{words(_about(stored, found, tabled))}"


def tally(stored: Stored) -> str:
    """In how many cases the NLL of `trustgp` is worse, alike and better than that of each peer."""
    found, tabled = cases(stored, "transfer"), _tabled(stored)
    places: dict[str, list[tuple[StoredCase, str]]] = {}
    for split in dict.fromkeys(case.about["split"] for case in found):
        part = [case for case in found if case.about["split"] == split]
        places[f"same arm, {split}"] = [(case, IN_DOMAIN) for case in part]
        places[f"other arms, {split}"] = list(other_tests(part))
    if tabled:
        places["tables"] = [(case, IN_DOMAIN) for case in tabled]
    rows = []
    for peer in PICKED:
        line = [_verdicts(peer, some) for some in places.values()]
        if any(line):
            rows.append([peer, *line])
    return grid(["against", *places], rows)


def _verdicts(peer: str, places: Sequence[tuple[StoredCase, str]]) -> str:
    """Cases in which ours is worse, alike and better than a peer; empty where that has no likelihood."""
    gaps = [case.against(OURS, peer, test=test) for case, test in places]
    counts = Counter(gap.verdict for gap in gaps if gap is not None)
    return " / ".join(str(counts[verdict]) for verdict in ("worse", "alike", "better")) if counts else ""


def _costs(stored: Stored, method: str) -> list[str]:
    """Seconds of training and of the fit, MiB and ms a row, alone on the machine."""
    alone = stored.numbers("transfer")["costs"].get(method, {})
    keys = ("training_seconds", "fit_seconds", "mebibytes", "predict_seconds")
    *known, seconds = (alone.get(key) for key in keys)
    return [*map(short, known), "" if seconds is None else short(1000 * seconds)]


def _about(stored: Stored, found: Sequence[StoredCase], tabled: Sequence[StoredCase]) -> str:
    result = stored.study("transfer")
    arms = list(dict.fromkeys(case.about["trained"] for case in found))
    text = (
        f"Mean over {len(arms)} arms ({listed(arms)}) and {seeds_of(result)}; NLL in nats per torque, "
        "lower is better; unseen: motions that no training row comes near. "
        "A gap: not stored, or the method has no likelihood."
    )
    text += f" Tables: {len(tabled)} data sets." * bool(tabled)
    text += f" Costs: SARCOS, random split, each method alone on {result['provenance']['device']}; training "
    return f"{text}is that of networks beyond the one that is given."


def loses(stored: Stored) -> str:
    """Where a peer is better beyond the interval over seeds; most of what speaks against us first."""
    found, tabled = cases(stored, "transfer"), _tabled(stored)
    return bullets(
        [
            *_in_domain(found),
            *_elsewhere(found),
            *_coverage([*found, *tabled]),
            *_tables(tabled),
            *sequences(stored),
            *classes(stored),
            *detectors(stored),
            *calls(stored),
        ]
    )


def _in_domain(found: Sequence[StoredCase]) -> list[str]:
    sentences, unsure, free = [], [], []
    for case in found:
        ahead, mostly = better_than_ours(case, OURS), mostly_better(case, OURS)
        if ahead:
            (first, gap), *rest = ahead
            also = f"; so have {_named([name for name, _ in rest])}" if rest else ""
            far = f"{gap.mean:.2f} ({gap.low:.2f} to {gap.high:.2f})"
            sentences.append(f"**{case.name}**: `{first}` has the lower NLL, by {far}{also}.")
        elif mostly:
            unsure.append(f"{case.name} ({_named(mostly)})")
        else:
            free.append(case.name)
    if unsure:
        sentences.append(f"Lower in most seeds, if not {BEYOND}: {'; '.join(unsure)}.")
    lost = f"{len(found) - len(free)} of {len(found)} cases"
    end = f"On the arm that trained some peer is lower in most seeds in {lost}"
    return [*sentences, f"{end}; not in {listed(free)}." if free else f"{end}."]


def _named(methods: Sequence[str]) -> str:
    """Names with commas in them, kept apart."""
    return listed([f"`{method}`" for method in methods])


def _elsewhere(found: Sequence[StoredCase]) -> list[str]:
    """On other arms, zero shot, by split: in how many cases each peer is ahead."""
    sentences = []
    for split in dict.fromkeys(case.about["split"] for case in found):
        part = [case for case in found if case.about["split"] == split]
        places = list(other_tests(part))
        ahead = Counter(peer for case, test in places for peer, _ in better_than_ours(case, OURS, test))
        most = [f"`{name}` in {count}" for name, count in ahead.most_common(4)]
        worst = max(
            ((case.mean(OURS, "nll", test) or 0.0, case, test) for case, test in places), key=lambda o: o[0]
        )
        text = f"On other arms, zero shot, trained with the {split} split ({len(places)} cases): "
        text += (
            f"lower NLL than ours have {listed(most)}"
            if most
            else "no peer has a lower NLL beyond the interval"
        )
        sentences.append(
            f"{text}. Our worst is {short(worst[0])} nats, {worst[1].about['trained']} on {worst[2]}."
        )
    return sentences


def _coverage(found: Sequence[StoredCase]) -> list[str]:
    """Cases in which the 95 % interval covers too little or too much."""
    off = []
    for method in OWN:
        shares = [(case.name, case.mean(method, "coverage")) for case in found]
        off += [f"{n} {percent(s)} ({method})" for n, s in shares if s is not None and not LOW <= s <= HIGH]
    bounds = f"less than {100 * LOW:.0f} % or more than {100 * HIGH:.1f} %"
    return [f"The 95 % interval covers {bounds} in: {listed(off)}."] if off else []


def _tabled(stored: Stored) -> list[StoredCase]:
    try:
        return cases(stored, "tables")
    except NotRun:
        return []


def _tables(found: Sequence[StoredCase]) -> list[str]:
    """Peers that are ahead on most tables."""
    if not found:
        return []
    ahead = Counter(peer for case in found for peer, _ in better_than_ours(case, OURS))
    behind = Counter(
        peer
        for case in found
        for peer in peers_of(case)
        if (gap := case.against(OURS, peer)) is not None and gap.verdict == "better"
    )
    lines = [f"`{peer}` in {count} (worse in {behind[peer]})" for peer, count in ahead.most_common(5)]
    text = f"On {len(found)} tables a lower NLL beyond the interval have: {listed(lines)}." if lines else ""
    return [text or f"On {len(found)} tables no peer has a lower NLL beyond the interval."]
