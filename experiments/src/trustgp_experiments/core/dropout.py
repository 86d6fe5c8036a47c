"""Choice of the dropout rate: a few rates first, then neighbours of the best until both sides were tried."""

from collections.abc import Callable, Sequence

from ..peers import MCDropout
from .cases import Case
from .recipes import NetworkRecipe
from .result import Setting

RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
FIRST = (0.02, 0.05, 0.1)


def try_rates(
    loss: Callable[[float], float], *, first: Sequence[float] = FIRST, rates: Sequence[float] = RATES
) -> dict[str, float]:
    """Validation loss of every rate that was tried; the keys are rates as text, for JSON."""
    losses = {rate: loss(rate) for rate in first}
    while True:
        best = rates.index(min(losses, key=losses.__getitem__))
        beside = [rate for rate in rates[max(0, best - 1) : best + 2] if rate not in losses]
        if not beside:
            return {str(rate): losses[rate] for rate in sorted(losses)}
        losses |= {rate: loss(rate) for rate in beside}


def search_dropout(setting: Setting, recipe: NetworkRecipe, case: Case) -> dict[str, float]:
    """Validation NLL of MC-dropout in a regression by dropout rate, for the network of seed 0."""
    inputs, targets = (part.to(setting.device) for part in case.validation)

    def loss(rate: float) -> float:
        network = recipe.train(case.train, seed=0, dropout=rate, **setting.place)
        prediction = MCDropout.fit(network, case.validation, samples=20, seed=0).predict(inputs)
        return float(-prediction.log_prob(targets).mean())

    return try_rates(loss)


def best_rate(losses: dict[str, float]) -> float:
    """Rate with the lowest loss."""
    return float(min(losses, key=losses.__getitem__))
