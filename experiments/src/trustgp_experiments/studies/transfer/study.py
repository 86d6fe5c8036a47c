"""`trustgp study transfer`: every method, trained on one arm and tested on all. The paper's Table 1."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from trustgp import plots

from ...core.arm import evenly, scaled_rows
from ...core.cases import IN_DOMAIN, OURS, PREDICT, Case, costs_numbers, costs_table, read_tests
from ...core.claim import mean_spread
from ...core.dropout import RATES, best_rate, try_rates
from ...core.grid import Grid, Place, is_infinite, work_ahead
from ...core.recipes import Pair, mlp_recipe
from ...core.regression import failures, method_names, score_methods
from ...core.result import Figure, Result, Setting, provenance
from ...datasets import Recording, Split, load, split_random, split_unseen, standardise
from ...peers import MCDropout
from .scores import AXES, findings, others, tables

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
COSTED = ("sarcos", "random")  # whose times are taken with the machine to ourselves
OFFSET = 3.0  # added to NLL before its logarithm is drawn
FAR = 10.0  # times from the best to the median, beyond it: so far out, a number takes the place of the dot
TITLE = "Whose error bar is right, on the arm it was trained on and on every other?"


def run(setting: Setting) -> Result:
    """Train, fit every method and score it on every arm, for each arm, split and seed."""
    cases = trainings(setting.quick)
    longest_first = cases[::-1]  # the last recording has most rows
    work_ahead(setting, dropout_rates, longest_first)
    grid = Grid.run(setting, one_training, cases, axes=AXES, read=read_tests, ahead=longest_first)
    draw(grid, setting.out)
    costed = COSTED if COSTED in cases else cases[0]
    note = f"{costed[0].upper()}, {costed[1]} split, seed 0: fit on all training rows, predict the test rows "
    note += "in one call."
    costs, alone = costs_table(setting, grid, one_training, costed, note, PREDICT.column.name)
    network = setting.sized(FULL, QUICK).words()
    rows = {" ".join(case): [run["sizes"] for run in found] for case, found in grid.parts.items()}
    return Result(
        study="transfer",
        title=TITLE,
        protocol=_protocol(setting, grid, network),
        tables=[*tables(grid), costs],
        figures=[
            Figure("in_domain.png", "Likelihood on the arm that trained, both splits", IN_DOMAIN_CAPTION),
            Figure("zero_shot.png", "Likelihood on the other arms, zero shot", ZERO_SHOT_CAPTION),
        ],
        findings=findings(grid),
        numbers={"runs": grid.runs(), "costs": costs_numbers(alone)},
        provenance=provenance(setting, "transfer", network=network, rows=rows),
    )


def trainings(quick: bool) -> list[tuple[str, str]]:
    """The recordings that train, and how they are split."""
    return [(trained, split) for trained in (TRAINED[:1] if quick else TRAINED) for split in SPLITS]


def foreign(trained: str, quick: bool) -> list[str]:
    """The recordings that one trained on `trained` is tested on, zero shot."""
    return [name for name in (TRAINED[:2] if quick else TESTED) if name != trained]


def make_case(trained: str, split: str, *, seed: int, quick: bool) -> Case:
    """Load, split by the seed, scale by the training rows; quick: some hundred rows, the real arms only."""
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
    tried = dropout_rates(setting, trained, split)
    case = make_case(trained, split, seed=seed, quick=setting.quick)
    tests = {only: case.tests[only]} if only else case.tests
    recipe = setting.sized(FULL, QUICK)
    rows = case.train, case.validation
    bundle = recipe.bundle(*rows, seed=seed, dropout=best_rate(tried), **setting.place)
    methods, failed = score_methods(bundle, method_names(quick=setting.quick), tests)
    return {"sizes": case.sizes, "dropout": tried, "methods": methods, "failed": failed}


def dropout_rates(setting: Setting, trained: str, split: str) -> dict[str, float]:
    """Validation NLL of dropout by its rate, of the first seed: the peers get their best fair settings."""

    def rates() -> dict[str, float]:
        case = make_case(trained, split, seed=0, quick=setting.quick)

        def loss(rate: float) -> float:
            network = setting.sized(FULL, QUICK).train(case.train, seed=0, dropout=rate, **setting.place)
            said = MCDropout.fit(network, case.validation, samples=20, seed=0).predict(case.validation[0])
            return float(-said.log_prob(case.validation[1].to(said.mean.device)).mean())

        return try_rates(loss)

    return setting.once(f"{trained}-{split}-dropout", rates)


def draw(grid: Grid, folder: Path) -> None:
    """Both figures, of methods that have a likelihood."""
    likely = {place[-1] for place in grid.cells if grid.values(place, "nll")}
    drawn = grid.only(method=likely)
    draw_in_domain(drawn, folder / "in_domain.png")
    draw_zero_shot(drawn, folder / "zero_shot.png")


def draw_in_domain(grid: Grid, path: Path) -> None:
    """NLL on the arm that trained, by method."""
    arms, splits, methods = (grid.along(axis) for axis in ("trained", "split", "method"))
    width, height = 2.9 * len(arms) + 1.4, 0.26 * len(methods) * len(splits) + 1.0
    with plots.figure(path, width=width, height=height) as figure:
        panels = figure.subplots(len(splits), len(arms), squeeze=False, sharey=True)
        for row, split in zip(panels, splits, strict=True):
            for axes, arm in zip(row, arms, strict=True):
                _dots(axes, grid, (arm, split, IN_DOMAIN))
                axes.set_title(f"{arm}, {split}")
        for axes in panels[-1]:
            axes.set_xlabel("NLL per torque")


def draw_zero_shot(grid: Grid, path: Path) -> None:
    """NLL on the other arms, by method, of the networks trained with either split."""
    arms, splits, methods = (grid.along(axis) for axis in ("trained", "split", "method"))
    width, height = 2.9 * len(arms) + 1.4, 0.26 * len(methods) * len(splits) + 1.2
    with plots.figure(path, width=width, height=height) as figure:
        panels = figure.subplots(len(splits), len(arms), squeeze=False, sharey=True)
        for row, split in zip(panels, splits, strict=True):
            for axes, arm in zip(row, arms, strict=True):
                for test, colour in zip(others(grid, arm, split), plots.PALETTE, strict=False):
                    _far_dots(axes, grid, (arm, split, test), colour)
                axes.set(xscale="log", title=f"trained on {arm}, {split}")
                name_rows(axes, methods)
                axes.legend(fontsize=7, loc="lower right")
        for axes in panels[-1]:
            axes.set_xlabel(f"NLL per torque + {OFFSET:g}")


def _far_dots(axes: Any, grid: Grid, at: Place, colour: str) -> None:
    methods, known = grid.along("method"), known_nll(grid, at)
    values = [mean + OFFSET for mean, _ in known.values()]
    places = [methods.index(method) for method in known]
    axes.scatter(values, places, s=16, color=colour, label=at[2], zorder=3)


def known_nll(grid: Grid, at: Place) -> dict[str, list[float]]:
    """By method, mean and spread of its NLL; those that cost infinitely much are left to the table."""
    found = {method: grid.values((*at, method), "nll") for method in grid.along("method")}
    return {m: mean_spread(values) for m, values in found.items() if values and not is_infinite(values)}


def _dots(axes: Any, grid: Grid, at: Place) -> None:
    methods, known = grid.along("method"), known_nll(grid, at)
    middle = median(mean for mean, _ in known.values())
    farthest = middle + FAR * (middle - min(mean for mean, _ in known.values()))
    for method, (value, spread) in known.items():
        place = methods.index(method)
        if value > farthest:
            where = axes.get_yaxis_transform()  # across in parts of the panel, down in methods
            axes.text(0.99, place, f"{value:.3g} →", transform=where, ha="right", va="center", fontsize=8)
            continue
        colour = plots.BLUE if method.startswith(OURS) else plots.GREY
        filled = grid.cells[*at, method]["training_free"][0]
        style = {"color": colour, "markerfacecolor": colour if filled else "white"}
        axes.errorbar(value, place, xerr=spread, fmt="o", markersize=5, zorder=3, **style)
    axes.axvline(known[OURS][0], color=plots.BLUE, linewidth=0.7, alpha=0.6)
    name_rows(axes, methods)


def name_rows(axes: Any, methods: list[str]) -> None:
    """Names the methods on the vertical axis, the first above."""
    axes.set_yticks(range(len(methods)), methods, color=plots.INK)
    axes.set_ylim(len(methods) - 0.5, -0.5)


def _protocol(setting: Setting, grid: Grid, network: str) -> list[str]:
    rates = {" ".join(case): found[0]["dropout"] for case, found in grid.parts.items()}
    tried = "; ".join(f"{case} {best_rate(found):g} of {', '.join(found)}" for case, found in rates.items())
    return [
        "Inverse dynamics of 7-joint arms: positions, velocities and accelerations to torques, 21 -> 7. "
        "sarcos, barrett and kuka (LWR4+) are real recordings; kuka_sim has computed rigid-body torques, "
        "sarcos_sim and barrett_sim come from the SL simulator. Duplicate rows are dropped first.",
        "A network trains on one recording and is tested in domain and, zero shot, on every other recording "
        f"(at most {FOREIGN_ROWS:,} rows, evenly spaced). Inputs and targets "
        "are scaled by the TRAINING rows' means and standard deviations "
        "everywhere, so errors and NLL are in units of the training torques' spread.",
        "Two splits. random: 20 % of the rows test and 10 % validate, at random; rows of a recording "
        "resemble their neighbours in time, so this asks about known motions. unseen: test rows from parts "
        "of the motion that no training row comes near: blocks of time (sarcos, barrett: 30 blocks, every "
        "fifth tests, which ones turns with the seed, four others validate), blocks of a periodic motion in "
        "all its repeats (kuka), whole motions (kuka_sim). Rows at the ends of blocks are left out.",
        f"Network: {network}. One such network serves every method that does not say that it needs its own. "
        "The rate of dropout is that of the lowest validation NLL with seed 0, tried until no end of the "
        f"grid wins, from {RATES[0]:g} to {RATES[-1]:g}: {tried}.",
        "Every method may fit scale, noise and tails to the same validation rows, and reckons with the same "
        "rare rows; the paper's form uses none, and 'as trained' has a noise only. All test rows are scored. "
        "NLL is the mean negative log density per torque of the method's own distribution; coverage and "
        "width are of its 95 % interval, the worst tenth is of ten stretches of consecutive test rows; AUROC "
        "and FPR95 tell in-domain test rows from another recording by the mean standard deviation of a row. "
        f"Conformal intervals have no likelihood. {failures(grid)}",
        f"{setting.seeds} seeds: a seed decides the split, the networks and the fits. Cells are mean ± "
        "standard deviation (n - 1) over seeds. Worse and better are by the 95 % interval of paired "
        "differences, by Student's t with Nadeau and Bengio's allowance for training rows that seeds share. "
        "Fit seconds do not hold the training of networks; that of further networks is a column of its own; "
        f"times in the large tables were taken with {setting.jobs} processes sharing the machine, those of "
        "the table of costs without.",
        KNOWN,
    ]


KNOWN = (
    "What is known of the losses. kuka_sim shares motions with kuka, barrett_sim resembles barrett, under "
    "other torques: their inputs are no news, so that only an error bar which is too wide in domain looks "
    "right. One row of kuka_sim is a glitch: where it is among the test rows, every sharp error bar pays for "
    "it; whoever reckons with half such a row in n bounds the cost, and also how sharp it gets. An "
    "ensemble predicts with five networks, which are off by less than one; trustgp leaves the one network's "
    "prediction as it is. Where whole motions are unseen, validation and test rows are other motions, and "
    "the scale that suits the ones need not suit the others."
)


IN_DOMAIN_CAPTION = (
    "Mean over seeds, lower is better; the bar is the standard deviation over seeds. Filled: needs only "
    "the one trained network. Open: needs networks of its own. A number with an arrow lies far beyond."
)
ZERO_SHOT_CAPTION = (
    "Tested on rows of the other recordings; lower is better. The axis is logarithmic in NLL + 3. An "
    "error bar that does not grow away from the data costs thousands of nats."
)
