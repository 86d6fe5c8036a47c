"""Which rate suits dropout? From a few rates on, further ones are tried as long as an end of them wins."""

from collections.abc import Callable, Sequence

RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
FIRST = (0.02, 0.05, 0.1)


def try_rates(
    loss: Callable[[float], float], *, first: Sequence[float] = FIRST, rates: Sequence[float] = RATES
) -> dict[str, float]:
    """The loss on validation rows of every rate that was tried, by the rate, as JSON can hold it.

    Those that are tried first, then the neighbours of the best one among all rates, until both were tried.
    """
    found = {rate: loss(rate) for rate in first}
    while True:
        best = rates.index(min(found, key=found.__getitem__))
        beside = [rate for rate in rates[max(0, best - 1) : best + 2] if rate not in found]
        if not beside:
            return {str(rate): found[rate] for rate in sorted(found)}
        found |= {rate: loss(rate) for rate in beside}


def best_rate(tried: dict[str, float]) -> float:
    """The rate of the lowest loss."""
    return float(min(tried, key=tried.__getitem__))
