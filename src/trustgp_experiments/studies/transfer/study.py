"""`trustgp study transfer`: every method, trained on one arm and tested on all. The paper's Table 1."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from trustgp import plots
from trustgp.metrics import gaussian_nll

from ...core.arm import evenly, scaled_rows
from ...core.cases import IN_DOMAIN, OURS, PREDICT, Case, costs_table, read_tests
from ...core.claim import mean_spread
from ...core.grid import Grid, Place, is_infinite, work_ahead
from ...core.recipes import Pair, mlp_recipe
from ...core.result import Figure, Result, Setting, provenance
from ...datasets import Recording, Split, load, split_random, split_unseen, standardise
from ...peers import Bundle, MCDropout, fit_methods
from .scores import AXES, claims, others, score_method, tables

TRAINED = ("sarcos", "barrett", "kuka", "kuka_sim")
TESTED = (*TRAINED, "sarcos_sim", "barrett_sim")
SPLITS: dict[str, Callable[[Recording, int], Split]] = {
    "random": lambda recording, seed: split_random(len(recording.inputs), seed=seed),
    "unseen": lambda recording, seed: split_unseen(recording, seed=seed),
}
QUICK_ROWS = {"train": 160, "validation": 60, "test": 60}
FULL = mlp_recipe([21, *[200] * 5, 7], epochs=100, together=True)
QUICK = mlp_recipe([21, 16, 16, 7], epochs=3, together=True)
RATES = (0.02, 0.1)  # of dropout; the better on the validation rows of seed 0 is taken
COSTED = ("sarcos", "random")  # whose times are taken with the machine to ourselves
OFFSET = 3.0  # added to NLL before its logarithm is drawn
FAR = 10.0  # times from the best to the median, beyond it: so far out, a number takes the place of the dot
TITLE = "Whose error bar is right, on the arm it was trained on and on every other?"


def run(setting: Setting) -> Result:
    """Train, fit every method and score it on every arm, for each arm, split and seed."""
    cases = trainings(setting.quick)
    longest_first = cases[::-1]  # the last recording has most rows
    work_ahead(setting, dropout_rate, longest_first)
    grid = Grid.run(setting, one_training, cases, axes=AXES, read=read_tests, ahead=longest_first)
    draw_in_domain(grid, setting.out / "in_domain.png")
    draw_zero_shot(grid, setting.out / "zero_shot.png")
    costed = COSTED if COSTED in cases else cases[0]
    note = f"{costed[0].upper()}, {costed[1]} split, seed 0: fit on all training rows, predict the test rows "
    note += "in one call."
    costs, _ = costs_table(setting, grid, one_training, costed, note, PREDICT.column.name)
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
        findings=[claim.sentence for claim in claims(grid)],
        numbers={"runs": grid.runs()},
        provenance=provenance(setting, "transfer", network=network, rows=rows),
    )


def trainings(quick: bool) -> list[tuple[str, str]]:
    """The recordings that train, and how they are split."""
    return [(trained, split) for trained in (TRAINED[:2] if quick else TRAINED) for split in SPLITS]


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
        tests[name] = rows(other, torch.arange(len(other.inputs)), "test")
    return Case(rows(recording, parts.train, "train"), rows(recording, parts.validation, "validation"), tests)


def one_training(setting: Setting, trained: str, split: str, seed: int, only: str = "") -> dict[str, Any]:
    """Every method on one training set, tested on everything or on one set only: sizes, scores and costs."""
    rate = dropout_rate(setting, trained, split)
    case = make_case(trained, split, seed=seed, quick=setting.quick)
    tests = {only: case.tests[only]} if only else case.tests
    fitted = fit_methods(train_bundle(setting, case, rate, seed))
    methods = {method.name: score_method(method, tests, setting.device) for method in fitted}
    return {"sizes": case.sizes, "dropout": rate, "methods": methods}


def dropout_rate(setting: Setting, trained: str, split: str) -> float:
    """The rate that suits dropout best on these rows: the peers get their best fair settings."""

    def rates() -> dict[str, float]:
        case = make_case(trained, split, seed=0, quick=setting.quick)
        found = {}
        for rate in RATES:
            network = setting.sized(FULL, QUICK).train(case.train, seed=0, dropout=rate, **setting.place)
            said = MCDropout.fit(network, case.validation, samples=20, seed=0).predict(case.validation[0])
            nll = gaussian_nll(said.mean, said.variance, case.validation[1].to(said.mean.device))
            found[str(rate)] = float(nll.mean())
        return found

    found = setting.once(f"{trained}-{split}-dropout", rates)
    return float(min(found, key=found.__getitem__))


def train_bundle(setting: Setting, case: Case, rate: float, seed: int) -> Bundle:
    """All networks of one training set."""
    recipe, place = setting.sized(FULL, QUICK), setting.place
    dropping = recipe.train(case.train, seed=100 * seed, dropout=rate, **place)
    return recipe.bundle(case.train, case.validation, seed=seed, dropping=dropping, **place)


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
    """NLL on the other arms, by method, of the networks trained with the random split."""
    arms, methods = grid.along("trained", split="random"), grid.along("method")
    width, height = 2.9 * len(arms) + 1.4, 0.3 * len(methods) + 1.2
    with plots.figure(path, width=width, height=height) as figure:
        panels = figure.subplots(1, len(arms), squeeze=False, sharey=True)[0]
        for axes, arm in zip(panels, arms, strict=True):
            for test, colour in zip(others(grid, arm, "random"), plots.PALETTE, strict=False):
                values = [grid.mean((arm, "random", test, method), "nll") + OFFSET for method in methods]
                axes.scatter(values, range(len(methods)), s=20, color=colour, label=test, zorder=3)
            axes.set(xscale="log", title=f"trained on {arm}", xlabel=f"NLL per torque + {OFFSET:g}")
            name_rows(axes, methods)
            axes.legend(fontsize=7, loc="lower right")


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
    return [
        "Inverse dynamics of 7-joint arms: positions, velocities and accelerations to torques, 21 -> 7. "
        "sarcos, barrett and kuka (LWR4+) are real recordings; kuka_sim has computed rigid-body torques, "
        "sarcos_sim and barrett_sim come from the SL simulator. Duplicate rows are dropped first.",
        "A network trains on one recording and is tested in domain and, zero shot, on all rows of all other "
        "recordings. Inputs and targets are scaled by the TRAINING rows' means and standard deviations "
        "everywhere, so errors and NLL are in units of the training torques' spread.",
        "Two splits. random: 20 % of the rows test and 10 % validate, at random; rows of a recording "
        "resemble their neighbours in time, so this asks about known motions. unseen: test rows from parts "
        "of the motion that no training row comes near: blocks of time (sarcos, barrett: 30 blocks, every "
        "fifth tests, four others validate), blocks of a periodic motion in all its repeats (kuka), whole "
        "motions (kuka_sim).",
        f"Network: {network}. One such network serves every method but the ensemble "
        "(five of them, from other starts) and dropout (one with dropout after every activation; the rate is "
        f"the better of {' and '.join(map(str, RATES))} by validation NLL with seed 0: "
        f"{', '.join(f'{name} {rate:g}' for name, rate in rates.items())}).",
        "Every method may fit its noise, prior or scale to the same validation rows; the paper's form uses "
        "none. All test rows are scored. NLL is the mean negative log density per torque of a Gaussian with "
        "the method's mean and variance; coverage and sharpness (mean width) are of its 95 % interval; AUROC "
        "and FPR95 tell in-domain test rows from another recording by the mean standard deviation of a row.",
        f"{setting.seeds} seeds: a seed decides the split (the choice of validation rows where the test rows "
        "are fixed), the networks and the fits. Cells are mean ± standard deviation over seeds. Fit seconds "
        f"do not hold the training of networks; times in the large tables were taken with {setting.jobs} "
        "processes sharing the machine, those of the table of costs without.",
        KNOWN,
    ]


KNOWN = (
    "What is known of the losses. kuka_sim shares motions with kuka, barrett_sim resembles barrett, under "
    "other torques: their inputs are no news, so that only an error bar which is too wide in domain looks "
    "right. One row of kuka_sim is a glitch: where it is among the test rows, every sharp error bar pays for "
    "it; trustgp reckons with half such a row in n, which bounds the cost and also how sharp it gets. An "
    "ensemble predicts with five networks, which are off by less than one; trustgp leaves the one network's "
    "prediction as it is. Where whole motions are unseen, validation and test rows are other motions, and "
    "the scale that suits the ones need not suit the others."
)


IN_DOMAIN_CAPTION = (
    "Mean over seeds, lower is better; the bar is the standard deviation over seeds. Filled: needs only "
    "the one trained network. Open: needs networks of its own. A number with an arrow lies far beyond."
)
ZERO_SHOT_CAPTION = (
    "Trained with the random split, tested on all rows of the other recordings; lower is better. The axis is "
    "logarithmic in NLL + 3. An error bar that does not grow away from the data costs thousands of nats."
)
