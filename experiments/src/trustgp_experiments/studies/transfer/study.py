"""`trustgp study transfer`: every method, trained on one arm and tested on all. The paper's Table 1."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...core.arm import evenly, scaled_rows
from ...core.cases import IN_DOMAIN, Case, measure_costs, read_tests
from ...core.dropout import RATES, best_rate, search_dropout
from ...core.figures import draw_dots
from ...core.grid import Grid, run_parallel
from ...core.recipes import Pair, mlp_recipe
from ...core.regression import failures, method_names, score_methods
from ...core.result import Figure, Result, Setting, make_result
from ...datasets import Recording, Split, load, split_random, split_unseen, standardise
from .scores import AXES, costed_case, others, summarise

TRAINED = ("sarcos", "barrett", "kuka", "kuka_sim")
TESTED = (*TRAINED, "sarcos_sim", "barrett_sim")
SPLITS: dict[str, Callable[[Recording, int], Split]] = {
    "random": lambda recording, seed: split_random(len(recording.inputs), seed=seed),
    "unseen": lambda recording, seed: split_unseen(recording, seed=seed),
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
    at = {", ".join(case): case for case in cases}
    own_arm = {title: {title: (*case, IN_DOMAIN)} for title, case in at.items()}
    other_arms = {title: {test: (*case, test) for test in others(grid, *case)} for title, case in at.items()}
    draw_dots(setting.out / "in_domain.png", grid, own_arm, "nll")
    draw_dots(setting.out / "zero_shot.png", grid, other_arms, "nll")
    figures = [
        Figure("in_domain.png", "Likelihood on the arm that trained, both splits", CAPTION),
        Figure("zero_shot.png", "Likelihood on the other arms, zero shot", CAPTION),
    ]
    network, numbers = setting.sized(FULL, QUICK).words(), {"runs": grid.runs(), "costs": costs}
    rows = {" ".join(case): [part["sizes"] for part in parts] for case, parts in grid.parts.items()}
    protocol, summary = _protocol(setting, grid, network), summarise(numbers)
    return make_result(
        setting, "transfer", TITLE, protocol, numbers, summary, figures, network=network, rows=rows
    )


def trainings(quick: bool) -> list[tuple[str, str]]:
    """The recordings that train, and how they are split."""
    return [(trained, split) for trained in (TRAINED[:1] if quick else TRAINED) for split in SPLITS]


def foreign(trained: str, quick: bool) -> list[str]:
    """The recordings that one trained on `trained` is tested on, zero shot."""
    return [name for name in (TRAINED[:2] if quick else TESTED) if name != trained]


def make_case(trained: str, split: str, *, seed: int, quick: bool) -> Case:
    """Load, split by the seed, scale by the training rows; `quick`: a few hundred rows of two arms."""
    recording = load(trained)
    parts = SPLITS[split](recording, seed)
    scaling = standardise(recording.inputs[parts.train], recording.targets[parts.train])

    def rows(source: Recording, chosen: Tensor, part: str) -> Pair:
        kept = chosen[evenly(len(chosen), QUICK_ROWS[part])] if quick else chosen
        return scaled_rows(scaling, source, kept)

    tests = {IN_DOMAIN: rows(recording, parts.test, "test")}
    for name in foreign(trained, quick):
        other = load(name)
        tests[name] = rows(other, evenly(len(other.inputs), FOREIGN_ROWS), "test")
    return Case(rows(recording, parts.train, "train"), rows(recording, parts.validation, "validation"), tests)


def one_training(setting: Setting, trained: str, split: str, seed: int, only: str = "") -> dict[str, Any]:
    """Every method on one training set, tested on everything or on one set only: sizes, scores and costs."""
    rates = dropout_rates(setting, trained, split)
    case = make_case(trained, split, seed=seed, quick=setting.quick)
    tests = {only: case.tests[only]} if only else case.tests
    recipe, rows = setting.sized(FULL, QUICK), (case.train, case.validation)
    bundle = recipe.bundle(*rows, seed=seed, dropout=best_rate(rates), **setting.place)
    methods, failed = score_methods(bundle, method_names(quick=setting.quick), tests)
    return {"sizes": case.sizes, "dropout": rates, "methods": methods, "failed": failed}


def dropout_rates(setting: Setting, trained: str, split: str) -> dict[str, float]:
    """Validation NLL of MC-dropout by its rate, of the first seed."""

    def search() -> dict[str, float]:
        case = make_case(trained, split, seed=0, quick=setting.quick)
        return search_dropout(setting, setting.sized(FULL, QUICK), case)

    return setting.once(f"{trained}-{split}-dropout", search)


def _protocol(setting: Setting, grid: Grid, network: str) -> list[str]:
    rates = {" ".join(case): parts[0]["dropout"] for case, parts in grid.parts.items()}
    chosen = "; ".join(f"{case} {best_rate(tried):g} of {', '.join(tried)}" for case, tried in rates.items())
    return [
        "Inverse dynamics of 7-joint arms: positions, velocities and accelerations to torques, 21 -> 7. "
        "sarcos, barrett and kuka (LWR4+) are real recordings; kuka_sim has computed rigid-body torques, "
        "sarcos_sim and barrett_sim come from the SL simulator. Duplicate rows are dropped first.",
        "A network trains on one recording and is tested in domain and, zero shot, on every other recording "
        f"(at most {FOREIGN_ROWS:,} rows, evenly spaced). Inputs and targets are scaled by the TRAINING "
        "rows' means and standard deviations, so errors and NLL are in units of the training torques' "
        "spread.",
        "Two splits. random: 20 % of the rows test and 10 % validate, at random; neighbours in time resemble "
        "each other, so these are known motions. unseen: test rows from parts of the motion that no training "
        "row comes near: blocks of time (sarcos, barrett: 30 blocks, every fifth tests, the seed decides "
        "which, four others validate), blocks of a periodic motion in all its repeats (kuka), whole motions "
        "(kuka_sim). Rows at the ends of blocks are left out.",
        f"Network: {network}. One such network serves every method that needs no networks of its own. The "
        "rate of dropout has the lowest validation NLL with seed 0, searched until no end of the grid wins, "
        f"from {RATES[0]:g} to {RATES[-1]:g}: {chosen}.",
        "Every method may fit scale, noise and tails to the same validation rows, with the same prior of "
        "outliers; the paper's form uses none, and 'as trained' has a noise only. All test rows are scored. "
        "NLL is the mean negative log density per torque of the method's own distribution; coverage and "
        "width are of its 95 % interval, the worst tenth is of ten stretches of consecutive test rows; AUROC "
        "and FPR95 separate in-domain test rows from another recording by the mean standard deviation of a "
        f"row. Conformal intervals have no likelihood. {failures(grid)}",
        f"{setting.seeds} seeds: a seed decides the split, the networks and the fits. Cells are mean ± "
        "standard deviation (n - 1) over seeds. Worse and better are by the 95 % interval of paired "
        "differences, by Student's t with Nadeau and Bengio's allowance for training rows that seeds share. "
        "Fit seconds exclude the training of networks; further networks have a column of their own. Times in "
        f"the large tables were measured with {setting.jobs} parallel processes, those of the table of costs "
        "with one.",
        "Causes of the losses. kuka_sim shares motions with kuka, barrett_sim resembles barrett, under other "
        "torques: their inputs are not novel, so that only an error bar which is too wide in domain looks "
        "right. One row of kuka_sim is an outlier: where it is among the test rows, every sharp error bar "
        "has a large NLL; a prior of half an outlier in n rows bounds that cost, and also the sharpness. An "
        "ensemble averages five networks, whose error is below that of one; trustgp keeps the prediction of "
        "the one network. With unseen motions, validation and test rows are of different motions, so that "
        "the scale of the ones need not suit the others.",
    ]


CAPTION = (
    "Mean over seeds by method, lower is better; our methods in bold. The axis is logarithmic beyond 2 nats. "
    "Infinite values are in the tables."
)
