"""Bootstrap over pictures: every score with its draws, merged over seeds into a mean and an interval."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

DRAWS = 400
LEVEL = 0.95
DIGITS = 6  # behind the point, of a draw


def resampled(pictures: int, *, seed: int) -> Tensor:
    """Weights [1 + DRAWS, pictures], float64: each picture counts once in the first row, then as often as it
    is drawn with replacement. All methods share the draws of a seed."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(pictures, (DRAWS, pictures), generator=generator)
    counts = torch.zeros(DRAWS, pictures, dtype=torch.float64)
    counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    return torch.cat([torch.ones(1, pictures, dtype=torch.float64), counts])


def mean_draws(values: Tensor, weights: Tensor) -> Tensor:
    """Means [D] of values [m] with weights [D, m]; NaN without a row."""
    return (weights @ values.double()) / weights.sum(dim=1)


def auroc_draws(here: Tensor, weights: Tensor, there: Tensor, there_weights: Tensor) -> Tensor:
    """AUROC [D] of familiar scores [m] against foreign ones [k], with weights [D, m] and [D, k]."""
    ordered, order = here.double().sort()
    foreign = there.double().contiguous()
    below = torch.nn.functional.pad(weights[:, order].cumsum(dim=1), (1, 0))
    ends = [torch.searchsorted(ordered, foreign, right=right) for right in (False, True)]
    share = (below[:, ends[0]] + below[:, ends[1]]) / 2 / below[:, -1:]
    return (there_weights * share).sum(dim=1) / there_weights.sum(dim=1)


def caught_draws(
    here: Tensor, weights: Tensor, there: Tensor, there_weights: Tensor, alarms: float
) -> Tensor:
    """Share [D] of foreign rows above the threshold that a share `alarms` of the familiar rows may exceed;
    the other arguments are those of `auroc_draws`."""
    ordered, order = here.double().sort()
    below = weights[:, order].cumsum(dim=1)
    needed = (1.0 - alarms) * below[:, -1:] - 1e-9 * below[:, -1:]
    place = torch.searchsorted(below, needed).clamp_max(len(ordered) - 1)
    above = there.double()[None] > ordered[place]
    return (there_weights * above).sum(dim=1) / there_weights.sum(dim=1)


def listed(draws: Tensor) -> list[float | None]:
    """List for JSON of the score itself and its draws; None where it is undefined."""
    return [round(value, DIGITS) if math.isfinite(value) else None for value in draws.tolist()]


def merged(parts: Sequence[Any]) -> Any:
    """Results of several seeds, merged leaf by leaf: draws become a mean with its interval, see `figure`; of
    other values the first seed's is kept."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: merged([part[key] for part in parts]) for key in first}
    return figure(parts) if isinstance(first, list) and len(first) == 1 + DRAWS else first


def figure(parts: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """Mean over seeds, its interval over pictures, and the score of each seed."""
    table = torch.tensor([[math.nan if v is None else v for v in part] for part in parts]).double()
    means = table.mean(dim=0)
    draws, own = means[1:][means[1:].isfinite()], float(means[0])
    ends = [0.5 - LEVEL / 2, 0.5 + LEVEL / 2]
    low, high = draws.quantile(torch.tensor(ends).double()).tolist() if len(draws) else (own, own)
    return {"mean": own, "low": low, "high": high, "seeds": table[:, 0].tolist()}
