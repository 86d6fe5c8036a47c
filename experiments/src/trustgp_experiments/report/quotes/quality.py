"""Blocks about the quality benchmarks: what each form reached, on other arms too, and with few rows."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from .stored import Stored, bullets, grid, listed, number, percent, words

KNOWN = {"validation": "validation rows", "groups": "groups", "default": "neither"}
RIVALS = ("ensemble of 5, tails", "ensemble of 5")
ARMS = "trustgp"


def _cases(stored: Stored, name: str) -> dict[str, Mapping[str, Any]]:
    """By name of the case, figures by method, from one run or from several."""
    found = stored.benchmark(name)
    runs = found if isinstance(found, list) else [found]
    return {case: methods for run in runs for case, methods in run["cases"].items()}


def _score(methods: Mapping[str, Any], name: str) -> str:
    """NLL of the method's own distribution, that of a Gaussian where it is stored, and the coverage."""
    if name not in methods:
        return ""
    one = methods[name]
    bell = f" ({number(one['gaussian_nll'], 3)})" if "gaussian_nll" in one else ""
    return f"{number(one['nll'], 3)}{bell}, {percent(one['coverage'])}"


def forms(stored: Stored, *, name: str) -> str:
    """One run of `benchmarks/quality.py`: by case and by what the calibration was given."""
    rows = []
    for case, methods in _cases(stored, name).items():
        rival = next((method for method in RIVALS if method in methods), "")
        for key, known in KNOWN.items():
            if f"trustgp {key}" in methods:
                own = [_score(methods, f"trustgp {key}"), _score(methods, f"trustgp {key} corrected")]
                rows.append([f"{case}, {known}", *own, _score(methods, rival) if key == "validation" else ""])
    return grid(["", "own", "corrected", "ensemble of 5"], rows)


def history(stored: Stored) -> str:
    """Every stored run of `benchmarks/quality.py`: NLL with validation rows, beside five networks."""
    rows = []
    for name in stored.benchmarks("quality-"):
        for case, methods in _cases(stored, name).items():
            rival = next((method for method in RIVALS if method in methods), "")
            picked = ("trustgp validation", "trustgp validation corrected", rival)
            near = [number(methods[m]["nll"], 3) if m in methods else "" for m in picked]
            far = [number(methods[m]["ood_nll"], 1) if m in methods else "" for m in (picked[0], rival)]
            rows.append([f"`{name}`", case, *near, *far])
    columns = ["run", "case", "own", "corrected", "ensemble of 5", "other arm: own", "other arm: ensemble"]
    return grid(columns, rows)


def arms(stored: Stored) -> str:
    """On other arms: how often trustgp has the lower NLL, and where it has not."""
    found = stored.benchmark("other-arms")
    columns = ["split", "method", "cases"]
    rows, names = [], []
    for split, methods in found["won"].items():
        for method, one in methods.items():
            names = [key for key in one if key.startswith("against ")]
            counts = [f"{one[key]}" for key in names]
            rows.append([split, method, f"{one['cases']}", *counts, number(one["largest"], 1)])
    columns += [f"lower than {name.removeprefix('against ')}" for name in names] + ["largest of ours, nats"]
    return f"{grid(columns, rows)}\n\n{_lost(found['runs'])}"


def _lost(runs: Mapping[str, Any]) -> str:
    """Pairs of arms in which each peer is lower, on average over seeds, the widest gaps first."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for run, methods in runs.items():
        case = run.rsplit(" ", 1)[0]
        for method, tests in methods.items():
            for test, nll in tests.items():
                if test != "in domain":
                    values.setdefault((method, case, test), []).append(nll)
    means = {key: fmean(value) for key, value in values.items()}
    peers = list(dict.fromkeys(method for method, _, _ in means if not method.startswith(ARMS)))
    sentences = []
    for peer in peers:
        gaps = [
            (means[ARMS, case, test] - theirs, f"{case} on {test}", means[ARMS, case, test], theirs)
            for (method, case, test), theirs in means.items()
            if method == peer and theirs < means[ARMS, case, test]
        ]
        worst = [
            f"{where} ({number(b, 1)}, ours {number(a, 1)})" for _, where, a, b in sorted(gaps)[::-1][:3]
        ]
        if gaps:
            sentences.append(f"`{peer}` is lower in {len(gaps)} pairs, by most in {listed(worst)}.")
    return bullets(sentences)


def honesty(stored: Stored) -> str:
    """Rows learnt by heart, and few validation rows: what the 95 % interval covers."""
    found = stored.benchmark("honesty")
    alone = [one["coverage"] for one in found["memorised"]]
    sizes = [one["rows"] for one in found["memorised"]]
    first = (
        f"{len(alone)} networks that have learnt {min(sizes)} to {max(sizes)} independent rows by heart, "
        "without "
        f"validation rows: the 95 % interval covers {percent(min(alone))} at least, "
        f"{percent(fmean(alone))} on average."
    )
    rows = []
    for case in found["few"][0]:
        by_count = {count: [seed[case][count] for seed in found["few"]] for count in found["few"][0][case]}
        for count, seeds in by_count.items():
            own, corrected = ([one[key] for one in seeds] for key in ("coverage", "corrected_coverage"))
            nll = [fmean(one[key] for one in seeds) for key in ("nll", "corrected_nll")]
            line = [case, count, *(number(value, 3) for value in nll)]
            rows.append(
                [*line, *(f"{percent(fmean(one))} ({percent(min(one))})" for one in (own, corrected))]
            )
    columns = [
        "data",
        "validation rows",
        "NLL, own",
        "corrected",
        "95 % covers, own (least)",
        "corrected (least)",
    ]
    return f"{words(first)}\n\n{grid(columns, rows)}"
