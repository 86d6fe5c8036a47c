"""Size budget of a light model: its sizes are chosen before the fit, and the model is cut after it."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import tee
from typing import Any

import torch
from torch import nn

from ..data.quantities import size_text
from ..data.rows import Rows
from ..state.model_state import ModelState, nbytes
from ..tangents import Sketch
from .compress import reduced
from .plan import RANK, WITNESS_SHARE, default_sizes, witness_needs
from .prepare import FitRows, Prepared, prepare_network
from .sizes import MIN_RANK, OVERHEAD, Sizing

# Ranks to try, best first: with the given tangents, and with shorter sketches (by their length).
LONG_RANKS = (RANK, 192, 128)
SHORT_RANKS = {256: (192, 128), 192: (96,), 128: (64, 32)}


class BudgetError(ValueError):
    """No model fits within the budget. `model` is the fitted model at its full size, or its state while `fit`
    is still running; None if the budget was refused before the fit.

    Examples:
        >>> try:
        ...     trustgp.fit(network, train, budget="1 KiB", progress=False)
        ... except trustgp.BudgetError:
        ...     print("too small")
        too small
    """

    def __init__(self, message: str, model: Any = None) -> None:
        super().__init__(message)
        self.model = model


def plan_for_budget(
    network: nn.Module, rows: Rows, ready: Prepared, data: FitRows
) -> tuple[Prepared, int, int | None]:
    """Tangents, number of experts and rank (None: all directions) that keep a light model within its size
    budget, as far as the user has not chosen them; the defaults if there is no size budget."""
    options, n = ready.options, len(data.rows)
    size, (experts, rank) = options.budget.size, default_sizes(ready, n)
    if size is None:
        return ready, experts, rank
    if ready.maps[0][0].num_columns(expert=True) is None:
        raise BudgetError(
            f"budget={size_text(size)}: a size is kept by leaving out directions of explicit features, and "
            f"{type(ready.tangents).__name__} has none. Leave `tangents` out, or take trustgp.Sketch(512); "
            "num_experts= and patchwork= make exact experts smaller."
        )
    sample, double = rows.take(torch.arange(min(2, len(rows)))), rows.targets.dtype == torch.float64
    witness, _ = witness_needs(options.witness, sample, n, ready.num_outputs, 1, double)
    # first with the witness, then without: a witness is worth more than long sketches
    sizes = (witness, 0) if 0 < witness <= WITNESS_SHARE * size else (0,)
    steps = tee(_steps(network, rows, ready), len(sizes))
    for beside, step in zip(sizes, steps, strict=True):
        for ready, rank in step:
            sizing = Sizing(ready, n, experts)
            if max(sizing.expected(rank) + beside + OVERHEAD, sizing.least()) <= size:
                return ready, experts, rank
    while options.num_experts is None and experts > 1 and Sizing(ready, n, experts).least() > size:
        experts //= 2
    if (needed := Sizing(ready, n, experts).least()) > size:
        raise BudgetError(
            f"budget={size_text(size)} is too small for {experts} experts; the smallest that works is "
            f"{needed} bytes ({size_text(needed)}). Fewer experts, outputs='pseudo' or parameters='last' "
            "need less."
        )
    return ready, experts, MIN_RANK


def _steps(network: nn.Module, rows: Rows, ready: Prepared) -> Iterator[tuple[Prepared, int]]:
    """Tangents and ranks to try, best first; shorter sketches are bound only when they are reached."""
    options = ready.options
    shortest = () if options.tangents is None else (64, 32)
    yield from ((ready, rank) for rank in (*LONG_RANKS, *shortest))
    width = ready.maps[0][0].num_columns(expert=True) or 0
    for dim, ranks in SHORT_RANKS.items() if options.tangents is None else ():
        if dim < width:
            short = prepare_network(network, rows, options, Sketch(dim, parameters=options.parameters))
            short = replace(short, reason="so that the model stays within its budget")
            yield from ((short, rank) for rank in ranks)


def shrink_to_budget(state: ModelState, size: int | None) -> ModelState:
    """Largest form of a fitted model that takes at most `size` bytes: with fewer directions, then also
    without the witness. Its calibration does not change. Raise BudgetError with the model if none fits."""
    if size is None:
        return state
    most = state.directions
    for witness in (True, False) if state.witness is not None else (True,):
        form, ranks = partial(reduced, state, witness=witness), [*range(min(MIN_RANK, most), most), None]
        if fitting := bisect_right(ranks, size - OVERHEAD, key=lambda rank: nbytes(form(rank))):
            rank = ranks[fitting - 1]
            small = state if rank is None and witness else form(rank)
            # an update keeps the same limits
            provenance = replace(small.provenance, rank=small.directions or None, size=size)
            return replace(small, provenance=provenance)
    least = reduced(state, min(MIN_RANK, most) or None, witness=state.witness is None)
    raise BudgetError(
        f"nothing fits within {size_text(size)}: the smallest form ({least.provenance.compressed}) needs "
        f"{size_text(nbytes(least))}. Raise the budget, or fit with fewer experts, a shorter "
        "sketch (tangents=trustgp.Sketch(128)) or outputs='pseudo'. This error has the fitted `model`.",
        state,
    )
