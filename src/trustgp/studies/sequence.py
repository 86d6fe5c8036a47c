"""`trustgp study sequence`: a GRU from windows of past states to torques, and its error bars."""

from __future__ import annotations

from typing import Any

from .. import plots
from ..baselines.methods import Fitted, fit_methods
from .ahead import work_ahead
from .base import Figure, Result, Setting, provenance
from .sequence_figure import draw_likelihoods, draw_tracks
from .sequence_networks import FULL, MEMBERS, QUICK, Recipe, train_bundle
from .sequence_rows import LENGTH, arms, make_case
from .sequence_tables import SPLIT, sequence_findings, sequence_tables
from .transfer_rows import IN_DOMAIN, Case
from .transfer_scores import score_method
from .transfer_tables import collect

METHODS = ("network + noise", "ensemble of 5", "trustgp", "trustgp corrected")
TRACK = 300  # windows drawn of each arm
TITLE = "Is the error bar of a recurrent network right, on new motions and on another arm?"


def run(setting: Setting) -> Result:
    """Train, fit and score, for each arm and seed."""
    plots.require_matplotlib()
    trained, seeds = arms(setting.quick), range(setting.seeds)
    work_ahead(setting, one_training, [(arm, seed) for arm in trained for seed in seeds])
    runs = {}
    for arm in trained:
        setting.console.print(f"{arm}: {setting.seeds} seeds x {MEMBERS} networks")
        runs[arm] = [one_training(setting, arm, seed) for seed in seeds]
    cells = collect({(arm, SPLIT): [run["methods"] for run in found] for arm, found in runs.items()})
    draw_likelihoods(cells, setting.out / "likelihoods.png")
    draw_tracks({arm: found[0]["track"] for arm, found in runs.items()}, setting.out / "tracks.png")
    return Result(
        study="sequence",
        title=TITLE,
        protocol=_protocol(setting, trained),
        tables=sequence_tables(cells),
        figures=[
            Figure("likelihoods.png", "Likelihood on new motions and on other arms", LIKELIHOODS),
            Figure("tracks.png", "Along a stretch of a new motion", TRACKS),
        ],
        findings=sequence_findings(cells),
        numbers={"runs": [{"trained": arm, "seeds": found} for arm, found in runs.items()]},
        provenance=provenance(
            setting,
            "sequence",
            network=_recipe(setting).words(),
            rows={arm: [run["sizes"] for run in found] for arm, found in runs.items()},
        ),
    )


def one_training(setting: Setting, trained: str, seed: int) -> dict[str, Any]:
    """Every method on one training set: sizes, scores, costs, and a stretch to draw.

    Args:
        setting: Of the study.
        trained, seed: Which windows train.
    """

    def work() -> dict[str, Any]:
        case = make_case(trained, seed=seed, quick=setting.quick)
        show = not setting.console.quiet
        bundle = train_bundle(case, _recipe(setting), seed=seed, device=setting.device, progress=show)
        methods, track = {}, {}
        for fitted in fit_methods(bundle, METHODS):
            methods[fitted.name] = score_method(fitted, case.tests, setting.device)
            if fitted.name == "trustgp":
                track = _track(fitted, case)
        return {"sizes": case.sizes, "methods": methods, "track": track}

    return setting.once(f"{trained}-{seed}", work)


def _track(fitted: Fitted, case: Case) -> dict[str, list[float]]:
    """The torque that varies most along the first windows that test, with its interval."""
    inputs, targets = (part[:TRACK] for part in case.tests[IN_DOMAIN])
    joint = int(targets.var(dim=0).argmax())
    said = fitted.predict(inputs)
    lower, upper = said.interval(0.95)
    values = {"truth": targets, "mean": said.mean, "lower": lower, "upper": upper}
    return {name: value[:, joint].double().cpu().tolist() for name, value in values.items()}


def _recipe(setting: Setting) -> Recipe:
    return QUICK if setting.quick else FULL


def _protocol(setting: Setting, trained: tuple[str, ...]) -> list[str]:
    return [
        f"Inverse dynamics of 7-joint arms from windows of {LENGTH} states (positions, velocities and "
        f"accelerations, the newest last) to the torques of the last one: {LENGTH} x 21 -> 7. "
        f"Arms: {', '.join(trained)}. SARCOS is sampled unevenly, every 2 or 4 ms, Barrett every 20 ms, "
        "KUKA every 5 ms.",
        "Split by what no window answers from memory: blocks of time (sarcos, barrett: 30 blocks, every "
        "fifth tests, four others validate), blocks of a periodic motion in all its repeats (kuka). No "
        "window crosses the border of a part, the end of a run, or a seam: a step that the velocities do not "
        "explain, of which sarcos, put together from nine runs, has eight.",
        "Zero shot: all windows of the other arms. Everything is scaled by the TRAINING rows' means and "
        "standard deviations, so errors and NLL are in units of the training torques' spread.",
        f"Network: {_recipe(setting).words()}. One such network serves every method but the ensemble of "
        f"{MEMBERS} from other starts. trustgp takes its gradients through `Sketch`, and has no witness, "
        "since its inputs are no vectors. Every method fits its noise or scale to the validation windows.",
        f"{setting.seeds} seeds: a seed decides which blocks validate, the networks and the fits. Cells are "
        "mean ± standard deviation over seeds; NLL is per torque; coverage and width are of the 95 % "
        "interval; AUROC and FPR95 tell new motions from the other arm by the mean standard deviation of a "
        f"row. Times were taken with {setting.jobs} processes sharing the machine.",
    ]


LIKELIHOODS = (
    "Mean over seeds, lower is better; the bar is the standard deviation over seeds. Above: new motions of "
    "the arm that trained. Below: other arms, on a logarithmic axis."
)
TRACKS = (
    "The torque that varies most, seed 0: measured, predicted by the network, and trustgp's 95 % interval "
    "about that prediction."
)
