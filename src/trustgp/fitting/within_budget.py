"""A fit within a budget: the best form of a whole model, or experts that keep to it from the start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from ..data.quantities import Budget
from ..data.rows import Rows, read_rows
from ..executors.progress import reporting
from ..state.model_state import ModelState
from .options import FitOptions
from .pipeline import fit_model
from .tune import tune_state

WITHIN = "within"  # in the folder of a checkpoint: experts that were limited from the start


def fit_within_budget(network: nn.Module, train: Any, options: FitOptions) -> ModelState:
    """With validation rows the best form of a model without a limit; else the fit itself keeps to it.

    Args:
        network: Trained, in eval mode.
        train: The rows it was trained on: (inputs, targets), a Dataset or a DataLoader.
        options: Of the fit.
    """
    if options.budget == Budget() or options.budget.during_fit or options.validation is None:
        return _fit(network, train, options)
    train = read_rows(train, name="train")  # once, for two fits
    options = replace(options, validation=read_rows(options.validation, name="validation"))
    best = _best_form(network, train, options)
    if best is not None:
        return best
    folder = None if options.checkpoint is None else options.checkpoint / WITHIN
    return _fit(network, train, replace(options, checkpoint=folder))


def _best_form(network: nn.Module, train: Rows, options: FitOptions) -> ModelState | None:
    """The best form within the budget of the model without one; None: that takes too much, or none fits."""
    timed = options.budget.seconds is not None  # then there is no other way
    try:
        whole = _fit(network, train, replace(options, budget=Budget()))
    except MemoryError:
        if timed:
            raise
        return None
    try:
        return tune_state(whole, options.validation, options.budget, progress=options.progress).best
    except ValueError:  # nothing fits, or there are too few validation rows to compare forms on
        if timed:
            raise
        return None


def _fit(network: nn.Module, train: Any, options: FitOptions) -> ModelState:
    with reporting(enabled=options.progress) as report:
        return fit_model(network, train, options, report)
