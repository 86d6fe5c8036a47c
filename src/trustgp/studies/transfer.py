"""`trustgp study transfer`: every method, trained on one arm and tested on all. The paper's Table 1."""

from __future__ import annotations

from typing import Any

from .. import plots
from ..baselines.bundle import Bundle
from ..baselines.methods import METHODS, fit_methods
from .ahead import work_ahead
from .base import Figure, Result, Setting, provenance
from .transfer_figure import draw_in_domain, draw_zero_shot
from .transfer_findings import findings
from .transfer_networks import FULL, QUICK, RATES, Recipe, choose_rate, train_bundle
from .transfer_rows import IN_DOMAIN, SPLITS, Case, make_case, trained_on
from .transfer_scores import score_method
from .transfer_tables import collect, costs_table, tables

COSTED = ("sarcos", "random")  # whose times are taken with the machine to ourselves
TITLE = "Whose error bar is right, on the arm it was trained on and on every other?"


def run(setting: Setting) -> Result:
    """Train, fit every method and score it on every arm, for each arm, split and seed."""
    plots.require_matplotlib()
    trainings = [(trained, split) for trained in trained_on(setting.quick) for split in SPLITS]
    longest_first = trainings[::-1]  # the last recording has most rows
    work_ahead(setting, dropout_rate, longest_first)
    seeds = range(setting.seeds)
    work_ahead(setting, one_training, [(*training, seed) for training in longest_first for seed in seeds])
    runs = {}
    for training in trainings:
        setting.console.print(f"{' '.join(training)}: {setting.seeds} seeds x {len(METHODS)} methods")
        runs[training] = [one_training(setting, *training, seed) for seed in seeds]
    cells = collect({key: [run["methods"] for run in found] for key, found in runs.items()})
    draw_in_domain(cells, setting.out / "in_domain.png")
    draw_zero_shot(cells, setting.out / "zero_shot.png")
    return Result(
        study="transfer",
        title=TITLE,
        protocol=_protocol(setting, runs),
        tables=[*tables(cells), costs_table(_costs(setting))],
        figures=[
            Figure("in_domain.png", "Likelihood on the arm that trained, both splits", IN_DOMAIN_CAPTION),
            Figure("zero_shot.png", "Likelihood on the other arms, zero shot", ZERO_SHOT_CAPTION),
        ],
        findings=findings(cells),
        numbers={"runs": [{"trained": t, "split": s, "seeds": found} for (t, s), found in runs.items()]},
        provenance=provenance(
            setting,
            "transfer",
            network=_recipe(setting).words(),
            rows={f"{t} {s}": [run["sizes"] for run in found] for (t, s), found in runs.items()},
        ),
    )


def dropout_rate(setting: Setting, trained: str, split: str) -> float:
    """The rate that suits dropout best on these rows."""

    def rates() -> dict[str, float]:
        case = make_case(trained, split, seed=0, quick=setting.quick)
        return choose_rate(case, _recipe(setting), device=setting.device, progress=not setting.console.quiet)

    found = setting.once(f"{trained}-{split}-dropout", rates)
    return float(min(found, key=found.__getitem__))


def one_training(setting: Setting, trained: str, split: str, seed: int) -> dict[str, Any]:
    """Every method on one training set: sizes, scores and costs.

    Args:
        setting: Of the study.
        trained, split, seed: Which rows train.
    """
    rate = dropout_rate(setting, trained, split)

    def work() -> dict[str, Any]:
        case = make_case(trained, split, seed=seed, quick=setting.quick)
        methods = {
            fitted.name: score_method(fitted, case.tests, setting.device)
            for fitted in fit_methods(_bundle(setting, case, rate, seed))
        }
        return {"sizes": case.sizes, "dropout": rate, "methods": methods}

    return setting.once(f"{trained}-{split}-{seed}", work)


def _costs(setting: Setting) -> dict[str, dict[str, float]]:
    """Fit and predict times with the machine to ourselves: parts that share it slow each other down."""

    def work() -> dict[str, dict[str, float]]:
        case = make_case(*COSTED, seed=0, quick=setting.quick)
        near = {IN_DOMAIN: case.tests[IN_DOMAIN]}
        bundle = _bundle(setting, case, dropout_rate(setting, *COSTED), 0)
        found = {fitted.name: score_method(fitted, near, setting.device) for fitted in fit_methods(bundle)}
        return {
            name: {key: scores[key] for key in ("fit_seconds", "predict_seconds")}
            for name, scores in found.items()
        }

    return setting.once("costs", work)


def _bundle(setting: Setting, case: Case, rate: float, seed: int) -> Bundle:
    show = not setting.console.quiet
    return train_bundle(case, _recipe(setting), rate=rate, seed=seed, device=setting.device, progress=show)


def _recipe(setting: Setting) -> Recipe:
    return QUICK if setting.quick else FULL


def _protocol(setting: Setting, runs: dict[tuple[str, str], list[dict[str, Any]]]) -> list[str]:
    recipe = _recipe(setting)
    rates = {f"{t} {s}": found[0]["dropout"] for (t, s), found in runs.items()}
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
        f"Network: {recipe.words()}. One such network serves every method but the ensemble (five of them, "
        "from other starts) and dropout (one with dropout after every activation; the rate is the better of "
        f"{' and '.join(map(str, RATES))} by validation NLL with seed 0: "
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
