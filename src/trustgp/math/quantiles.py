"""Which of n held-out scores does a new one stay below, with a probability that holds for every n?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROUNDING = 1e-9  # (n + 1) * level in floats may lie this much above a whole number


def needed_rows(level: float) -> int:
    """The fewest held-out rows of which the largest score is high enough: level (n + 1) <= n."""
    return math.ceil(level / (1.0 - level) - ROUNDING)


def held_out_quantile(scores: Tensor, level: float) -> Tensor:
    r"""The score that a new row stays at or below with probability at least `level`, a scalar.

    The k-th smallest of the n held-out scores, where k is (n + 1) level, rounded up. A new row that is
    exchangeable with them is equally likely to take any of the n + 1 places among them, so this
    holds for every n and whatever the scores are (Vovk et al. 2005). Infinite where k > n: too few rows.

    Args:
        scores: Of rows that were not used to make what scores them, shape [n].
        level: In (0, 1).
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level}; it must lie strictly between 0 and 1, for example 0.9.")
    k = math.ceil((len(scores) + 1) * level - ROUNDING)
    if k > len(scores):
        return torch.full((), torch.inf, dtype=scores.dtype, device=scores.device)
    return scores.sort().values[k - 1]
