"""`trustgp.compress`: a smaller and faster model from a fitted one, without the training rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch

from ..data.rows import Rows, read_rows
from ..executors.progress import Reporter, reporting
from ..experts.posteriors import Sizes
from ..state.model_state import FittedModel, ModelState
from .calibrate import recalibrate

LEAST = {"rows": 1, "rank": 1, "gate": 2, "witness": 0}
# Rows of an expert, rows of the gate, directions of a cell of the witness: each in two precisions.
STEPS = (
    (512, 256, 512), (256, 128, 512), (128, 128, 512), (128, 64, 128),
    (64, 64, 64), (32, 64, 32), (16, 32, 0),
)  # fmt: skip
RANK = 128  # directions of an expert that keeps all its rows
Model = TypeVar("Model", bound=FittedModel)


def compress(
    model: Model,
    *,
    rows: int | None = None,
    rank: int | None = None,
    dtype: str | torch.dtype | None = None,
    gate: int | None = None,
    witness: int | None = None,
    validation: Any = None,
    progress: bool = True,
) -> Model:
    """A smaller model from a fitted one; that one stays as it is.

    What is dropped counts as not known, so the variance before calibration never falls, but for rounding.

    Args:
        model: From `trustgp.fit` or `trustgp.load`.
        rows: The most rows an expert holds: those that tell most, one after another. The variance is that of
            an expert with these rows only; the residual mean is that of all rows, projected on these. Of
            explicit features (`Sketch`, `JacobianRows`) an expert holds directions, and this limits those.
        rank: The most directions in which an expert knows more than its prior: those in which its rows tell
            most (LOVE's cache). None: all.
        dtype: "float16": features and bases in float16, with a scale for each tensor, and what multiplies
            them in float32 where rounding does no harm. All sums are taken in float64, as before.
        gate: The most rows the gate holds; some rows near a border change their expert.
        witness: The most directions in which a cell of the witness knows more than its prior; 0: no witness.
            Its mean stays what it is.
        validation: Rows that neither the network nor the experts have seen: the size of the error bar, the
            reach of the witness and the threshold of the novelty score, if there is one, are fitted anew.
            None: the error bar keeps the calibration of before, too wide rather than too narrow, and the
            threshold is gone.
        progress: Whether to show a bar in a terminal.
    """
    if dtype is not None and dtype not in ("float16", torch.float16):
        raise ValueError(
            f'dtype={dtype!r}; allowed are "float16", and None for what the model was fitted in.'
        )
    sizes = Sizes(rows, rank, dtype is not None, gate, witness)
    for name, least in LEAST.items():
        value = getattr(sizes, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{name}={value!r}; a whole number of at least {least} is needed, or None: all.")
    if sizes == Sizes():
        raise ValueError("nothing to compress: pass rows=, rank=, dtype=, gate= or witness=.")
    check_whole(model.state)
    held = None if validation is None else read_rows(validation, name="validation")
    with reporting(enabled=progress) as report:
        return type(model)(compressed(model.state, sizes, held, report))


def check_whole(state: ModelState) -> None:
    """Refuse a model that was compressed before: what is dropped does not come back."""
    if before := state.provenance.compressed:
        raise ValueError(
            f"this model was compressed before ({before}); compress the model that it was made from."
        )


@torch.no_grad()
def compressed(
    state: ModelState, sizes: Sizes, validation: Rows | None, report: Reporter, known: dict | None = None
) -> ModelState:
    """The smaller model of a whole one, calibrated on the validation rows if there are any; `known` are roots
    of the witness, see `WitnessState.shrink`."""
    parts = report.track(state.mixtures, stage="compressing", total=len(state.mixtures))
    mixtures = tuple(mixture.shrink(sizes) for mixture in parts)
    witness = None if state.witness is None else state.witness.shrink(sizes, known)
    provenance = replace(state.provenance, compressed=str(sizes))
    found = ModelState(state.network, mixtures, provenance, state.calibrations, witness)
    if validation is None:
        return found
    before = state.witness
    if witness is not None and before is not None:
        # sure of itself for as many of these rows as before: with less known, all is more novel
        inputs = validation.take(torch.arange(len(validation)))
        share = (before(inputs).novelty <= before.reach).double().mean()
        reach = torch.maximum(witness(inputs).novelty.quantile(share), before.reach)
        witness = replace(witness, reach=reach.clamp_max(1.0))
    return recalibrate(replace(found, witness=witness, threshold=state.threshold), validation, report)


def ladder(state: ModelState) -> list[Sizes]:
    """Settings that make this model smaller, each in its own way, the largest first."""
    wanted = [Sizes(), Sizes(half=True), Sizes(rank=RANK)]
    for rows, gate, witness in STEPS:
        wanted += [Sizes(rows=rows, gate=gate, witness=witness, half=half) for half in (False, True)]
    held = [expert.posterior.size for mixture in state.mixtures for expert in mixture.experts]
    gates = [getattr(mixture.gate.projection, "features", None) for mixture in state.mixtures]
    subsets = [len(features) for features in gates if features is not None]
    cells = [] if state.witness is None else [len(cell.rows) for cell in state.witness.cells]
    kinds = {"rows": held, "rank": held, "gate": subsets, "witness": cells}
    found: dict[Sizes, None] = {}
    for sizes in wanted:
        limits = {
            name: value
            for name, there in kinds.items()  # a limit above the largest that the model holds says nothing
            if (value := getattr(sizes, name)) is not None and value < max(there, default=0)
        }
        found[Sizes(half=sizes.half, **limits)] = None
    return list(found)
