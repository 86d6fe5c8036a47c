"""`trustgp study transfer`: every method, trained on one arm and tested on all. The paper's Table 1."""

from __future__ import annotations

from typing import Any

from trustgp.metrics import gaussian_nll

from ...core.cases import IN_DOMAIN, Case, costs_table, read_tests
from ...core.grid import Grid
from ...core.parallel import work_ahead
from ...core.recipes import NetworkRecipe, mlp_recipe
from ...core.result import Figure, Result, Setting, provenance
from ...peers import MCDropout
from ...peers.bundle import Bundle
from ...peers.registry import fit_methods
from .figure import draw_in_domain, draw_zero_shot
from .findings import claims
from .rows import make_case, trainings
from .scores import AXES, score_method, tables

FULL = mlp_recipe([21, *[200] * 5, 7], epochs=100, together=True)
QUICK = mlp_recipe([21, 32, 32, 7], epochs=3, together=True)
RATES = (0.02, 0.1)  # of dropout; the better on the validation rows of seed 0 is taken
COSTED = ("sarcos", "random")  # whose times are taken with the machine to ourselves
COSTS_NOTE = "{}, seed 0: fit on all training rows, predict the test rows in one call."
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

    def again() -> dict[str, Any]:
        case = make_case(*costed, seed=0, quick=setting.quick)
        bundle = _bundle(setting, case, dropout_rate(setting, *costed), 0)
        return _scores(setting, bundle, {IN_DOMAIN: case.tests[IN_DOMAIN]})

    note = COSTS_NOTE.format(f"{costed[0].upper()}, {costed[1]} split")
    costs, _ = costs_table(setting, grid.parts[costed][0]["methods"], again, note)
    return Result(
        study="transfer",
        title=TITLE,
        protocol=_protocol(setting, grid),
        tables=[*tables(grid), costs],
        figures=[
            Figure("in_domain.png", "Likelihood on the arm that trained, both splits", IN_DOMAIN_CAPTION),
            Figure("zero_shot.png", "Likelihood on the other arms, zero shot", ZERO_SHOT_CAPTION),
        ],
        findings=[claim.sentence for claim in claims(grid)],
        numbers={
            "runs": [{"trained": t, "split": s, "seeds": found} for (t, s), found in grid.parts.items()]
        },
        provenance=provenance(
            setting,
            "transfer",
            network=recipe_of(setting).words(),
            rows={f"{t} {s}": [run["sizes"] for run in found] for (t, s), found in grid.parts.items()},
        ),
    )


def one_training(setting: Setting, trained: str, split: str, seed: int) -> dict[str, Any]:
    """Every method on one training set: sizes, scores and costs.

    Args:
        setting: Of the study.
        trained, split, seed: Which rows train.
    """
    rate = dropout_rate(setting, trained, split)
    case = make_case(trained, split, seed=seed, quick=setting.quick)
    methods = _scores(setting, _bundle(setting, case, rate, seed), case.tests)
    return {"sizes": case.sizes, "dropout": rate, "methods": methods}


def dropout_rate(setting: Setting, trained: str, split: str) -> float:
    """The rate that suits dropout best on these rows: the peers get their best fair settings."""

    def rates() -> dict[str, float]:
        case = make_case(trained, split, seed=0, quick=setting.quick)
        return {str(rate): _dropout_nll(setting, case, rate) for rate in RATES}

    found = setting.once(f"{trained}-{split}-dropout", rates)
    return float(min(found, key=found.__getitem__))


def recipe_of(setting: Setting) -> NetworkRecipe:
    """How every network of this run is trained."""
    return QUICK if setting.quick else FULL


def _dropout_nll(setting: Setting, case: Case, rate: float) -> float:
    inputs, targets = case.validation
    network = recipe_of(setting).train(case.train, seed=0, dropout=rate, **setting.place)
    said = MCDropout.fit(network, case.validation, samples=20, seed=0).predict(inputs)
    return float(gaussian_nll(said.mean, said.variance, targets.to(said.mean.device)).mean())


def _bundle(setting: Setting, case: Case, rate: float, seed: int) -> Bundle:
    recipe, place = recipe_of(setting), setting.place
    dropping = recipe.train(case.train, seed=100 * seed, dropout=rate, **place)
    return recipe.bundle(case.train, case.validation, seed=seed, dropout_network=dropping, **place)


def _scores(setting: Setting, bundle: Bundle, tests: Any) -> dict[str, Any]:
    return {fitted.name: score_method(fitted, tests, setting.device) for fitted in fit_methods(bundle)}


def _protocol(setting: Setting, grid: Grid) -> list[str]:
    rates = {f"{t} {s}": found[0]["dropout"] for (t, s), found in grid.parts.items()}
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
        f"Network: {recipe_of(setting).words()}. One such network serves every method but the ensemble "
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
