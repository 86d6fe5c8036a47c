"""Blocks of the comparison with the paper: its own form (`trustgp.paper`), and ours."""

from collections import Counter

from .comparisons import CORRECTED, OURS, cases, other_tests, splits_of
from .stored import Stored, bullets, grid, number, percent, short

FORM = "trustgp paper form"
NUM_VERDICTS = 5  # findings of the ablation: what is against us, and four observations of the paper


def ablation(stored: Stored) -> str:
    """Its observations, judged."""
    return bullets(stored.study("ablation")["findings"][:NUM_VERDICTS])


def transfer(stored: Stored) -> str:
    """On the arm that trained: NLL of the paper's own form and of ours, their difference, and coverage."""
    rows = []
    for case in cases(stored, "transfer"):
        nll = [number(case.mean(method, "nll")) for method in (FORM, OURS, CORRECTED)]
        gap = case.against(FORM, OURS)
        covers = [percent(case.mean(method, "coverage")) for method in (FORM, OURS)]
        rows.append([case.name, *nll, "" if gap is None else gap.words(), *covers])
    columns = ["case", "paper's own form", OURS, CORRECTED, "its NLL above ours (95 % interval)"]
    return grid([*columns, "95 % covers: paper's own form", OURS], rows)


def zero_shot(stored: Stored) -> str:
    """On other arms: who has the lower NLL beyond the interval, by split."""
    sentences = []
    for split, part in splits_of(cases(stored, "transfer")).items():
        places = list(other_tests(part))
        gaps = [gap for case, test in places if (gap := case.against(FORM, OURS, test=test)) is not None]
        counts = Counter(gap.verdict for gap in gaps)
        worst = {
            method: max(case.mean(method, "nll", test) or -float("inf") for case, test in places)
            for method in (FORM, OURS)
        }
        sentences.append(
            f"Trained with the {split} split, {len(gaps)} pairs of arms: the paper's own form has the lower "
            f"NLL in {counts['better']}, ours in {counts['worse']}, alike in {counts['alike']}. The largest "
            f"NLL: {', '.join(f'{short(value)} ({method})' for method, value in worst.items())}."
        )
    return bullets(sentences)
