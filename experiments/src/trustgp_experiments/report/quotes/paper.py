"""Blocks of the page that sets the paper beside us: its own form (`trustgp.paper`), and ours."""

from collections.abc import Sequence

from ...core.result import Column
from ..terminal import text_of
from .comparisons import CORRECTED, OURS, StoredCase, cases, other_tests
from .stored import Stored, bullets, grid, number, percent, short, words

FORM = "trustgp paper form"
VERDICTS = 5  # findings of the ablation: what is against us, and four observations of the paper


def toy(stored: Stored) -> str:
    """Jumps of the deviation at the borders of experts, by patchwork."""
    table = stored.study("toy")["tables"][0]
    columns = [Column(**column) for column in table["columns"]]
    rows = [
        [text_of(cell, column) for cell, column in zip(row, columns, strict=True)] for row in table["rows"]
    ]
    return f"{grid([column.name for column in columns], rows)}\n\n{words(table['note'])}"


def ablation(stored: Stored) -> str:
    """Its observations, judged."""
    return bullets(stored.study("ablation")["findings"][:VERDICTS])


def transfer(stored: Stored) -> str:
    """On the arm that trained: NLL of the paper's own form and of ours, their difference, and what they "
    "cover."""
    rows = []
    for case in cases(stored, "transfer"):
        nll = [number(case.mean(method, "nll")) for method in (FORM, OURS, CORRECTED)]
        gap = case.against(FORM, OURS)
        covers = [percent(case.mean(method, "coverage")) for method in (FORM, OURS)]
        rows.append([case.name, *nll, "" if gap is None else gap.words(), *covers])
    columns = ["case", "paper's own form", OURS, CORRECTED, "its NLL above ours (95 % interval)"]
    return grid([*columns, "95 % covers: paper's own form", f"{OURS}"], rows)


def zero_shot(stored: Stored) -> str:
    """On other arms: who has the lower NLL beyond the interval, by split."""
    found = cases(stored, "transfer")
    sentences = []
    for split in dict.fromkeys(case.about["split"] for case in found):
        part = [case for case in found if case.about["split"] == split]
        gaps = [
            gap
            for case, test in other_tests(part)
            if (gap := case.against(FORM, OURS, test=test)) is not None
        ]
        lower, higher = (
            sum(one)
            for one in zip(*((gap.verdict == "better", gap.verdict == "worse") for gap in gaps), strict=True)
        )
        worst = [f"{short(_worst(part, method))} ({method})" for method in (FORM, OURS)]
        sentences.append(
            f"Trained with the {split} split, {len(gaps)} pairs of arms: the paper's own form has the "
            "lower NLL in "
            f"{lower}, ours in {higher}, alike in {len(gaps) - lower - higher}. The largest NLL: "
            f"{', '.join(worst)}."
        )
    return bullets(sentences)


def _worst(found: Sequence[StoredCase], method: str) -> float:
    return max(case.mean(method, "nll", test) or -float("inf") for case, test in other_tests(found))


def detection(stored: Stored) -> str:
    """What MC-dropout and trustgp cost over the detector, and how well they tell novel things."""
    numbers = stored.numbers("detection")
    told, times = numbers["worlds"]["scenes"]["told"], numbers["times"]
    rows = []
    for method, tests in told.items():
        if method in times:
            best = [
                max(one["auroc"]["mean"] for one in tests[test].values())
                for test in ("novel things", "flight")
            ]
            rows.append([method, number(times[method]["over"], 2), *(number(value, 3) for value in best)])
    return grid(["method", "times the detector", "AUROC, novel things", "AUROC, flights"], rows)
