"""Scores of regression methods, as all studies of regression report them, and comparisons with trustgp."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trustgp.metrics import auroc, fpr95, interval_coverage, mse

from ..peers.registry import INTERVAL_METHODS, METHODS, Bundle, Fitted, fit_methods
from .cases import IN_DOMAIN, Test, number, score_tests
from .claim import Difference, paired
from .grid import Grid, Place
from .pivot import Measure
from .result import Column, Table

NLL = Measure("nll", Column("NLL", digits=3, better="low"))
CRPS = Measure("crps", Column("CRPS", digits=4, better="low"))
COVERAGE = Measure("coverage", Column("95 % coverage", digits=1, unit="%"), factor=100.0)
MSE = Measure("mse", Column("mse", digits=5, better="low"))
MEASURES = (
    *(NLL, CRPS, MSE, COVERAGE),
    Measure("coverage_worst", Column("in the worst tenth", digits=1, unit="%"), factor=100.0),
    Measure("sharpness", Column("width", digits=3)),
)
NOVELTY = (
    Measure("auroc", Column("AUROC", digits=3, better="high")),
    Measure("fpr95", Column("FPR95", digits=3, better="low")),
)
SLOW = ("FMGP", "Laplace sampled", "sparse NTK GP", "SWAG")  # not in a quick run
STRETCHES = 10  # of consecutive test rows; the lowest coverage among them is reported
CORRECTED, PAPER = "trustgp corrected", "trustgp paper form"


def score_regression(prediction: Any, targets: Tensor, *, crps: bool = True) -> dict[str, Any]:
    """Of a prediction's own distribution; conformal intervals, which have no likelihood, leave gaps.

    NLL, CRPS and width are in the units of the targets, means over rows and outputs. Intervals are of 95 %.
    """
    targets = targets.to(prediction.mean.device)
    lower, upper = prediction.interval(0.95)
    stretches = zip(*(part.tensor_split(STRETCHES) for part in (lower, upper, targets)), strict=True)
    shares = [float(interval_coverage(*parts)) for parts in stretches if len(parts[0])]
    scores: dict[str, Any] = {"nll": None, "nll_per_output": None, "crps": None}
    if getattr(prediction, "log_prob", None) is not None:
        cost = -prediction.log_prob(targets).reshape(len(targets), -1)
        cost = torch.where(cost.isnan(), torch.inf, cost).mean(dim=0)
        scores |= {"nll": number(cost.mean()), "nll_per_output": list(map(number, cost))}
        scores["crps"] = number(prediction.crps(targets).mean()) if crps else None
    return scores | {
        "mse": number(mse(prediction.mean, targets)),
        "coverage": number(interval_coverage(lower, upper, targets)),
        "coverage_worst": min(shares),
        "sharpness": number((upper - lower).double().mean()),
    }


def score_method(fitted: Fitted, tests: Mapping[str, Test], device: str) -> dict[str, Any]:
    """See `score_tests`; AUROC and FPR95 are by the mean std of a row's targets, None where it is NaN."""

    def score(name: str, in_domain: Any, prediction: Any, targets: Tensor | None) -> dict[str, Any]:
        assert targets is not None, "every test set has targets"
        scores = score_regression(prediction, targets, crps=name == IN_DOMAIN)
        if name == IN_DOMAIN:
            return scores
        sides = [one.std.double().reshape(len(one.std), -1).mean(dim=1) for one in (in_domain, prediction)]
        undefined = any(bool(side.isnan().any()) for side in sides)
        measures = {"auroc": auroc, "fpr95": fpr95}
        return scores | {key: None if undefined else number(of(*sides)) for key, of in measures.items()}

    return score_tests(fitted, tests, device, score)


def method_names(*, quick: bool, without: Sequence[str] = ()) -> list[str]:
    """All methods of regression, in the order of the tables."""
    left_out = (*without, *(SLOW if quick else ()))
    return [method.name for method in (*METHODS, *INTERVAL_METHODS) if method.name not in left_out]


def score_methods(
    bundle: Bundle, names: Sequence[str], tests: Mapping[str, Test]
) -> tuple[dict[str, Any], dict[str, str]]:
    """By name what `score_method` gives; and of methods that cannot be fitted to these rows, why."""
    scores, failed = {}, {}
    for name in names:
        try:
            for fitted in fit_methods(bundle, [name]):
                scores[name] = score_method(fitted, tests, bundle.device)
        except (ValueError, ArithmeticError, torch.linalg.LinAlgError) as error:  # pyright: ignore
            failed[name] = str(error)
    return scores, failed


def failures(grid: Grid) -> str:
    """Which methods could not be fitted where, and why, in words."""
    places: dict[str, list[str]] = {}
    for case, parts in grid.parts.items():
        failed = [one for part in parts for one in part.get("failed", {}).items()]
        for method, why in dict.fromkeys(failed):
            where = f"{' '.join(map(str, case))}, {failed.count((method, why))} of {len(parts)} times"
            places.setdefault(f"{method}: {why}", []).append(where)
    if not places:
        return "Every method could be fitted everywhere."
    return "Not fitted: " + " ".join(f"{what} ({'; '.join(where)})" for what, where in places.items())


def rivals(grid: Grid) -> list[str]:
    """Methods that are not our own, the paper's form among them."""
    return [m for m in grid.along("method") if not m.startswith("trustgp") or m == PAPER]


def compare(
    grid: Grid, places: Sequence[Place], ours: str, theirs: str, key: str = "nll"
) -> dict[str, Difference]:
    """By place, in words, how much larger our number is than a rival's, where both have one.

    A place is all of a grid's labels but the last, the method. Where test rows are drawn from what trains,
    the interval allows for training rows that seeds share: see `paired`.
    """
    differences = {}
    for place in places:
        pair = [grid.values((*place, method), key) for method in (ours, theirs)]
        if None not in pair:
            first, second = ([float(value) for value in values or ()] for values in pair)
            differences[place_name(place)] = paired(first, second, overlap=_overlap(grid, place))
    return differences


def tally(differences: Mapping[str, Difference]) -> str | None:
    """Worse, alike, better: "1 / 2 / 5"; None without cases."""
    verdicts = [difference.verdict for difference in differences.values()]
    counts = [str(verdicts.count(verdict)) for verdict in ("worse", "alike", "better")]
    return " / ".join(counts) if verdicts else None


def lost_cases(differences: Mapping[str, Difference]) -> list[str]:
    """Cases in which ours is worse."""
    return [case for case, difference in differences.items() if difference.verdict == "worse"]


def standings(
    grid: Grid, ours: str, groups: Mapping[str, tuple[Sequence[Place], str]], note: str, *, named: bool
) -> Table:
    """How often ours is worse than each rival, alike and better: a column for each group of places and
    measure. `named`: the last column names the cases of the first group that are worse."""
    columns = [Column.text("method"), *map(Column.text, groups)]
    columns += [Column.text("worse on")] if named else []
    rows = []
    for rival in [method for method in grid.along("method") if method != ours]:
        compared = [compare(grid, places, ours, rival, key) for places, key in groups.values()]
        if any(compared):
            row = [rival, *map(tally, compared)]
            rows.append([*row, ", ".join(lost_cases(compared[0]))] if named else row)
    return Table(f"Where {ours} is worse, alike and better", columns, rows, note=note)


def place_name(place: Place) -> str:
    """A place in words: "sarcos unseen", "sarcos unseen on kuka"."""
    *case, tested = place
    return " ".join(case) + ("" if tested == IN_DOMAIN else f" on {tested}")


def _overlap(grid: Grid, place: Place) -> float:
    """Test rows over training rows, where seeds draw both from the same rows; else 0."""
    *case, tested = place
    parts = next(filter(None, (grid.parts.get(tuple(case[:n])) for n in range(len(case), -1, -1))), ())
    sizes = parts[0].get("sizes") if parts else None
    return sizes[IN_DOMAIN] / sizes["train"] if sizes and tested == IN_DOMAIN else 0.0
