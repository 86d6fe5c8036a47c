"""`trustgp.compress`: a smaller and faster model from a fitted one, without the training rows."""

from dataclasses import replace
from typing import Any, TypeVar

import torch

from ..data.batches import Unpack
from ..data.torch_modes import cpu_default
from ..data.user_warnings import warn_user
from ..executors.progress import reporting
from ..math.quantiles import needed_rows
from ..state.model_state import FittedModel, ModelState, read_like, require_support
from .calibrate import recalibrate

Model = TypeVar("Model", bound=FittedModel)


@cpu_default()
def compress(
    model: Model,
    *,
    rank: int | None = None,
    witness: bool | None = None,
    validation: Any = None,
    progress: bool = True,
    unpack: Unpack | None = None,
) -> Model:
    """Make a smaller model from a fitted one, which is not changed.

    Dropped directions count as unknown, so before calibration no variance decreases, and the corrected mean
    of the experts does not change.

    Args:
        model: A model from `trustgp.fit` or `trustgp.load`.
        rank: Maximum number of directions that an expert keeps: the best-determined ones. None: all.
        witness: False drops the witness; None and True keep it.
        validation: Rows that neither the network nor the experts have seen. The size of the error bar and the
            threshold of the novelty score, if there is one, are refitted to them. None: the error bar keeps
            its calibration, too wide rather than too narrow, and the threshold is dropped, with a warning.
        progress: Whether to show a bar in a terminal.
        unpack: Unpacks batches of the validation rows, as for `fit`.

    Examples:
        >>> small = trustgp.compress(model, rank=16, validation=held_out, progress=False)
        >>> small.nbytes < model.nbytes
        True
    """
    require_support(model, "compress")
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 1):
        raise ValueError(f"rank={rank!r}; a whole number of at least 1 is needed, or None: all.")
    if witness not in (None, True, False):
        raise ValueError(f"witness={witness!r}; allowed are False, and True or None: it stays.")
    if rank is None and witness is not False:
        raise ValueError("nothing to compress: pass rank= or witness=False.")
    if rank is not None and not model.state.directions:
        raise ValueError(
            "the experts of this model are exact: they keep rows, and no directions that could be dropped. "
            'Fit without budget="none", or with tangents=trustgp.Sketch(512).'
        )
    small = reduced(model.state, rank, witness=witness is not False)
    if validation is not None:
        rows = read_like(model.state, validation, name="validation", unpack=unpack)
        with reporting(enabled=progress) as report:
            small = recalibrate(replace(small, threshold=model.state.threshold), rows, report)
    if model.state.threshold is not None and small.threshold is None:
        false_alarm = float(model.state.threshold.false_alarm)
        warn_user(
            "the threshold of the novelty score is gone, since scores differ in the smaller model; pass "
            f"validation=, at least {needed_rows(1.0 - false_alarm)} rows for false_alarm={false_alarm:g}, "
            "or call its threshold(rows) with familiar rows."
        )
    return type(model)(small)


def reduced(state: ModelState, rank: int | None, *, witness: bool) -> ModelState:
    """Model with at most `rank` directions in an expert (None: all), and with its witness or without. It
    keeps the calibration, but has no threshold. A form with fewer directions is part of one with more."""
    mixtures, training = tuple(mixture.truncate(rank) for mixture in state.mixtures), state.training
    if training is not None:  # an update starts from the smaller experts
        each = zip(training.solved, [mixture.experts for mixture in mixtures], strict=True)
        solved = tuple(tuple(replace(a, expert=b) for a, b in zip(*pair, strict=True)) for pair in each)
        training = replace(training, solved=solved)
    words = ["" if rank is None else f"rank={rank}", "" if witness else "no witness"]
    changes = {"compressed": ", ".join(filter(None, words)), "rank": rank or state.provenance.rank}
    return replace(
        state,
        mixtures=mixtures,
        witness=state.witness if witness else None,
        provenance=replace(state.provenance, **changes),
        training=training,
        held_scores=torch.zeros(0, dtype=torch.float64),
        threshold=None,
    )
