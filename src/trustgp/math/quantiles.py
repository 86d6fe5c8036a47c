"""Quantiles of held-out scores, groups that are large enough for one, and tails of novelty measures."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Self

RANK_TOLERANCE = 1e-9  # (n + 1) * level in floats may lie this much above a whole number
TAIL_LEVELS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)  # of the quantiles of a measure
NUM_MEASURES = 2  # of novelty, in regression
MIN_WIDTH = 1e-3  # of a step between quantiles of logarithms: rounding must not decide how novel a row is
UNBOUNDED = 1e30  # height of the last step
DEFAULT_NOVELTY, DEFAULT_SLOPE = math.log(0.1), 7.0  # without held-out rows, of the first measure


def check_share(name: str, value: float, example: float) -> None:
    """Raise ValueError unless the value lies strictly between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name}={value}; it must lie strictly between 0 and 1, for example {example}.")


def needed_rows(level: float) -> int:
    """The smallest number n of held-out rows with level (n + 1) <= n."""
    return math.ceil(level / (1.0 - level) - RANK_TOLERANCE)


def held_out_quantile(scores: Tensor, level: float) -> Tensor:
    r"""The score that a new row does not exceed with probability at least `level`, in (0, 1), [] or [C].

    The k-th smallest of the n held-out scores, where k is (n + 1) level, rounded up. A new row that is
    exchangeable with them is equally likely to take any of the n + 1 places among them, so this
    holds for every n and whatever the scores are (Vovk et al. 2005). Infinite where k > n: too few rows.
    The scores, [n] or [n, C], must be of rows that the scoring model was not fitted to.
    """
    check_share("level", level, 0.9)
    k = math.ceil((len(scores) + 1) * level - RANK_TOLERANCE)
    if k > len(scores):
        return scores.new_full(scores.shape[1:], torch.inf)
    return scores.sort(dim=0).values[k - 1]


def merge_groups(points: Tensor, weights: Tensor, *, least: float) -> Tensor:
    """Merge the lightest group with its nearest one until none weighs less than `least`, or one is left.

    From points [M, q] and weights [M], returns the group of each, numbered from 0 in the order of their first
    points, int64, shape [M].
    """
    groups = torch.arange(len(points))
    while True:
        names = groups.unique()
        mass = torch.stack([weights[groups == g].sum() for g in names])
        small = int(mass.argmin())
        if len(names) == 1 or float(mass[small]) >= least:
            break
        shares = torch.stack([(groups == g).to(points.dtype) for g in names])
        centres = shares @ points / shares.sum(dim=1, keepdim=True)
        distance = (centres - centres[small]).square().sum(dim=1)
        distance[small] = torch.inf
        groups[groups == names[small]] = names[int(distance.argmin())]
    first = {int(g): i for i, g in enumerate(dict.fromkeys(groups.tolist()))}
    return torch.tensor([first[g] for g in groups.tolist()])


@dataclass(frozen=True)
class TailShares:
    r"""Minus the logarithm of the share of held-out rows that are more novel than a row: its exponent.

    For each measure it is linear between the quantiles at `TAIL_LEVELS`, and beyond the last one it grows as
    that of an exponential distribution; the exponent of a row is the mean over the measures.
    """

    table: Tensor  # quantiles, slopes and heights of the steps after them, [3, K, Q]

    @classmethod
    def fit(cls, measures: Tensor) -> Self:
        """Tail shares of held-out rows with these measures [n, K]."""
        ordered, n = measures.double().cpu().sort(dim=0).values, len(measures)
        quantiles = ordered[[min(n - 1, int(level * n)) for level in TAIL_LEVELS]].T  # [K, Q]
        levels = -torch.log1p(-torch.tensor(TAIL_LEVELS, dtype=torch.float64))
        heights, last = levels.diff(), quantiles[:, -1]
        beyond = (ordered.T - last[:, None]).clamp_min(0.0)
        count = (beyond > 0).sum(dim=1)
        usual = (last - quantiles[:, 2]) / (levels[-1] - levels[2])  # as between the median and the last
        tail = torch.where(count > 0, beyond.sum(dim=1) / count.clamp_min(1), usual).clamp_min(MIN_WIDTH)
        slopes = torch.cat([heights / quantiles.diff().clamp_min(MIN_WIDTH), 1.0 / tail[:, None]], dim=1)
        heights = torch.cat([heights, heights.new_full((1,), UNBOUNDED)]).expand_as(slopes)
        return cls(torch.stack([quantiles, slopes, heights]))

    def wider(self, other: Self) -> Self:
        """Tail shares by the more tolerant of two tables: a small held-out set lacks the extreme rows."""
        (quantiles, slopes, heights), (more, less, _) = self.table, other.table
        table = [torch.maximum(quantiles, more), torch.minimum(slopes, less), heights]
        return type(self)(torch.stack(table))

    @classmethod
    def default(cls, num_measures: int = NUM_MEASURES, *, start: float = DEFAULT_NOVELTY) -> Self:
        """Tail shares without held-out rows: the exponent grows with the logarithm of the first measure, a
        share of the prior variance, from `start` on."""
        table = torch.zeros(3, num_measures, len(TAIL_LEVELS), dtype=torch.float64)
        table[0], table[1, 0, -1], table[2] = start, DEFAULT_SLOPE, UNBOUNDED
        return cls(table)

    @classmethod
    def novel(cls) -> Self:
        """Tail shares by which every row is beyond all held-out rows."""
        table = torch.ones(3, NUM_MEASURES, len(TAIL_LEVELS), dtype=torch.float64)
        return cls(table * torch.tensor([-UNBOUNDED, 1.0, UNBOUNDED])[:, None, None])

    def __call__(self, measures: Tensor) -> Tensor:
        """Exponents of rows with these measures [n, K], shape [n]."""
        quantiles, slopes, heights = self.table
        steps = ((measures[:, :, None] - quantiles) * slopes).clamp_min(0.0)
        return torch.minimum(steps, heights).sum(dim=2).mean(dim=1)
