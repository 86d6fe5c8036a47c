"""Scores of regression methods, as all regression studies report them, and comparisons with trustgp."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trustgp.metrics import auroc, fpr95, squared_error

from ..peers.registry import INTERVAL_METHODS, METHODS, Bundle, Fitted, fit_methods
from .cases import IN_DOMAIN, Test, number, score_tests
from .claim import Difference, correct, paired, tally
from .grid import Grid, Place
from .pivot import Measure
from .result import Column, Table

NLL = Measure("nll", Column("NLL", digits=3, better="low"))
CRPS = Measure("crps", Column("CRPS", digits=4, better="low"))
COVERAGE = Measure("coverage", Column("95 % coverage", digits=1, unit="%"), factor=100.0)
MSE = Measure("mse", Column("mse", digits=5, better="low"))
WIDTH = Measure("sharpness", Column("95 % width", digits=3))
WORST_TENTH = Measure("coverage_worst", Column("in the worst tenth", digits=1, unit="%"), factor=100.0)
MEASURES = (NLL, CRPS, MSE, COVERAGE, WORST_TENTH, WIDTH)
NOVELTY = (
    Measure("auroc", Column("AUROC of the std", digits=3, better="high")),
    Measure("novelty_auroc", Column("of the novelty", digits=3, better="high")),
    Measure("fpr95", Column("FPR95", digits=3, better="low")),
    Measure("alarms", Column("flagged at 5 %", digits=1, unit="%"), factor=100.0),
)
SELECTIVE = (
    Measure("caught", Column("worst errors flagged", digits=1, better="high", unit="%"), factor=100.0),
    Measure("novelty_caught", Column("by the novelty", digits=1, better="high", unit="%"), factor=100.0),
    Measure("kept_mse", Column("mse of the others", digits=1, better="low", unit="%"), factor=100.0),
    NOVELTY[-1],
)
FLOORS = ("know-nothing", "gated know-nothing")
# not in a quick run
SLOW = ("FMGP", "Laplace sampled", "Laplace sampled, untuned", "sparse NTK GP", "SWAG", "SNGP", "RIO")
STRETCHES = 10  # of consecutive test rows; the lowest coverage among them is reported
ALARMS = 0.05  # share of the validation rows that a novelty threshold flags
WORST = 0.1  # share of the rows that selective prediction flags, and of errors that count as large
CORRECTED, PAPER, WITNESS = "trustgp corrected", "trustgp paper form", "witness alone"


def score_regression(prediction: Any, targets: Tensor) -> dict[str, Any]:
    """Scores of a prediction's distribution; conformal intervals have no likelihood, so no NLL and CRPS.

    NLL, CRPS and width are means over rows and outputs, in the units of the targets. Intervals are of 95 %.
    """
    targets = targets.to(prediction.mean.device)
    lower, upper = prediction.interval(0.95)
    inside = ((lower <= targets) & (targets <= upper)).double()
    shares = [float(part.mean()) for part in inside.tensor_split(STRETCHES) if len(part)]
    scores: dict[str, Any] = {"nll": None, "crps": None}
    if getattr(prediction, "log_prob", None) is not None:
        cost = -prediction.log_prob(targets).reshape(len(targets), -1)
        cost = torch.where(cost.isnan(), torch.inf, cost).mean(dim=0)
        scores |= {"nll": number(cost.mean()), "crps": number(prediction.crps(targets).mean())}
    return scores | {
        "mse": number(squared_error(prediction.mean, targets).mean()),
        "coverage": number(inside.mean()),
        "coverage_worst": min(shares),
        "sharpness": number((upper - lower).double().mean()),
    }


def row_std(prediction: Any) -> Tensor:
    """Mean standard deviation [n] of each row's targets, float64."""
    return prediction.std.double().reshape(len(prediction.std), -1).mean(dim=1)


def row_novelty(prediction: Any) -> Tensor | None:
    """Novelty score [n] of the method itself, float64; None if it has none, or one value for all rows."""
    score = getattr(prediction, "score", None)
    return None if score is None or not bool((score != score[:1]).any()) else score.double()


def score_selection(prediction: Any, targets: Tensor) -> dict[str, Any]:
    """Scores of selective prediction, which flags the tenth of the rows with the largest std, or novelty.

    They are the share of the tenth with the largest errors that is flagged, and the mse of the unflagged rows
    over that of all rows; by chance these are 0.1 and 1.
    """
    error = (prediction.mean.double() - targets.to(prediction.mean.device)).square()
    error = error.reshape(len(error), -1).mean(dim=1)
    flagged = max(1, round(WORST * len(error)))
    worst = error.argsort(descending=True)[:flagged]

    def caught(score: Tensor | None) -> tuple[float | None, float | None]:
        if score is None or bool(score.isnan().any()) or not bool((score != score[:1]).any()):
            return None, None
        chosen = torch.isin(torch.arange(len(error)).to(worst), score.argsort(descending=True)[:flagged])
        return float(chosen[worst].double().mean()), float(error[~chosen].mean() / error.mean())

    (by_std, kept), (by_novelty, _) = caught(row_std(prediction)), caught(row_novelty(prediction))
    return {"caught": by_std, "novelty_caught": by_novelty, "kept_mse": kept}


def score_method(
    fitted: Fitted, tests: Mapping[str, Test], device: str, validation: Tensor | None = None
) -> dict[str, Any]:
    """Scores and costs as of `score_tests`. AUROC and FPR95 use the mean std of a row's targets and are None
    where it is NaN; `novelty_auroc` uses the method's own novelty. `alarms` is the share of rows above the
    threshold that 5 % of the validation rows exceed, by novelty, else by std: in domain 5 % is right."""
    limit = None
    if validation is not None:
        familiar = fitted.predict(validation.to(device))
        scores = row_novelty(familiar)
        limit = (row_std(familiar) if scores is None else scores).nan_to_num(torch.inf).quantile(1 - ALARMS)

    def score(name: str, in_domain: Any, prediction: Any, targets: Tensor | None) -> dict[str, Any]:
        assert targets is not None, "every test set has targets"
        scores = score_regression(prediction, targets)
        novelties = [row_novelty(one) for one in (in_domain, prediction)]
        own = novelties[1] if None not in novelties else row_std(prediction)
        scores["alarms"] = None if limit is None or own is None else float((own > limit).double().mean())
        if name == IN_DOMAIN:
            return scores | score_selection(prediction, targets)
        sides = [row_std(one) for one in (in_domain, prediction)]
        scores |= {key: _separated(of, sides) for key, of in (("auroc", auroc), ("fpr95", fpr95))}
        return scores | {"novelty_auroc": _separated(auroc, novelties)}

    return score_tests(fitted, tests, device, score)


def _separated(measure: Any, sides: Sequence[Tensor | None]) -> Any:
    """Measure on the scores of familiar and other rows; None where a side has no score, or a NaN."""
    whole = all(side is not None and not bool(side.isnan().any()) for side in sides)
    return number(measure(*sides)) if whole else None


def method_names(*, quick: bool, without: Sequence[str] = ()) -> list[str]:
    """Names of the regression methods in the order of the tables; a quick run omits slow ones."""
    left_out = (*without, *(SLOW if quick else ()))
    return [method.name for method in (*METHODS, *INTERVAL_METHODS) if method.name not in left_out]


def score_methods(
    bundle: Bundle, names: Sequence[str], tests: Mapping[str, Test]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Results of `score_method` by name, and the errors of methods that cannot be fitted to these rows."""
    scores, failed = {}, {}
    for name in names:
        try:
            for fitted in fit_methods(bundle, [name]):
                scores[name] = score_method(fitted, tests, bundle.device, bundle.validation[0])
            if bundle.device.startswith("cuda"):  # other processes may share the GPU
                torch.cuda.empty_cache()
        except (ValueError, ArithmeticError, ImportError, RuntimeError) as error:  # LinAlgError, no memory
            failed[name] = str(error)
    return scores, failed


def failures(grid: Grid) -> str:
    """Text that lists which methods could not be fitted, where and why."""
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
    """Methods that are not ours. The paper's form is a rival; the witness alone is ours."""
    own = [m for m in grid.along("method") if m == WITNESS or (m.startswith("trustgp") and m != PAPER)]
    return [method for method in grid.along("method") if method not in own]


def compare(
    grid: Grid, places: Sequence[Place], ours: str, theirs: str, key: str = "nll"
) -> dict[str, Difference]:
    """Differences of our number minus a rival's, by the name of each place where both have one.

    A place has all labels of a grid but the last, the method. Where seeds draw test and training rows from
    one table, the interval allows for training rows that seeds share: see `paired`.
    """
    differences = {}
    for place in places:
        pair = [grid.values((*place, method), key) for method in (ours, theirs)]
        if None not in pair:
            first, second = ([float(value) for value in values or ()] for values in pair)
            differences[place_name(place)] = paired(first, second, overlap=_overlap(grid, place))
    return differences


def lost_cases(differences: Mapping[str, Difference]) -> list[str]:
    """Cases in which ours is worse."""
    return [case for case, difference in differences.items() if difference.verdict == "worse"]


def standings(
    grid: Grid, ours: str, groups: Mapping[str, tuple[Sequence[Place], str]], note: str, *, named: bool
) -> Table:
    """Table of how often ours is worse than each rival, alike and better, before and after Holm's correction
    for the number of rivals, with a column for each group of places and measure. `named` adds a column with
    the cases of the first group that are worse."""
    columns = [Column.text("method"), *map(Column.text, groups)]
    columns += [Column.text("worse on")] if named else []
    methods, rows = [method for method in grid.along("method") if method != ours], []
    compared = [compare_all(grid, places, ours, methods, key) for places, key in groups.values()]
    for rival in methods:
        cells = [group.get(rival, {}) for group in compared]
        if any(cells):
            row = [rival, *(tally(list(cell.values())) for cell in cells)]
            rows.append([*row, ", ".join(lost_cases(cells[0]))] if named else row)
    return Table(f"Where {ours} is worse, alike and better", columns, rows, note=note)


def compare_all(
    grid: Grid, places: Sequence[Place], ours: str, methods: Sequence[str], key: str = "nll"
) -> dict[str, dict[str, Difference]]:
    """Differences of `compare` by rival and place, corrected for the number of rivals in each place."""
    by_rival: dict[str, dict[str, Difference]] = {}
    for place in places:
        gaps = {m: gap for m in methods for gap in compare(grid, [place], ours, m, key).values()}
        for rival, gap in correct(gaps).items():
            by_rival.setdefault(rival, {})[place_name(place)] = gap
    return by_rival


def place_name(place: Place) -> str:
    """Name of a place: "sarcos new motions", "sarcos on kuka"."""
    *case, tested = place
    if not case or tested == IN_DOMAIN:
        return " ".join(case) or tested
    return f"{case[0]} on {tested}"


def _overlap(grid: Grid, place: Place) -> float:
    """Ratio of test to training rows where seeds draw both from the same rows; else 0."""
    *case, tested = place
    parts = next(filter(None, (grid.parts.get(tuple(case[:n])) for n in range(len(case), -1, -1))), ())
    sizes = parts[0].get("sizes") if parts else None
    return sizes[IN_DOMAIN] / sizes["train"] if sizes and tested == IN_DOMAIN else 0.0
