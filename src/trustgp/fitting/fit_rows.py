"""Which rows the experts get, and which the calibration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.holdout import check_groups, holdout_split, some_rows
from ..data.rows import Rows, looks_like_time_series, read_rows
from ..data.user_warnings import warn_user
from ..executors import FitContext
from .options import FitOptions
from .prepare import Prepared, residual_of


@dataclass(frozen=True)
class FitRows:
    """What the experts and the calibration get of what the user handed over.

    Args:
        rows: Of the experts.
        residuals: Of these rows, for each kernel.
        groups: Of these rows, to be left out together; None: none are.
        validation: Rows to calibrate on; None: none.
        split: How many rows were handed over, and how many of them were split off to calibrate on; or 0, 0.
    """

    rows: Rows
    residuals: list[Tensor]
    groups: Tensor | None
    validation: Rows | None
    split: tuple[int, int] = (0, 0)


def split_rows(ready: Prepared, rows: Rows, options: FitOptions, context: FitContext) -> FitRows:
    """Rows for the experts and rows to calibrate on: split off where a likelihood cannot do without.

    The network's outputs on all of them are checked here.
    """
    likelihood, held = options.likelihood, options.validation
    labels = check_groups(options.groups, rows)

    def residuals_of(given: Rows, name: str) -> list[Tensor]:
        return residual_of(ready.network, likelihood, given, context, name=name, blends=ready.blends)

    if held is not None:
        held = read_rows(held, name="validation")
        likelihood.check(ready.num_outputs, held.targets, name="validation")
    residuals = residuals_of(rows, "train")
    if held is not None:
        residuals_of(held, "validation")
    context.report.begin("planning")
    # where rows are split off, groups only say which of them go together
    groups = None if likelihood.needs_held_out else labels
    if held is not None or not likelihood.needs_held_out:
        found = FitRows(rows, residuals, groups, held)
    else:
        off = holdout_split(rows, labels, options.seed)
        count = int(off.sum())
        held = some_rows(rows, off) if count else None
        kept = [residual[~off] for residual in residuals]
        found = FitRows(some_rows(rows, ~off), kept, groups, held, (len(rows), count))
    if found.validation is None and labels is None:
        _warn_time_series(found.rows, options.seed)
    return found


def _warn_time_series(rows: Rows, seed: int) -> None:
    """Warn where leave-one-out would be too optimistic."""
    if looks_like_time_series(rows, torch.Generator().manual_seed(seed)):
        warn_user(
            "the rows look like a time series: neighbouring rows are far more alike than random ones. "
            "Without validation rows the error bar is then too small for new motions; pass `groups=` "
            "(trajectory labels) or `validation=` (rows from other trajectories)."
        )
