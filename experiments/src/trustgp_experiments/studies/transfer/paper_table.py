"""The paper's Table 1 as printed, and ours like for like: all methods untuned as there, then tuned.

Lee, Feng, Humt, Mueller, Triebel: "Trust Your Robots! Predictive Uncertainty Estimation of Neural Networks
with Sparse Gaussian Processes", CoRL 2021, Table 1: NLL, mean and standard deviation of 3 initialisations.
"""

from collections import Counter

from ...core.cases import IN_DOMAIN
from ...core.grid import Grid, Place
from ...core.regression import NLL
from ...core.result import Column, Table, note

METHODS: tuple[str, ...] = ("ensemble", "MC-dropout", "rMC-dropout", "Laplace", "rLaplace", "theirs")
PRINTED = {
    "sarcos on sarcos": "1.261 0.105 1.398 0.012 1.398 0.012 1.392 0.014 1.392 0.014 1.035 0.039",
    "sarcos on kuka1": "17.86 2.995 16.21 0.866 20.58 1.144 25.88 1.354 24.55 2.746 21.53 2.268",
    "sarcos on kuka2": "17.50 2.895 15.63 0.858 20.17 0.988 25.59 1.079 24.42 2.257 20.92 2.236",
    "sarcos on kukasim": "23.06 2.649 51.09 11.14 61.40 12.921 77.13 15.40 74.03 13.23 68.95 4.003",
    "kuka1 on kuka1": "2.013 0.020 1.611 0.007 1.620 0.006 1.676 0.013 1.719 0.071 1.347 0.013",
    "kuka1 on kuka2": "2.085 0.005 1.349 0.019 1.330 0.006 1.310 0.005 1.310 0.008 1.315 0.003",
    "kuka1 on kukasim": "60.44 1.108 42.14 2.869 48.76 0.566 60.37 0.799 59.74 1.571 1.348 0.012",
    "kuka1 on sarcos": "8.128 0.169 22.24 4.288 42.36 2.398 122.68 13.32 1837 2431.3 1.356 0.014",
    "kuka2 on kuka2": "2.042 0.009 1.443 0.005 1.423 0.006 1.429 0.006 1.423 0.006 1.354 0.013",
    "kuka2 on kukasim": "63.07 0.741 38.94 0.561 48.93 0.779 60.36 1.005 59.05 1.158 1.333 0.012",
    "kuka2 on sarcos": "8.509 0.461 18.24 1.599 53.24 6.287 141.7 17.14 211.3 180.2 1.355 0.014",
    "kuka2 on kuka1": "2.106 0.010 1.461 0.004 1.395 0.004 1.373 0.005 1.374 0.004 1.331 0.013",
}
"""Mean and deviation of each of `METHODS`, by training and test set."""
UNTUNED = (
    *("ensemble of 5, as trained", "MC-dropout 20, untuned", "rMC-dropout, untuned"),
    *("Laplace sampled, untuned", "Laplace GLM, untuned", "trustgp paper form"),
)
TUNED = (
    *("ensemble of 5", "MC-dropout 20", "rMC-dropout", "Laplace sampled", "Laplace GLM"),
    *("trustgp", "trustgp corrected"),
)
TITLES = {"untuned, as in the paper": UNTUNED, "tuned": TUNED}
"""Methods of that table as run here: with a noise alone, and with all that the validation rows decide."""
KNOWN, NEW = "known motions", "new motions"
PAIRS = (
    *(("sarcos", KNOWN, IN_DOMAIN), ("sarcos", NEW, "kuka"), ("sarcos", NEW, "kuka_sim")),
    *(("kuka", KNOWN, IN_DOMAIN), ("kuka", NEW, "kuka_sim"), ("kuka", NEW, "sarcos")),
)
"""Training set, split and test set: own rows of known motions, as in the paper; other arms with `NEW`."""


def printed() -> dict[str, list[list[float]]]:
    """Mean and deviation of each of `METHODS`, by row."""
    numbers = {row: [float(value) for value in text.split()] for row, text in PRINTED.items()}
    return {row: [list(pair) for pair in zip(v[::2], v[1::2], strict=True)] for row, v in numbers.items()}


def paper_tables(grid: Grid) -> list[Table]:
    """Tables as printed, then of our runs untuned and tuned, where these methods and arms were run."""
    columns = [Column.text("method"), *(Column(row, digits=3, better="low") for row in PRINTED)]
    rows = [[m, *(cells[place] for cells in printed().values())] for place, m in enumerate(METHODS)]
    tables = [Table("The paper's Table 1, as printed", columns, rows, note=note(__name__, "Printed"))]
    for title, methods in TITLES.items():
        own = {m: [NLL.cell(grid.values((*place, m), NLL.key)) for place in _places(grid)] for m in methods}
        rows = [[method, *cells] for method, cells in own.items() if any(cell is not None for cell in cells)]
        columns = [Column.text("method"), *(Column(_name(place), 3, "low") for place in _places(grid))]
        if rows:
            text = note(__name__, "Like for like")
            tables.append(Table(f"Table 1 here, {title}", columns, rows, note=text))
    return tables


def _places(grid: Grid) -> list[Place]:
    there = {place[:-1] for place in grid.cells}
    return [place for place in PAIRS if place in there]


def _name(place: Place) -> str:
    trained, _, tested = place
    return f"{trained} on {trained if tested == IN_DOMAIN else tested}"


def paper_findings(grid: Grid) -> list[str]:
    """Sentences on how often each method has the lowest NLL, as printed and here."""
    rows = {row: dict(zip(METHODS, (c[0] for c in cells), strict=True)) for row, cells in printed().items()}
    lowest = _ranks(list(rows.values()))
    sentences = [f"In the paper's Table 1 the lowest are, of {len(rows)} rows: {lowest}."]
    for title, methods in TITLES.items():
        shown = [m for m in methods if all(grid.values((*p, m), NLL.key) for p in _places(grid))]
        means = [{m: grid.mean((*place, m), NLL.key) for m in shown} for place in _places(grid)]
        if means and len(shown) > 1:
            sentences.append(f"Here, {title}, of {len(means)} such pairs of recordings: {_ranks(means)}.")
    return sentences


def _ranks(rows: list[dict[str, float]]) -> str:
    """Text with the number of rows in which each method has the lowest mean."""
    counts = Counter(min(row, key=row.__getitem__) for row in rows)
    return ", ".join(f"{method} in {count}" for method, count in counts.most_common())
