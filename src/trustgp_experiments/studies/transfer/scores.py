"""One method on every test set of torques, the tables of what was scored, and what they show."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trustgp.likelihoods.prediction import Prediction
from trustgp.metrics import auroc, coverage, fpr95, gaussian_nll, mse, sharpness

from ...core import cases
from ...core.cases import ENSEMBLE, IN_DOMAIN, METHOD, OURS, number
from ...core.claim import Check, Claim, at_most, within
from ...core.grid import Grid, Place
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Table
from ...peers.registry import Fitted

AXES = ("trained", "split", "tested", "method")
NLL = Measure("nll", Column("NLL", digits=3, better="low"))
MEASURES = (
    NLL,
    Measure("mse", Column("mse", digits=5, better="low")),
    Measure("coverage", Column("95 % coverage", digits=1, unit="%"), factor=100.0),
    Measure("sharpness", Column("width", digits=3)),
    Measure("auroc", Column("AUROC", digits=3, better="high")),
    Measure("fpr95", Column("FPR95", digits=3, better="low")),
    cases.FIT,
    cases.PREDICT,
)
CORRECTED, PAPER, ALONE = "trustgp corrected", "trustgp paper form", "GP on inputs, no network"
FAMILY = "trustgp"  # what other readings and forms of our own begin with
COVERED = (0.90, 0.985)  # coverage of a 95 % interval that passes


def score_method(fitted: Fitted, tests: Mapping[str, cases.Test], device: str) -> dict[str, Any]:
    """See `score_tests`; sets are told apart by the mean std of a row's torques, None where it has none."""

    def score(name: str, known: Prediction, said: Prediction, targets: Tensor | None) -> dict[str, Any]:
        assert targets is not None, "torques are known everywhere"
        targets = targets.to(said.mean.device)
        per_torque = gaussian_nll(said.mean, said.variance, targets).mean(dim=0)
        scores = {"nll": number(per_torque.mean()), "nll_per_torque": list(map(number, per_torque))}
        scores |= {"mse": number(mse(said.mean, targets)), "coverage": number(coverage(said, targets))}
        scores["sharpness"] = number(sharpness(said))
        if name == IN_DOMAIN:
            return scores
        here, there = (one.std.double().mean(dim=1) for one in (known, said))
        lost = bool(here.isnan().any() | there.isnan().any())
        measures = {"auroc": auroc, "fpr95": fpr95}
        return scores | {key: None if lost else number(of(here, there)) for key, of in measures.items()}

    return cases.score_tests(fitted, tests, device, score)


def tables(grid: Grid) -> list[Table]:
    """The headline, zero shot by training arm, then everything."""
    trainings = grid.along("trained", "split")
    near = [NLL.at(f"{t}, {s}", trained=t, split=s) for t, s in trainings]
    note = "Lower is better, the best in bold."
    first = cases.NETWORKS.at(trained=trainings[0][0], split=trainings[0][1])
    found = [Pivot("NLL on the arm that trained", METHOD, [first, *near], {"tested": IN_DOMAIN}, note=note)]
    for trained in grid.along("trained", split="random"):
        title = f"NLL on the other arms, trained on {trained} (random split)"
        measures = [NLL.at(test, digits=2, tested=test) for test in others(grid, trained, "random")]
        found.append(Pivot(title, METHOD, measures, {"trained": trained, "split": "random"}))
    found += [everything(f"trained on {t}, {s} split", t, s) for t, s in trainings]
    return [pivot.table(grid) for pivot in found]


def everything(title: str, trained: str, split: str) -> Pivot:
    """Every measure of one training."""
    at = {"trained": trained, "split": split}
    return Pivot(f"Every measure: {title}", cases.TESTED, MEASURES, at, block="tested on")


def others(grid: Grid, trained: str, split: str) -> list[str]:
    """What a training is tested on, zero shot."""
    return [test for test in grid.along("tested", trained=trained, split=split) if test != IN_DOMAIN]


def claims(grid: Grid) -> list[Claim]:
    """What the study shows, each judged on every training, in the order of the report."""
    trainings, methods = grid.along("trained", "split"), grid.along("method")
    peers = [method for method in methods if not method.startswith(FAMILY)]
    lowest, highest = COVERED
    return [
        Claim(
            "In domain, trustgp (the network's own prediction) is best or within one spread of the best "
            "method that needs no further network",
            [_among_training_free(grid, at, peers) for at in trainings],
        ),
        Claim(
            "In domain, trustgp about the network's own prediction is no worse in NLL than five networks",
            [_against_ensemble(grid, at, OURS, "nll") for at in trainings],
        ),
        Claim(
            "On random splits trustgp corrected beats five networks in NLL and mse",
            [_against_ensemble(grid, at, CORRECTED, "nll", "mse") for at in trainings if at[1] == "random"],
        ),
        Claim(
            "On other arms trustgp is best or second of the methods that put an error bar on a network",
            _zero_shot(grid, [method for method in peers if method != ALONE]),
        ),
        Claim(
            "The same, where the paper's form and the GP without a network, whose mean is its own, count too",
            _zero_shot(grid, [method for method in methods if method in peers or method == PAPER]),
        ),
        Claim(
            f"The 95 % interval covers between {100 * lowest:.0f} and {100 * highest:.1f} % in domain",
            [_covered(grid, at, OURS, CORRECTED) for at in trainings],
        ),
    ]


def _among_training_free(grid: Grid, at: Place, peers: list[str]) -> Check:
    places = {method: (*at, IN_DOMAIN, method) for method in (OURS, *peers)}
    nll = {m: grid.mean(p, "nll") for m, p in places.items() if grid.cells[p]["training_free"][0]}
    ours = nll.pop(OURS)
    best = min(nll, key=nll.__getitem__)
    spread = 0.0 if ours == math.inf else grid.spread(places[OURS], "nll")[1]
    return at_most(" ".join(at), ours, nll[best], slack=spread, form=".3f", rival=best)


def _against_ensemble(grid: Grid, at: Place, method: str, *keys: str) -> Check:
    pairs = {key: [grid.mean((*at, IN_DOMAIN, name), key) for name in (method, ENSEMBLE)] for key in keys}
    return _all_of([at_most(" ".join(at), ours, theirs, of=key) for key, (ours, theirs) in pairs.items()])


def _covered(grid: Grid, at: Place, *methods: str) -> Check:
    shares = {method: grid.mean((*at, IN_DOMAIN, method), "coverage") for method in methods}
    return _all_of([within(" ".join(at), share, *COVERED, of=method) for method, share in shares.items()])


def _all_of(checks: list[Check]) -> Check:
    """One check of one case: it holds where all of them do, and tells the numbers of the others."""
    because = ", ".join(check.because for check in checks if not check.holds)
    return Check(checks[0].where, all(check.holds for check in checks), because)


def _zero_shot(grid: Grid, rivals: list[str]) -> list[Check]:
    """Whether at most one rival is better, on each arm that did not train."""
    checks = []
    for at in grid.along("trained", "split"):
        for test in others(grid, *at):
            ours = grid.mean((*at, test, OURS), "nll")
            better = [method for method in rivals if grid.mean((*at, test, method), "nll") < ours]
            checks.append(Check(f"{' '.join(at)} on {test}", len(better) < 2, f"behind {', '.join(better)}"))
    return checks
