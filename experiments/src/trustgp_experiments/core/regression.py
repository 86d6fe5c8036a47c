"""Scores of an error bar about numbers, as all studies of regression report them, and who is ahead."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trustgp.metrics import auroc, fpr95, interval_coverage, mse

from ..peers.registry import INTERVAL_METHODS, METHODS, Bundle, Fitted, fit_methods
from . import cases
from .cases import IN_DOMAIN, number
from .claim import Difference, paired
from .grid import Grid, Place
from .pivot import Measure
from .result import Column

NLL = Measure("nll", Column("NLL", digits=3, better="low"))
CRPS = Measure("crps", Column("CRPS", digits=4, better="low"))
COVERAGE = Measure("coverage", Column("95 % coverage", digits=1, unit="%"), factor=100.0)
MEASURES = (
    NLL,
    CRPS,
    Measure("mse", Column("mse", digits=5, better="low")),
    COVERAGE,
    Measure("coverage_worst", Column("in the worst tenth", digits=1, unit="%"), factor=100.0),
    Measure("sharpness", Column("width", digits=3)),
)
TOLD = (
    Measure("auroc", Column("AUROC", digits=3, better="high")),
    Measure("fpr95", Column("FPR95", digits=3, better="low")),
)
SLOW = ("FMGP", "Laplace sampled", "sparse NTK GP", "SWAG")  # not in a quick run
STRETCHES = 10  # of consecutive test rows; the one that is covered worst is told
VERDICTS = ("worse", "alike", "better")


def score_regression(said: Any, targets: Tensor, *, whole: bool = True) -> dict[str, Any]:
    """Of a prediction's own distribution; one without a likelihood, of conformal intervals, has gaps.

    NLL, CRPS and width are in the units of the targets, means over rows and outputs; with `whole=False` no
    CRPS is computed. Intervals are those of 95 %.
    """
    targets = targets.to(said.mean.device)
    lower, upper = said.interval(0.95)
    stretches = zip(*(part.tensor_split(STRETCHES) for part in (lower, upper, targets)), strict=True)
    shares = [float(interval_coverage(*parts)) for parts in stretches if len(parts[0])]
    scores: dict[str, Any] = {"nll": None, "nll_per_output": None, "crps": None}
    if getattr(said, "log_prob", None) is not None:
        cost = -said.log_prob(targets).reshape(len(targets), -1)
        cost = torch.where(cost.isnan(), torch.inf, cost).mean(dim=0)
        scores |= {"nll": number(cost.mean()), "nll_per_output": list(map(number, cost))}
        if whole:
            scores["crps"] = number(said.crps(targets).mean())
    return scores | {
        "mse": number(mse(said.mean, targets)),
        "coverage": number(interval_coverage(lower, upper, targets)),
        "coverage_worst": min(shares),
        "sharpness": number((upper - lower).double().mean()),
    }


def score_method(fitted: Fitted, tests: Mapping[str, cases.Test], device: str) -> dict[str, Any]:
    """See `score_tests`; sets are told apart by the mean std of a row's targets, None where it has none."""

    def score(name: str, known: Any, said: Any, targets: Tensor | None) -> dict[str, Any]:
        assert targets is not None, "targets are known everywhere"
        scores = score_regression(said, targets, whole=name == IN_DOMAIN)
        if name == IN_DOMAIN:
            return scores
        here, there = (one.std.double().reshape(len(one.std), -1).mean(dim=1) for one in (known, said))
        lost = bool(here.isnan().any() | there.isnan().any())
        measures = {"auroc": auroc, "fpr95": fpr95}
        return scores | {key: None if lost else number(of(here, there)) for key, of in measures.items()}

    return cases.score_tests(fitted, tests, device, score)


def method_names(*, quick: bool, without: Sequence[str] = ()) -> list[str]:
    """All that give an error bar about numbers, in the order of the tables."""
    left_out = (*without, *(SLOW if quick else ()))
    return [method.name for method in (*METHODS, *INTERVAL_METHODS) if method.name not in left_out]


def score_methods(
    bundle: Bundle, names: Sequence[str], tests: Mapping[str, cases.Test]
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
    found: dict[str, list[str]] = {}
    for case, parts in grid.parts.items():
        lost = [one for part in parts for one in part.get("failed", {}).items()]
        for method, why in dict.fromkeys(lost):
            where = f"{' '.join(map(str, case))}, {lost.count((method, why))} of {len(parts)} times"
            found.setdefault(f"{method}: {why}", []).append(where)
    if not found:
        return "Every method could be fitted everywhere."
    return "Not fitted: " + " ".join(f"{what} ({'; '.join(where)})" for what, where in found.items())


def compare(
    grid: Grid, places: Sequence[Place], ours: str, theirs: str, key: str = "nll"
) -> dict[str, Difference]:
    """By place, in words, how much larger our number is than a rival's, where both have one.

    A place is all of a grid's labels but the last, the method. Where test rows are drawn from what trains,
    the interval allows for training rows that seeds share: see `paired`.
    """
    found = {}
    for place in places:
        pair = [grid.values((*place, method), key) for method in (ours, theirs)]
        if None in pair:
            continue
        mine, other = ([float(value) for value in values or ()] for values in pair)
        found[told(place)] = paired(mine, other, overlap=_overlap(grid, place))
    return found


def tally(differences: Mapping[str, Difference]) -> str:
    """Worse, alike, better: "1 / 2 / 5"."""
    found = [difference.verdict for difference in differences.values()]
    return " / ".join(str(found.count(verdict)) for verdict in VERDICTS)


def told(place: Place) -> str:
    """A place in words: "sarcos unseen", "sarcos unseen on kuka"."""
    *case, tested = place
    return " ".join(case) + ("" if tested == IN_DOMAIN else f" on {tested}")


def _overlap(grid: Grid, place: Place) -> float:
    *case, tested = place
    known = (grid.parts.get(tuple(case[:length])) for length in range(len(case), -1, -1))
    parts = next(filter(None, known), ())
    sizes = parts[0].get("sizes") if parts else None
    return sizes[IN_DOMAIN] / sizes["train"] if sizes and tested == IN_DOMAIN else 0.0
