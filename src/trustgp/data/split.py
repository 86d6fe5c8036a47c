"""Rows that are kept from the experts to calibrate on, and labels of rows that belong together."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .rows import Rows
from .user_warnings import warn_user

HELD_SHARE = 10  # one row in so many is kept from the experts
MOST_HELD = 2000  # of them
FEWEST_SPLIT = 50  # training rows below which none are split off


def holdout_split(rows: Rows, groups: Tensor | None, seed: int) -> Tensor:
    """Which rows to keep from the experts, shape [n] bool: none where there are too few. Of groups [n] whole
    ones are split off, else single rows."""
    if len(rows) < FEWEST_SPLIT or (groups is not None and int(groups.max()) == 0):
        warn_user(
            f"there are no validation rows and only {len(rows)} training rows in one group: probabilities "
            "are cooled by a rule of thumb, and no threshold can be found. Pass `validation=`."
        )
        return torch.zeros(len(rows), dtype=torch.bool)
    held = held_rows(len(rows), seed) if groups is None else _held_groups(groups, seed)
    warn_user(
        f"there are no validation rows, so {int(held.sum())} of the {len(rows)} training rows are kept from "
        "the experts to calibrate on. The network was trained on them: how much too sure it is on new rows "
        "they cannot tell. Pass `validation=` (rows that the network has not seen)."
    )
    return held


def held_rows(n: int, seed: int) -> Tensor:
    """Which of n rows are split off, shape [n] bool: the same for the same n and seed."""
    held = torch.zeros(n, dtype=torch.bool)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    held[order[: min(MOST_HELD, n // HELD_SHARE)]] = True
    return held


def kept_rows(rows: Rows, given: int, seed: int) -> Rows:
    """The rows that experts hold, of those that were given (the first `given`) and all later ones."""
    kept = torch.ones(len(rows), dtype=torch.bool)
    kept[:given] = ~held_rows(given, seed)
    return rows.some(kept)


def _held_groups(groups: Tensor, seed: int) -> Tensor:
    """Groups in random order until a tenth of the rows is reached, never all of them."""
    count = int(groups.max()) + 1
    sizes = torch.bincount(groups, minlength=count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    wanted = min(MOST_HELD, len(groups) // HELD_SHARE)
    reached = sizes[order].cumsum(0)
    number = min(int((reached < wanted).sum()) + 1, count - 1)
    return torch.isin(groups, order[:number])


def check_groups(groups: Any, rows: Rows) -> Tensor | None:
    """Labels as 0, 1, 2, ...; any kind of label will do, one for each row, in the rows' order."""
    if groups is None:
        return None
    given = groups.cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    labels = torch.from_numpy(np.unique(given, return_inverse=True)[1].reshape(given.shape))
    if labels.shape != (len(rows),):
        raise ValueError(f"groups have shape {tuple(labels.shape)}; one label for each of {len(rows)} rows.")
    if not rows.ordered:
        raise ValueError(
            "groups are given but the train loader shuffles: labels and rows would not match. "
            "Pass a loader with shuffle=False, or the dataset itself."
        )
    return labels
