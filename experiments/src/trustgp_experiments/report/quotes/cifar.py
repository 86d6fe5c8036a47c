"""Blocks from the benchmark of public networks on CIFAR-10, beside published rows."""

from typing import Any

from .stored import Stored, grid, number, short, words

CROPS, HELD_OUT = "5,000 cropped training images", "1,000 test images"
# NLL, ECE and NLL of turned images of ResNet-20, NLL of ResNet-56, seconds of the fit, and what tunes it:
# FMGP's repository, results/cifar10, on all 10,000 test images, means of five seeds
PUBLISHED = {
    "last-layer Laplace, KFAC": ("0.2659", "0.0239", "3.16", "0.2037", "15", CROPS),
    "ELLA": ("0.2310", "0.0083", "2.58", "0.1910", "1,003", CROPS),
    "VaLLA": ("0.2273", "0.0131", "2.50", "0.1837", "12,083", CROPS),
    "FMGP": ("0.2275", "0.0074", "2.35", "0.1830", "917", "nothing"),
    "mean-field VI, which changes the mean": ("0.2222", "0.0139", "2.61", "0.1823", "282", CROPS),
}
TUNED = {"network": "nothing", "one temperature": HELD_OUT, "default": HELD_OUT, "all classes": HELD_OUT}
SCORES = {"nll": "NLL", "ece": "ECE", "turned": "turned"}
OMITTED = {"mean variance alone", "own class's variance alone", "novelty", *TUNED} - {"default"}
NOVEL, MEASURES = ("turned", "letters", "textures"), ("score", "variance", "hidden vectors", "entropy")


def table(stored: Stored) -> str:
    """Table of our scores below the published rows."""
    found = stored.benchmark("cifar-cuda")
    small, large = found["figures"].values()
    rows = [[name, *values[:4], "", *values[4:]] for name, values in PUBLISHED.items()]
    for name, tuned in TUNED.items():
        both = ([_mean(one, name, key) for key in SCORES] for one in (small, large))
        (nll, ece, far), (other, _, further) = both
        cells = [number(nll, 4), number(ece, 4), number(far), number(other, 4), number(further)]
        rows.append([f"{name}, here", *cells, short(small.get(name, {}).get("fit s")), tuned])
    columns = ["", "NLL, ResNet-20", "ECE", "turned", "NLL, ResNet-56", "turned", "fit, s", "tuned on"]
    origin = f"{found['device']}, torch {found['torch']}, {found['train']:,} training images."
    return f"{grid(columns, rows)}\n\n{words(origin)}"


def parts(stored: Stored) -> str:
    """Tables of what each part of the probabilities and of the novelty score is worth."""
    figures = stored.benchmark("cifar-cuda")["figures"]
    names = [n for n in next(iter(figures.values()))["means and deviations"] if n not in OMITTED]
    by = [(one, key, f"{SCORES[key]}, {n}") for n, one in figures.items() for key in ("nll", "turned")]
    likely = [[name, *(number(_mean(one, name, key), 4) for one, key, _ in by)] for name in names]
    sets = [(one, kind, f"{kind}, {n}") for n, one in figures.items() for kind in NOVEL]
    novel = [
        [name, *(number(_mean(one, "novelty", f"auroc, {kind}, {name}"), 3) for one, kind, _ in sets)]
        for name in MEASURES
    ]
    first = grid(["", *(title for *_, title in by)], likely)
    second = grid(["AUROC", *(title for *_, title in sets)], novel)
    return f"{first}\n\n{second}"


def _mean(figures: dict[str, Any], name: str, key: str) -> float:
    return figures["means and deviations"][name][key][0]
