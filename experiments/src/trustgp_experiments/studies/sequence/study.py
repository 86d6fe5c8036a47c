"""`trustgp study sequence`: a GRU from windows of past states to torques, and its error bars."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...core.arm import evenly
from ...core.cases import ENSEMBLE, IN_DOMAIN, METHOD, OURS, Case, read_tests
from ...core.claim import Claim, versus, within
from ...core.grid import Grid, Place
from ...core.pivot import Pivot
from ...core.recipes import MEMBERS, NetworkRecipe, Pair
from ...core.regression import CORRECTED, CRPS, FLOORS, NLL, compare, place_name, score_method
from ...core.result import Result, Setting, Table, make_result, prose
from ...datasets import Recording, load, simulate, split_unseen, standardise
from ...datasets.splits import seams, window_ends, windows_at
from ...peers.registry import fit_methods
from ...training.train import own_randomness
from ..transfer.scores import AXES, NEW, everything, others
from ..transfer.study import QUICK_ROWS

NOISE = "network + noise"
METHODS = (*FLOORS, NOISE, f"{NOISE}, tails", ENSEMBLE, "heteroscedastic", "SWAG")
METHODS += (OURS, CORRECTED, "conformal, split")
SPLIT = NEW  # the only one here
LENGTH = 12  # states of a window
COVERED = (0.90, 0.985)  # coverage of a 95 % interval that passes
ARMS = ("sarcos", "barrett", "kuka")
MADE = ("slow", "fast")  # styles of the simulated arm, for a small run without recordings
MADE_TRAJECTORIES = 15
TITLE = "Is the error bar of a recurrent network right, on new motions and on another arm?"


class TorqueGRU(nn.Module):
    """One recurrent layer from windows [n, length, states] to torques [n, joints]; weights by the seed."""

    def __init__(self, hidden: int, *, states: int = 21, joints: int = 7, seed: int = 0) -> None:
        super().__init__()
        with own_randomness(seed, torch.device("cpu")):
            self.gru = nn.GRU(states, hidden, batch_first=True)
            self.last = nn.Linear(hidden, joints)

    def forward(self, window: Tensor) -> Tensor:
        return self.last(self.gru(window)[0][:, -1])


def _recipe(hidden: int, epochs: int) -> NetworkRecipe:
    shape = f"one GRU layer of {hidden} units and a linear one"
    # not recorded as a CUDA graph: a fused recurrent layer is one long kernel already
    return NetworkRecipe(partial(TorqueGRU, hidden), shape, epochs, learning_rate=5e-3, record=False)


FULL, QUICK = _recipe(64, 40), _recipe(8, 2)


def run(setting: Setting) -> Result:
    """Train, fit and score, for each arm and seed."""
    trained, network = arms(setting.quick), setting.sized(FULL, QUICK).words()
    grid = Grid.run(setting, one_training, [(arm,) for arm in trained], axes=AXES, read=_read)
    rows = {arm: [part["sizes"] for part in grid.parts[arm,]] for arm in trained}
    values = {"trained": trained, "network": network, "members": MEMBERS}
    protocol, numbers = prose(__name__, setting=setting, **values), {"runs": grid.runs()}
    return make_result(setting, "sequence", TITLE, protocol, numbers, summarise, network=network, rows=rows)


def arms(quick: bool) -> tuple[str, ...]:
    """Names of the arms, each trained on and tested on the others; quick runs without data simulate two."""
    if not quick:
        return ARMS
    try:
        return tuple(load(name).name for name in ARMS[:2])
    except FileNotFoundError:
        return MADE


def make_case(trained: str, *, seed: int, quick: bool) -> Case:
    """Windows [n, LENGTH, 21] and torques [n, 7], split by time, scaled by training rows; `quick`: fewer."""
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
    for name in (name for name in arms(quick) if name != trained):
        other = _recording(name)
        tests[name] = pairs(other, torch.zeros(len(other.inputs), dtype=torch.int64), 0, "test")
    return Case(pairs(recording, labels, 0, "train"), pairs(recording, labels, 1, "validation"), tests)


def _recording(name: str) -> Recording:
    return simulate(rows=500 * MADE_TRAJECTORIES, style=name, seed=0) if name in MADE else load(name)


def one_training(setting: Setting, trained: str, seed: int) -> dict[str, Any]:
    """Sizes, and the scores and costs of every method, for one training set."""
    case = make_case(trained, seed=seed, quick=setting.quick)
    train: Any = tuple(part.to(setting.device) for part in case.train)
    bundle = setting.sized(FULL, QUICK).bundle(train, case.validation, seed=seed, **setting.place)
    fitted = fit_methods(bundle, METHODS)
    methods = {one.name: score_method(one, case.tests, setting.device, case.validation[0]) for one in fitted}
    return {"sizes": case.sizes, "methods": methods}


def _read(part: Mapping[str, Any]) -> dict[Place, dict[str, Any]]:
    return {(SPLIT, *place): numbers for place, numbers in read_tests(part).items()}


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Tables with NLL and CRPS by arm, then every measure of each arm; and findings."""
    grid = Grid.of_runs(AXES, numbers["runs"], _read)
    arms = grid.along("trained")
    own_arm, other_arms = _places(grid)
    columns = []
    for arm, _, test in sorted((*own_arm, *other_arms), key=lambda one: arms.index(one[0])):  # its own first
        digits = 3 if test == IN_DOMAIN else 2
        columns.append(NLL.at(place_name((arm, test)), digits=digits, trained=arm, tested=test))
    note = "A column that names one arm is of new motions of that arm; the others are zero shot."
    pivots = [Pivot("NLL per torque", METHOD, columns, {"split": SPLIT}, note=note)]
    columns = [CRPS.at(arm, trained=arm, tested=IN_DOMAIN) for arm in arms]
    pivots.append(Pivot("CRPS on new motions", METHOD, columns, {"split": SPLIT}))
    pivots += [everything(f"trained on {arm}", arm, SPLIT) for arm in arms]
    return [pivot.table(grid) for pivot in pivots], findings(grid)


def findings(grid: Grid) -> list[str]:
    """Sentences in the order of the report, our losses first."""
    own_arm, other_arms = _places(grid)
    rivals = [method for method in grid.along("method") if method not in (OURS, CORRECTED)]
    sentences = []
    for where, places in (("On new motions", own_arm), ("On other arms", other_arms)):
        gaps = {rival: compare(grid, places, OURS, rival) for rival in rivals}
        sentences += [f"{where}, trustgp against {r}, NLL: {versus(g)}." for r, g in gaps.items() if g]
    sentences.sort(key=lambda sentence: "worse in 0" in sentence)
    error = versus(compare(grid, own_arm, CORRECTED, NOISE, "mse"), digits=4)
    covers = f"covers {100 * COVERED[0]:.0f} to {100 * COVERED[1]:.1f} %"
    checks = [within(place[0], grid.mean((*place, OURS), "coverage"), *COVERED) for place in own_arm]
    claim = Claim(f"On new motions the 95 % interval of trustgp {covers}", checks)
    return [*sentences, f"The corrected mean against the network, mse: {error}.", claim.sentence]


def _places(grid: Grid) -> tuple[list[Place], list[Place]]:
    """Places of every arm's own new motions, and those of the other arms."""
    arms = grid.along("trained")
    own_arm = [(arm, SPLIT, IN_DOMAIN) for arm in arms]
    return own_arm, [(arm, SPLIT, test) for arm in arms for test in others(grid, arm, SPLIT)]
