"""Rows held out from the experts for calibration, group labels, row weights and duplicates."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .rows import Rows, hashed
from .trees import leaves
from .user_warnings import warn_user

HELD_OUT_EVERY = 10  # one row in this many is held out from the experts
MAX_HELD_OUT = 2000  # held-out rows, at most
ENOUGH_ROWS = 300  # unseen rows: on CIFAR-10 their temperature is as good as that of thousands
MIN_SPLIT_ROWS = 50  # training rows below which none are split off
MIN_WEIGHT = 1e-8  # of a row, over the mean: with less it has no effect
LOOKED_UP_ROWS, SEARCHED_ROWS, COMPARED_NUMBERS = 256, 2**17, 8  # in a search for duplicates


def holdout_split(rows: Rows, groups: Tensor | None, seed: int) -> Tensor:
    """Mask of the rows to hold out from the experts, bool [n]: whole groups [n]; none if rows are few."""
    if len(rows) < MIN_SPLIT_ROWS or (groups is not None and int(groups.max()) == 0):
        warn_user(
            f"there are no validation rows and only {len(rows)} training rows in one group: using a "
            "default temperature; no novelty threshold is available. Pass `validation=`."
        )
        return torch.zeros(len(rows), dtype=torch.bool)
    held_out = held_rows(len(rows), seed) if groups is None else _held_units(groups, seed)
    warn_user(
        f"there are no validation rows: {int(held_out.sum())} of the {len(rows)} training rows are held out "
        "for the calibration. The network was trained on them, so its errors there are too small if it "
        "overfits, and the temperature only follows from the training loss. Pass `validation=`: about "
        f"{ENOUGH_ROWS} rows that the network has not seen are enough."
    )
    return held_out


def held_rows(n: int, seed: int) -> Tensor:
    """Mask of the rows to hold out, bool [n]: the same for the same n and seed."""
    return _held_units(torch.arange(n), seed)


def kept_rows(rows: Rows, given: int, seed: int) -> Rows:
    """Rows of the experts: the first `given` rows without the held-out ones, and all later rows."""
    kept = torch.ones(len(rows), dtype=torch.bool)
    kept[:given] = ~held_rows(given, seed)
    return rows.subset(kept)


def _held_units(groups: Tensor, seed: int) -> Tensor:
    """Mask of the rows of random groups that hold a tenth of all rows, bool [n]; never of all groups."""
    count = int(groups.max()) + 1
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    totals = torch.bincount(groups)[order].cumsum(0)
    wanted = min(MAX_HELD_OUT, len(groups) // HELD_OUT_EVERY)
    return torch.isin(groups, order[: min(int((totals < wanted).sum()) + 1, count - 1)])


def check_groups(groups: Any, rows: Rows) -> Tensor | None:
    """Labels as numbers 0, 1, 2, ... [n], from labels of any type, one for each row in the rows' order."""
    if groups is None:
        return None
    given = groups.cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    texts = given.ravel().tolist() if given.dtype.kind in "fO" else []
    # pandas' NA is neither equal to itself nor not; rows without a label would count as one trajectory
    if bad := [i for i, label in enumerate(texts) if label is None or (label == label) is not True]:
        what = f"groups have no label in {len(bad)} of {given.size} rows, first in row {bad[0]}"
        raise ValueError(f"{what}; each needs one.")
    labels = torch.from_numpy(np.unique(given, return_inverse=True)[1].reshape(given.shape))
    _require_one_each(labels, rows, "groups")
    return labels


def _require_one_each(values: Tensor, rows: Rows, name: str) -> None:
    """Raise ValueError unless there is one value for each row, in the order of the rows."""
    if values.shape != (len(rows),):
        what = f"{name} have shape {tuple(values.shape)}; one for each of {len(rows)} rows is needed"
        raise ValueError(f"{what}, [{len(rows)}].")
    if not rows.ordered:
        what = f"{name} are given but the train loader shuffles: {name} and rows would not match"
        raise ValueError(f"{what}. Pass a loader with shuffle=False, or the dataset itself.")


def weighted(rows: Rows, weights: Any) -> Rows:
    """Rows with the user's weights, divided by their mean; equal weights are dropped."""
    if weights is None:
        return rows
    given = weights.detach().cpu() if isinstance(weights, Tensor) else np.asarray(weights, dtype=np.float64)
    values = torch.as_tensor(given).double()
    _require_one_each(values, rows, "weights")
    if len(wrong := (~(values > 0) | values.isinf()).nonzero().flatten()):
        raise ValueError(
            f"weights are not positive and finite in {len(wrong)} of {len(rows)} rows, first "
            f"{float(values[wrong[0]]):g} in row {int(wrong[0])}; drop rows that should not count."
        )
    values = values / values.max()  # the sum of huge ones is not finite
    if bool((values == values[0]).all()):
        return rows
    return replace(rows, weights=(values / values.mean()).clamp_min(MIN_WEIGHT))


def in_proportion(weights: Tensor) -> Tensor:
    """Indices of n rows by their weights [n], ascending: a row of twice the mean weight occurs twice."""
    edges, n = weights.cumsum(dim=0), len(weights)
    steps = (torch.arange(n, dtype=torch.float64) + 0.5) * (edges[-1:] / n)
    return torch.searchsorted(edges, steps).clamp_max(n - 1)


def repeated(rows: Rows) -> Rows:
    """Rows resampled in proportion to their weights, without changing their number."""
    return rows if rows.weights is None else rows.subset(in_proportion(rows.weights))


def share_in_common(held_out: Rows, rows: Rows, seed: int) -> float:
    """Estimated share of held-out rows that are also training rows, by a few of their numbers; 0 unless it is
    more than half, and clearly more than the share of duplicates among the training rows."""
    draw = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(rows), generator=draw)[:SEARCHED_ROWS]
    asked = torch.randperm(len(held_out), generator=draw)[:LOOKED_UP_ROWS]
    train, validation = _keys(rows, index), _keys(held_out, asked)
    if train.shape[1] != validation.shape[1]:
        return 0.0
    train, validation = (hashed(keys, keys) for keys in (train, validation))
    unique = int((train.unique(return_counts=True)[1] == 1).sum())
    shares = float(torch.isin(validation, train).double().mean()), 1.0 - unique / len(train)
    share, repeated = (min(1.0, one * len(rows) / len(index)) for one in shares)  # with rows not searched
    return share if share > 0.5 * (1.0 + repeated) else 0.0


def _keys(rows: Rows, index: Tensor) -> Tensor:
    """Key of each row: the middle numbers of each leaf and of the targets, as bits, int64 [k, d]."""
    parts = []
    for leaf in (*leaves(rows.inputs), rows.targets):
        line = leaf[(slice(None), *(size // 2 for size in leaf.shape[1:-1]))]  # a view, not a copy
        line = line.reshape(len(line), -1)
        start = max(0, (line.shape[1] - COMPARED_NUMBERS) // 2)
        numbers = line[:, start : start + COMPARED_NUMBERS][index.to(line.device)].cpu()
        bits = numbers.double().view(torch.int64) if numbers.is_floating_point() else numbers.long()
        parts.append(bits ^ (bits >> 32))  # a whole number's lower bits are 0, and hashes depend on those
    return torch.cat(parts, dim=1)
