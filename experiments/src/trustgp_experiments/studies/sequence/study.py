"""`trustgp study sequence`: a GRU from windows of past states to torques, and its error bars."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trustgp import plots

from ...core.arm import evenly
from ...core.cases import ENSEMBLE, IN_DOMAIN, METHOD, OURS, Case, read_tests
from ...core.claim import Claim, versus, within
from ...core.grid import Grid, Place
from ...core.pivot import Pivot
from ...core.recipes import MEMBERS, NetworkRecipe, Pair
from ...core.regression import NLL, compare, score_method
from ...core.result import Figure, Result, Setting, Table, provenance
from ...datasets import Recording, load, seams, simulate, split_unseen, standardise, window_ends, windows_at
from ...peers.registry import Fitted, fit_methods
from ...training.train import own_randomness
from ..transfer.scores import AXES, CORRECTED, COVERED, everything, others
from ..transfer.study import OFFSET, QUICK_ROWS, known_nll, name_rows

NOISE = "network + noise"
METHODS = (
    NOISE,
    f"{NOISE}, tails",
    ENSEMBLE,
    "heteroscedastic",
    "SWAG",
    OURS,
    CORRECTED,
    "conformal, split",
)
SPLIT = "unseen"  # the only one here
LENGTH = 12  # states of a window
ARMS = ("sarcos", "barrett", "kuka")
MADE = ("slow", "fast")  # styles of the simulated arm, where a small run has no recordings
MADE_TRAJECTORIES = 15
TRACK = 300  # windows drawn of each arm
TITLE = "Is the error bar of a recurrent network right, on new motions and on another arm?"


class TorqueGRU(nn.Module):
    """Windows [n, length, states] to torques [n, joints], by one recurrent layer; weights by the seed."""

    def __init__(self, hidden: int, *, states: int = 21, joints: int = 7, seed: int = 0) -> None:
        super().__init__()
        with own_randomness(seed, torch.device("cpu")):
            self.gru = nn.GRU(states, hidden, batch_first=True)
            self.last = nn.Linear(hidden, joints)

    def forward(self, window: Tensor) -> Tensor:
        """The torques at the end of each window."""
        return self.last(self.gru(window)[0][:, -1])


def _recipe(hidden: int, epochs: int) -> NetworkRecipe:
    shape = f"one GRU layer of {hidden} units and a linear one"
    # nothing is recorded: a fused recurrent layer is one long kernel, there is little to gain
    return NetworkRecipe(partial(TorqueGRU, hidden), shape, epochs, learning_rate=5e-3, record=False)


FULL, QUICK = _recipe(64, 40), _recipe(8, 2)


def run(setting: Setting) -> Result:
    """Train, fit and score, for each arm and seed."""
    trained, network = arms(setting.quick), setting.sized(FULL, QUICK).words()
    grid = Grid.run(setting, one_training, [(arm,) for arm in trained], axes=AXES, read=_read)
    runs = {arm: found for (arm,), found in grid.parts.items()}
    draw_likelihoods(grid, setting.out / "likelihoods.png")
    draw_tracks({arm: found[0]["track"] for arm, found in runs.items()}, setting.out / "tracks.png")
    rows = {arm: [run["sizes"] for run in found] for arm, found in runs.items()}
    return Result(
        study="sequence",
        title=TITLE,
        protocol=_protocol(setting, trained, network),
        tables=sequence_tables(grid),
        figures=[
            Figure("likelihoods.png", "Likelihood on new motions and on other arms", LIKELIHOODS),
            Figure("tracks.png", "Along a stretch of a new motion", TRACKS),
        ],
        findings=findings(grid),
        numbers={"runs": grid.runs()},
        provenance=provenance(setting, "sequence", network=network, rows=rows),
    )


def arms(quick: bool) -> tuple[str, ...]:
    """The arms that train, and test each other; small runs do without recordings where there are none."""
    if not quick:
        return ARMS
    try:
        return tuple(load(name).name for name in ARMS[:2])
    except FileNotFoundError:
        return MADE


def make_case(trained: str, *, seed: int, quick: bool) -> Case:
    """Windows [n, LENGTH, 21] to torques [n, 7], split by time, scaled by what trains; quick: fewer."""
    recording = _recording(trained)
    split = split_unseen(recording, seed=seed)
    scaling = standardise(recording.inputs[split.train], recording.targets[split.train])

    def pairs(source: Recording, labels: Tensor, chosen: int, part: str) -> Pair:
        ends = window_ends(labels, seams(source), LENGTH)
        ends = ends[labels[ends] == chosen]
        ends = ends[evenly(len(ends), QUICK_ROWS[part])] if quick else ends
        inputs = windows_at(scaling.inputs(source.inputs).float(), ends, LENGTH)
        return inputs, scaling.targets(source.targets[ends]).float()

    labels = torch.full((len(recording.inputs),), 3)  # rows at the ends of blocks are in no part
    labels[split.train], labels[split.validation], labels[split.test] = 0, 1, 2
    tests = {IN_DOMAIN: pairs(recording, labels, 2, "test")}
    for name in arms(quick):
        if name != trained:
            other = _recording(name)
            tests[name] = pairs(other, torch.zeros(len(other.inputs), dtype=torch.int64), 0, "test")
    return Case(pairs(recording, labels, 0, "train"), pairs(recording, labels, 1, "validation"), tests)


def _recording(name: str) -> Recording:
    return simulate(rows=500 * MADE_TRAJECTORIES, style=name, seed=0) if name in MADE else load(name)


def one_training(setting: Setting, trained: str, seed: int) -> dict[str, Any]:
    """Every method on one training set: sizes, scores, costs, and a stretch to draw."""
    case = make_case(trained, seed=seed, quick=setting.quick)
    train: Any = tuple(part.to(setting.device) for part in case.train)
    bundle = setting.sized(FULL, QUICK).bundle(train, case.validation, seed=seed, **setting.place)
    methods, track = {}, {}
    for fitted in fit_methods(bundle, METHODS):
        methods[fitted.name] = score_method(fitted, case.tests, setting.device)
        if fitted.name == OURS:
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


def sequence_tables(grid: Grid) -> list[Table]:
    """The headline, then everything by arm."""
    arms = grid.along("trained")
    near, far = _places(grid)
    measures = []
    for place in sorted((*near, *far), key=lambda place: arms.index(place[0])):  # the arm's own first
        digits = 3 if place in near else 2
        measures.append(NLL.at(_words(place), digits=digits, trained=place[0], tested=place[2]))
    note = "A column that names one arm is of new motions of that arm; the others are zero shot."
    pivots = [Pivot("NLL per torque", METHOD, measures, {"split": SPLIT}, note=note)]
    pivots += [everything(f"trained on {arm}", arm, SPLIT) for arm in arms]
    return [pivot.table(grid) for pivot in pivots]


def findings(grid: Grid) -> list[str]:
    """In the order of the report, the cases against us first."""
    near, far = _places(grid)
    covers = f"covers {100 * COVERED[0]:.0f} to {100 * COVERED[1]:.1f} %"
    shares = {_words(place): grid.mean((*place, OURS), "coverage") for place in near}
    rivals = [method for method in grid.along("method") if method not in (OURS, CORRECTED)]
    sentences = []
    for where, places in (("On new motions", near), ("On other arms", far)):
        gaps = {rival: compare(grid, places, OURS, rival) for rival in rivals}
        sentences += [f"{where}, trustgp against {r}, NLL: {versus(g)}." for r, g in gaps.items() if g]
    sentences.sort(key=lambda sentence: "worse in 0" in sentence)
    error = compare(grid, near, CORRECTED, NOISE, "mse")
    claim = Claim(
        f"On new motions the 95 % interval of trustgp {covers}",
        [within(arm, share, *COVERED) for arm, share in shares.items()],
    )
    corrected = f"The corrected mean against the network, mse: {versus(error, digits=4)}."
    return [*sentences, corrected, claim.sentence]


def _places(grid: Grid) -> tuple[list[Place], list[Place]]:
    """Of every arm: its own new motions; and the other arms."""
    arms = grid.along("trained")
    near = [(arm, SPLIT, IN_DOMAIN) for arm in arms]
    return near, [(arm, SPLIT, test) for arm in arms for test in others(grid, arm, SPLIT)]


def _words(place: Place) -> str:
    trained, _, test = place
    return trained if test == IN_DOMAIN else f"{trained} on {test}"


def draw_likelihoods(grid: Grid, path: Path) -> None:
    """NLL on new motions of the arm that trained (above) and on other arms (below), by method."""
    arms, methods = grid.along("trained"), grid.along("method")
    with plots.figure(path, width=3.0 * len(arms) + 1.2, height=0.62 * len(methods) + 1.8) as figure:
        above, below = figure.subplots(2, len(arms), squeeze=False, sharey=True)
        for axes, arm in zip(above, arms, strict=True):
            _dots(axes, grid, (arm, SPLIT, IN_DOMAIN), 0.0, plots.BLUE)
            axes.set(title=f"trained on {arm}", xlabel="NLL per torque, new motions")
        for axes, arm in zip(below, arms, strict=True):
            for test, colour in zip(others(grid, arm, SPLIT), plots.PALETTE[1:], strict=False):
                _dots(axes, grid, (arm, SPLIT, test), OFFSET, colour)
            axes.set(xscale="log", xlabel=f"NLL per torque + {OFFSET:g}, other arms")
            axes.tick_params(axis="x", which="minor", labelbottom=False)
            axes.legend(fontsize=7)


def _dots(axes: Any, grid: Grid, at: Place, offset: float, colour: str) -> None:
    methods, known = grid.along("method"), known_nll(grid, at)
    means, spreads = [mean + offset for mean, _ in known.values()], [spread for _, spread in known.values()]
    places = [methods.index(method) for method in known]
    axes.errorbar(means, places, xerr=spreads, fmt="o", markersize=5, color=colour, label=at[2], zorder=3)
    name_rows(axes, methods)


def draw_tracks(tracks: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """One torque of each arm along a new motion: "truth", "mean", and the interval's "lower" and "upper"."""
    with plots.figure(path, width=8.5, height=1.9 * len(tracks) + 0.3) as figure:
        panels = figure.subplots(len(tracks), 1, squeeze=False)[:, 0]
        for axes, (arm, track) in zip(panels, tracks.items(), strict=True):
            mean, lower, upper = (torch.tensor(track[key]) for key in ("mean", "lower", "upper"))
            place = torch.arange(len(mean))
            plots.draw_band(axes, place, mean, (upper - lower) / 2, label="95 %", line="network")
            axes.plot(place.numpy(), track["truth"], color=plots.INK, linewidth=0.9, label="measured")
            axes.set(title=arm, ylabel="torque, standardised")
        panels[0].legend(fontsize=7, ncols=3)
        panels[-1].set_xlabel("windows, in the order of time")


def _protocol(setting: Setting, trained: tuple[str, ...], network: str) -> list[str]:
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
        f"Network: {network}. One such network serves every method but the ensemble of "
        f"{MEMBERS} from other starts. trustgp takes its gradients through `Sketch`, and has no witness, "
        "since its inputs are no vectors. Every method fits scale, noise and tails to the validation "
        "windows.",
        f"{setting.seeds} seeds: a seed decides which blocks validate, the networks and the fits. Cells are "
        "mean ± standard deviation (n - 1) over seeds; NLL is per torque, of the method's own distribution; "
        "coverage and width are of the 95 % interval; AUROC and FPR95 tell new motions from the other arm by "
        f"the mean standard deviation of a row. Times were taken with {setting.jobs} "
        "processes sharing the machine.",
    ]


LIKELIHOODS = (
    "Mean over seeds, lower is better; the bar is the standard deviation over seeds. Above: new motions of "
    "the arm that trained. Below: other arms, on a logarithmic axis."
)
TRACKS = (
    "The torque that varies most, seed 0: measured, predicted by the network, and trustgp's 95 % interval "
    "about that prediction."
)
