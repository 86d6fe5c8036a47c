"""`trustgp study transfer`: every method, trained on one arm and tested on all. The paper's Table 1."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...core.arm import evenly, scaled_rows
from ...core.cases import IN_DOMAIN, Case, measure_costs, read_tests
from ...core.dropout import RATES, best_rate, search_dropout
from ...core.grid import Grid, run_parallel
from ...core.recipes import Pair, mlp_recipe
from ...core.regression import failures, method_names, score_methods
from ...core.result import Result, Setting, make_result, prose
from ...datasets import Recording, Split, load, split_random, split_unseen, standardise
from .scores import AXES, KNOWN, NEW, costed_case, summarise

TRAINED = ("sarcos", "barrett", "kuka", "kuka_sim")
TESTED = (*TRAINED, "sarcos_sim", "barrett_sim")
SPLITS: dict[str, Callable[[Recording, int], Split]] = {
    NEW: lambda recording, seed: split_unseen(recording, seed=seed),
    KNOWN: lambda recording, seed: split_random(len(recording.inputs), seed=seed),
}
FOREIGN_ROWS = 5_000  # of another recording, evenly spaced: neighbours in time resemble each other
QUICK_ROWS = {"train": 160, "validation": 60, "test": 60}
FULL = mlp_recipe([21, *[200] * 5, 7], epochs=100, together=True)
QUICK = mlp_recipe([21, 16, 16, 7], epochs=3, together=True)
TITLE = "Whose error bar is right, on the arm it was trained on and on every other?"


def run(setting: Setting) -> Result:
    """Train, fit every method and score it on every arm, for each arm, split and seed."""
    cases = trainings(setting.quick)
    run_parallel(setting, dropout_rates, cases[::-1])  # the last recording has most rows
    grid = Grid.run(setting, one_training, cases, axes=AXES, read=read_tests)
    costs = measure_costs(setting, grid, one_training, costed_case(cases))
    network, numbers = setting.sized(FULL, QUICK).words(), {"runs": grid.runs(), "costs": costs}
    rows = {" ".join(case): [part["sizes"] for part in parts] for case, parts in grid.parts.items()}
    rates = {" ".join(case): parts[0]["dropout"] for case, parts in grid.parts.items()}
    chosen = "; ".join(f"{case} {best_rate(tried):g} of {', '.join(tried)}" for case, tried in rates.items())
    values = {"network": network, "chosen": chosen, "rates": RATES, "failures": failures(grid)}
    protocol = prose(__name__, setting=setting, **values)
    return make_result(setting, "transfer", TITLE, protocol, numbers, summarise, network=network, rows=rows)


def trainings(quick: bool) -> list[tuple[str, str]]:
    """The recordings that train, and how they are split."""
    return [(trained, split) for trained in (TRAINED[:1] if quick else TRAINED) for split in SPLITS]


def foreign(trained: str, quick: bool) -> list[str]:
    """Recordings on which a network trained on `trained` is tested, zero shot."""
    return [name for name in (TRAINED[:2] if quick else TESTED) if name != trained]


def make_case(trained: str, split: str, *, seed: int, quick: bool) -> Case:
    """Rows of an arm, split by the seed, scaled by the training rows; `quick`: a few hundred, of two arms."""
    recording = load(trained)
    parts = SPLITS[split](recording, seed)
    scaling = standardise(recording.inputs[parts.train], recording.targets[parts.train])

    def rows(source: Recording, chosen: Tensor, part: str) -> Pair:
        kept = chosen[evenly(len(chosen), QUICK_ROWS[part])] if quick else chosen
        return scaled_rows(scaling, source, kept)

    tests = {IN_DOMAIN: rows(recording, parts.test, "test")}
    for name in foreign(trained, quick) if split == NEW else ():
        other = load(name)
        tests[name] = rows(other, evenly(len(other.inputs), FOREIGN_ROWS), "test")
    return Case(rows(recording, parts.train, "train"), rows(recording, parts.validation, "validation"), tests)


def one_training(setting: Setting, trained: str, split: str, seed: int, only: str = "") -> dict[str, Any]:
    """Sizes, scores and costs of every method for one training set, on all test sets or on one of them."""
    rates = dropout_rates(setting, trained, split)
    case = make_case(trained, split, seed=seed, quick=setting.quick)
    tests = {only: case.tests[only]} if only else case.tests
    recipe, rows = setting.sized(FULL, QUICK), (case.train, case.validation)
    bundle = recipe.bundle(*rows, seed=seed, dropout=best_rate(rates), **setting.place)
    methods, failed = score_methods(bundle, method_names(quick=setting.quick), tests)
    return {"sizes": case.sizes, "dropout": rates, "methods": methods, "failed": failed}


def dropout_rates(setting: Setting, trained: str, split: str) -> dict[str, float]:
    """Validation NLL of MC-dropout by its rate, for the first seed."""

    def search() -> dict[str, float]:
        case = make_case(trained, split, seed=0, quick=setting.quick)
        return search_dropout(setting, setting.sized(FULL, QUICK), case)

    return setting.once(f"{trained}-{split}-dropout", search)
