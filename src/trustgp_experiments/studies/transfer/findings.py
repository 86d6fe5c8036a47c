"""What the transfer study shows: claims, each judged on every training."""

from __future__ import annotations

import math
from statistics import pstdev

from ...core.cases import IN_DOMAIN
from ...core.claim import Check, Claim, at_most, within
from ...core.grid import Grid, Place
from .scores import others

OURS, CORRECTED, ENSEMBLE = "trustgp", "trustgp corrected", "ensemble of 5"
PAPER, ALONE = "trustgp paper form", "GP on inputs, no network"
FAMILY = "trustgp"  # what other readings and forms of our own begin with
COVERED = (0.90, 0.985)  # coverage of a 95 % interval that passes


def claims(grid: Grid) -> list[Claim]:
    """In the order of the report."""
    trainings = grid.along("trained", "split")
    on_networks = [method for method in _peers(grid, training_free=False) if method != ALONE]
    everyone = [m for m in grid.along("method") if not m.startswith(FAMILY) or m == PAPER]
    lowest, highest = COVERED
    return [
        Claim(
            "In domain, trustgp (the network's own prediction) is best or within one spread of the best "
            "method that needs no further network",
            [_among_training_free(grid, at) for at in trainings],
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
            _zero_shot(grid, on_networks),
        ),
        Claim(
            "The same, where the paper's form and the GP without a network, whose mean is its own, count too",
            _zero_shot(grid, everyone),
        ),
        Claim(
            f"The 95 % interval covers between {100 * lowest:.0f} and {100 * highest:.1f} % in domain",
            [_both([_covered(grid, at, method) for method in (OURS, CORRECTED)]) for at in trainings],
        ),
    ]


def _peers(grid: Grid, *, training_free: bool) -> list[str]:
    """Methods that are not ours, as far as they need no further network where that is asked."""
    free = {place[-1]: cell["training_free"][0] for place, cell in grid.cells.items()}
    methods = [method for method in grid.along("method") if not method.startswith(FAMILY)]
    return [method for method in methods if free[method] or not training_free]


def _among_training_free(grid: Grid, at: Place) -> Check:
    nll = {m: grid.mean((*at, IN_DOMAIN, m), "nll") for m in _peers(grid, training_free=True)}
    best, ours = min(nll, key=nll.__getitem__), grid.mean((*at, IN_DOMAIN, OURS), "nll")
    values = grid.values((*at, IN_DOMAIN, OURS), "nll") or ()
    spread = 0.0 if ours == math.inf else pstdev(values)
    return at_most(" ".join(at), ours, nll[best], slack=spread, form=".3f", rival=best)


def _against_ensemble(grid: Grid, at: Place, method: str, *keys: str) -> Check:
    def check(key: str) -> Check:
        ours, theirs = (grid.mean((*at, IN_DOMAIN, name), key) for name in (method, ENSEMBLE))
        return at_most(" ".join(at), ours, theirs, of=key)

    return _both([check(key) for key in keys])


def _zero_shot(grid: Grid, rivals: list[str]) -> list[Check]:
    """Whether at most one rival is better, on each arm that did not train."""
    checks = []
    for at in grid.along("trained", "split"):
        for test in others(grid, *at):
            ours = grid.mean((*at, test, OURS), "nll")
            better = [method for method in rivals if grid.mean((*at, test, method), "nll") < ours]
            checks.append(Check(f"{' '.join(at)} on {test}", len(better) < 2, f"behind {', '.join(better)}"))
    return checks


def _covered(grid: Grid, at: Place, method: str) -> Check:
    return within(" ".join(at), grid.mean((*at, IN_DOMAIN, method), "coverage"), *COVERED, of=method)


def _both(checks: list[Check]) -> Check:
    """One check of one case: it holds where all of them do, and tells the numbers of the others."""
    because = ", ".join(check.because for check in checks if not check.holds)
    return Check(checks[0].where, all(check.holds for check in checks), because)
