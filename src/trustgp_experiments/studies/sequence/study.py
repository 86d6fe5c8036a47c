"""`trustgp study sequence`: a GRU from windows of past states to torques, and its error bars."""

from __future__ import annotations

from typing import Any

from ...core.cases import IN_DOMAIN, Case, read_tests
from ...core.grid import Grid
from ...core.recipes import MEMBERS, NetworkRecipe
from ...core.result import Figure, Result, Setting, provenance
from ...peers.registry import Fitted, fit_methods
from ..transfer.scores import AXES, score_method
from .figure import draw_likelihoods, draw_tracks
from .networks import FULL, QUICK
from .rows import LENGTH, arms, make_case
from .tables import SPLIT, claims, sequence_tables

METHODS = ("network + noise", "ensemble of 5", "trustgp", "trustgp corrected")
TRACK = 300  # windows drawn of each arm
TITLE = "Is the error bar of a recurrent network right, on new motions and on another arm?"


def run(setting: Setting) -> Result:
    """Train, fit and score, for each arm and seed."""
    grid = Grid.run(setting, one_training, [(arm,) for arm in arms(setting.quick)], axes=AXES, read=_read)
    runs = {arm: found for (arm,), found in grid.parts.items()}
    draw_likelihoods(grid, setting.out / "likelihoods.png")
    draw_tracks({arm: found[0]["track"] for arm, found in runs.items()}, setting.out / "tracks.png")
    return Result(
        study="sequence",
        title=TITLE,
        protocol=_protocol(setting, arms(setting.quick)),
        tables=sequence_tables(grid),
        figures=[
            Figure("likelihoods.png", "Likelihood on new motions and on other arms", LIKELIHOODS),
            Figure("tracks.png", "Along a stretch of a new motion", TRACKS),
        ],
        findings=[claim.sentence for claim in claims(grid)],
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
    case = make_case(trained, seed=seed, quick=setting.quick)
    train: Any = tuple(part.to(setting.device) for part in case.train)
    bundle = _recipe(setting).bundle(train, case.validation, seed=seed, **setting.place)
    methods, track = {}, {}
    for fitted in fit_methods(bundle, METHODS):
        methods[fitted.name] = score_method(fitted, case.tests, setting.device)
        if fitted.name == "trustgp":
            track = _track(fitted, case)
    return {"sizes": case.sizes, "methods": methods, "track": track}


def _read(part: dict[str, Any]) -> dict[tuple, dict[str, Any]]:
    return {(SPLIT, *place): numbers for place, numbers in read_tests(part).items()}


def _track(fitted: Fitted, case: Case) -> dict[str, list[float]]:
    """The torque that varies most along the first windows that test, with its interval."""
    inputs, targets = case.tests[IN_DOMAIN]
    assert targets is not None
    inputs, targets = inputs[:TRACK], targets[:TRACK]
    joint = int(targets.var(dim=0).argmax())
    said = fitted.predict(inputs)
    lower, upper = said.interval(0.95)
    values = {"truth": targets, "mean": said.mean, "lower": lower, "upper": upper}
    return {name: value[:, joint].double().cpu().tolist() for name, value in values.items()}


def _recipe(setting: Setting) -> NetworkRecipe:
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
