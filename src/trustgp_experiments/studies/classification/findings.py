"""What the classification study shows, in sentences made from its numbers."""

from __future__ import annotations

from ...core.cases import IN_DOMAIN, PREDICT
from ...core.claim import Claim, at_most
from ...core.grid import Grid
from ...core.statistics import mean_spread, words
from .rows import NAMES, UNIFORM, foreign_to, shifts_of
from .scores import SCORES
from .tables import WORDS

OURS, TEMPERATURE, ENSEMBLE, SOFTMAX = "trustgp", "temperature scaling", "ensemble of 5", "softmax"
WANTED = 0.99  # AUROC of the latent variance


def class_findings(grid: Grid, costs: Grid) -> list[str]:
    """One sentence each.

    Args:
        grid: Of the study.
        costs: Seconds of each method with the machine to itself.
    """
    trained = grid.along("trained")
    found = [_told(grid, name, foreign_to(name)) for name in trained]
    found += [_told(grid, name, UNIFORM) for name in trained if UNIFORM in grid.along("tested", trained=name)]
    found += [claim.sentence for claim in claims(grid)]
    return [*found, _same_classes(grid), _cost(costs)]


def claims(grid: Grid) -> list[Claim]:
    """Beside temperature scaling on familiar images, beside it and the ensemble on distorted ones."""
    near = [(name, IN_DOMAIN) for name in grid.along("trained")]
    far = [(name, t) for name in grid.along("trained") for t in shifts_of(grid.along("tested", trained=name))]

    def pair(at: tuple[str, str], rival: str, key: str) -> list[float]:
        return [grid.mean((*at, method), key) for method in (OURS, rival)]

    return [
        *(
            Claim(
                f"On images like those that trained, trustgp has no higher {name} than temperature scaling",
                [at_most(NAMES[at[0]], *pair(at, TEMPERATURE, key), form=".4f") for at in near],
            )
            for key, name in (("nll", "NLL"), ("ece", "ECE"))
        ),
        *(
            Claim(
                f"On distorted images trustgp has a lower NLL than {rival}",
                [at_most(at[1], *pair(at, rival, "nll"), form=".3f") for at in far],
            )
            for rival in (TEMPERATURE, ENSEMBLE)
        ),
    ]


def _told(grid: Grid, trained: str, test: str) -> str:
    """Is the latent variance as good as wanted, and better than every score of every peer?"""
    value = grid.mean((trained, test, OURS), "auroc_variance")
    seeds = grid.values((trained, test, OURS), "auroc_variance") or ()
    rivals = {
        (method, score): grid.mean((trained, test, method), f"auroc_{score}")
        for method in grid.along("method")
        for score in SCORES
        if method != OURS and grid.values((trained, test, method), f"auroc_{score}")
    }
    (method, score), best = max(rivals.items(), key=lambda entry: entry[1])
    own = grid.mean((trained, test, OURS), "auroc_entropy")
    bar = "at least" if value >= WANTED else "below"
    rank = "above" if value > best else "not above"
    return (
        f"Trained on {NAMES[trained]}, against {NAMES.get(test, test)}: the latent variance of trustgp has "
        f"an AUROC of {words(mean_spread(seeds), 4)}, {bar} {WANTED}, and {rank} every peer (best: {method} "
        f"by {WORDS[score]}, {best:.4f}). By the entropy of its probabilities it has {own:.4f}."
    )


def _same_classes(grid: Grid) -> str:
    places = grid.along("trained", "tested")
    pairs = [[grid.values((*at, method), "accuracy") for method in (OURS, SOFTMAX)] for at in places]
    labelled = [(ours, own) for ours, own in pairs if ours is not None]
    same = sum(ours == own for ours, own in labelled)
    return (
        f"trustgp has exactly the network's accuracy, in {same} of {len(labelled)} sets of labelled images."
    )


def _cost(costs: Grid) -> str:
    each = {name: 1000 * costs.mean((name,), PREDICT.key) for name in costs.along("method")}
    slowest = max((name for name in each if name != OURS), key=each.__getitem__)
    return (
        f"trustgp took {costs.mean((OURS,), 'fit_seconds'):.1f} s to fit and {each[OURS]:.3f} ms an image; "
        f"the network alone {each[SOFTMAX]:.4f} ms, the slowest peer ({slowest}) {each[slowest]:.3f} ms."
    )
