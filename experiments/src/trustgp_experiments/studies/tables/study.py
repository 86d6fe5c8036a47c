"""`trustgp study tables`: every method on regression tables, UCI's on their public splits."""

from collections.abc import Mapping
from typing import Any

import torch

from ...core import regression
from ...core.arm import evenly
from ...core.cases import COSTS, IN_DOMAIN, METHOD, OURS, Case, read_tests
from ...core.claim import versus
from ...core.dropout import best_rate, search_dropout
from ...core.grid import Grid, run_parallel
from ...core.pivot import Pivot
from ...core.recipes import NetworkRecipe, Pair, mlp_recipe
from ...core.regression import CORRECTED, compare, lost_cases, method_names, rivals, score_methods, standings
from ...core.result import Result, Setting, Table, make_result, prose
from ...datasets import standardise
from ...datasets.tables import TABLES, load_table

AXES = ("table", "tested", "method")
# not here: methods whose sampled, propagated or untuned form is in `transfer`
OMITTED_METHODS = (
    *("rMC-dropout", "Laplace sampled", "trustgp, no witness", "MC-dropout 20, untuned"),
    *("rMC-dropout, untuned", "Laplace sampled, untuned", "Laplace GLM, untuned"),
)
QUICK_TABLES = ("growing noise",)
QUICK_ROWS = {"train": 120, "validation": 40, "test": 40}
STEPS, MANY_STEPS = (300, 1000), (1000, 4000)  # of a training; validation rows of the first split choose
MANY_ROWS = 5000  # from which more steps are tried
QUICK_STEPS = (40,)
SMALLEST_BATCH, LARGEST_BATCH = 16, 256
HIDDEN = [64, 64]
TITLE = "On plain tables, small and large: whose error bar is right, and at what cost?"
STANDINGS = (
    "Tables on which it is worse / alike / better, by the 95 % interval of paired differences; in brackets "
    "after Holm's correction for the number of methods on a table."
)


def run(setting: Setting) -> Result:
    """Train, fit every method and score it, for each table and split."""
    cases = [(name,) for name in setting.sized(tuple(TABLES), QUICK_TABLES)]
    for (name,) in cases:  # missing files raise before any work
        load_table(name)
    run_parallel(setting, choices, cases[::-1])
    grid = Grid.run(setting, one_split, cases, axes=AXES, read=read_tests)
    numbers, rows = {"runs": grid.runs()}, {name: grid.parts[name,][0]["sizes"] for (name,) in cases}
    about, chosen = [], []
    for name in grid.along("table"):
        table, part = TABLES[name], grid.parts[name,][0]
        about.append(f"{name} ({table.about}; {table.origin}; {part['sizes']['train']} rows train)")
        rates, steps = part["choices"]["dropout"], part["choices"]["steps"]
        chosen.append(f"{name} {steps} steps, dropout {best_rate(rates):g} of {', '.join(rates)}")
    protocol = prose(__name__, setting=setting, rows=about, chosen=chosen, failures=regression.failures(grid))
    return make_result(setting, "tables", TITLE, protocol, numbers, summarise, rows=rows)


def make_case(table: str, *, seed: int, quick: bool) -> Case:
    """Rows of a table, split by the seed and scaled by the training rows; `quick` keeps a few hundred."""
    rows = load_table(table)
    split = rows.split(seed)
    scaling = standardise(rows.inputs[split.train], rows.targets[split.train])

    def scaled(part: str) -> Pair:
        chosen: torch.Tensor = getattr(split, part)
        kept = chosen[evenly(len(chosen), QUICK_ROWS[part])] if quick else chosen
        return scaling.inputs(rows.inputs[kept]).float(), scaling.targets(rows.targets[kept]).float()

    return Case(scaled("train"), scaled("validation"), {IN_DOMAIN: scaled("test")})


def recipe(case: Case, steps: int) -> NetworkRecipe:
    """Recipe of a network with two hidden layers: batches of a tenth of the rows, about `steps` steps."""
    inputs, targets = case.train
    batch = min(max(len(inputs) // 10, SMALLEST_BATCH), LARGEST_BATCH)
    epochs = max(1, round(steps * batch / len(inputs)))
    widths = [inputs.shape[1], *HIDDEN, targets.shape[1]]
    return mlp_recipe(widths, epochs=epochs, batch_size=batch, together=True)


def choices(setting: Setting, table: str) -> dict[str, Any]:
    """Training steps and dropout rate, chosen on the validation rows of the first split."""

    def choose() -> dict[str, Any]:
        case = make_case(table, seed=0, quick=setting.quick)
        inputs, targets = (part.to(setting.device) for part in case.validation)
        error = {}
        tried = MANY_STEPS if len(case.train[0]) >= MANY_ROWS else STEPS
        for steps in setting.sized(tried, QUICK_STEPS):
            network = recipe(case, steps).train(case.train, seed=0, **setting.place)
            with torch.no_grad():
                error[str(steps)] = float((network(inputs) - targets).square().mean())
        steps = int(min(error, key=error.__getitem__))
        dropout = search_dropout(setting, recipe(case, steps), case)
        return {"error": error, "steps": steps, "dropout": dropout}

    return setting.once(f"{table}-choices", choose)


def one_split(setting: Setting, table: str, seed: int) -> dict[str, Any]:
    """Sizes, choices, and the scores and costs of every method, on one split."""
    chosen = choices(setting, table)
    case = make_case(table, seed=seed, quick=setting.quick)
    rows, rate = (case.train, case.validation), best_rate(chosen["dropout"])
    bundle = recipe(case, chosen["steps"]).bundle(*rows, seed=seed, dropout=rate, **setting.place)
    names = method_names(quick=setting.quick, without=OMITTED_METHODS)
    methods, failed = score_methods(bundle, names, case.tests)
    return {"sizes": case.sizes, "choices": chosen, "methods": methods, "failed": failed}


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Tables with standings, likelihood, CRPS and coverage by table, then every measure; and findings."""
    grid = Grid.of_runs(AXES, numbers["runs"], read_tests)
    names, at = grid.along("table"), {"tested": IN_DOMAIN}
    places = [(name, IN_DOMAIN) for name in names]
    groups = {"NLL": (places, "nll"), "CRPS": (places, "crps")}
    pivots = []
    for title, measure, note in (
        ("NLL", regression.NLL, "Lower is better, the best in bold; in units of the training targets."),
        ("CRPS", regression.CRPS, ""),
        ("95 % coverage", regression.COVERAGE, ""),
        ("95 % width", regression.WIDTH, ""),
        ("mse", regression.MSE, "The root is the RMSE that papers on Gaussian processes report."),
    ):
        columns = [measure.at(name, table=name) for name in names]
        pivots.append(Pivot(f"{title} by table", METHOD, columns, at, note=note))
    every = [*regression.MEASURES, *COSTS]
    pivots += [Pivot(f"Every measure: {name}", METHOD, every, {**at, "table": name}) for name in names]
    ranks = [standings(grid, ours, groups, STANDINGS, named=True) for ours in (OURS, CORRECTED)]
    return [*ranks, *(pivot.table(grid) for pivot in pivots)], findings(grid)


def findings(grid: Grid) -> list[str]:
    """Sentences on the rivals that are ahead of us on a table, the most frequent first, and on coverage."""
    places, sentences = [(name, IN_DOMAIN) for name in grid.along("table")], []
    for ours in (OURS, CORRECTED):
        gaps = {rival: compare(grid, places, ours, rival) for rival in rivals(grid)}
        order = sorted((r for r in gaps if gaps[r]), key=lambda r: -len(lost_cases(gaps[r])))
        shown = [rival for rival in order if lost_cases(gaps[rival])] or order[:1]
        sentences += [f"{ours} against {rival}, NLL: {versus(gaps[rival])}." for rival in shown]
    covered = {name: grid.mean((name, IN_DOMAIN, OURS), "coverage") for name in grid.along("table")}
    ends = [f"{name} {100 * share:.1f} %" for name, share in sorted(covered.items(), key=lambda one: one[1])]
    sentences.append(f"The 95 % interval of trustgp covers, from the least to the most: {', '.join(ends)}.")
    return sentences
