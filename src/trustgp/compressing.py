"""`trustgp.compress`: a smaller and faster model from a fitted one, without the training rows."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from .calibrating import recalibrated
from .data import Rows, read_rows
from .model import UncertaintyModel
from .progress import Reporter, reporting
from .shrinking import Sizes, smaller_experts, smaller_gate, smaller_witness
from .witness import WitnessState

LEAST = {"rows": 1, "rank": 1, "gate": 2, "witness": 0}
HALVES = ("float16", torch.float16)


def compress(
    model: UncertaintyModel,
    *,
    rows: int | None = None,
    rank: int | None = None,
    dtype: str | torch.dtype | None = None,
    gate: int | None = None,
    witness: int | None = None,
    validation: Any = None,
    progress: bool = True,
) -> UncertaintyModel:
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
    sizes = _sizes(rows, rank, dtype, gate, witness)
    check_whole(model)
    held = None if validation is None else read_rows(validation, name="validation")
    with reporting(enabled=progress) as report:
        return compressed(model, sizes, held, report)


def check_whole(model: UncertaintyModel) -> None:
    """Refuse a model that was compressed before: what is dropped does not come back."""
    if model.origin.compressed:
        raise ValueError(
            f"this model was compressed before ({model.origin.compressed}); compress the model that it was "
            "made from."
        )


@torch.no_grad()
def compressed(
    model: UncertaintyModel,
    sizes: Sizes,
    validation: Rows | None,
    report: Reporter,
    known: dict | None = None,
) -> UncertaintyModel:
    """The smaller model, calibrated on the validation rows if there are any.

    Args:
        model: A whole one.
        sizes: What is left of it.
        validation: Rows that neither the network nor the experts have seen; None: none.
        report: Shows how far it is.
        known: Roots of the witness, see `smaller_witness`.
    """
    parts = report.track(model.mixtures, stage="compressing", total=len(model.mixtures))
    mixtures = tuple(
        replace(m, experts=smaller_experts(m.experts, sizes), gate=smaller_gate(m.gate, sizes)) for m in parts
    )
    witness = None if model.witness is None else smaller_witness(model.witness, sizes, known)
    origin = replace(model.origin, compressed=str(sizes))
    found = UncertaintyModel(model.network, mixtures, model.calibrations, origin, None, witness)
    if validation is not None:
        if witness is not None and model.witness is not None:
            found.witness = _reaching(witness, model.witness, validation)
        found.alarm = model.alarm
        recalibrated(found, validation, report)
    return found


def _reaching(witness: WitnessState, before: WitnessState, rows: Rows) -> WitnessState:
    """The witness, sure of itself for as many of these rows as before: with less known, all is more novel."""
    inputs = rows.take(torch.arange(len(rows)))
    share = (before(inputs).novelty <= before.reach).double().mean()
    reach = witness(inputs).novelty.quantile(share)
    return replace(witness, reach=torch.maximum(reach, before.reach).clamp_max(1.0))


def _sizes(rows: Any, rank: Any, dtype: Any, gate: Any, witness: Any) -> Sizes:
    """The settings, checked."""
    if dtype is not None and dtype not in HALVES:
        raise ValueError(
            f'dtype={dtype!r}; allowed are "float16", and None for what the model was fitted in.'
        )
    sizes = Sizes(rows, rank, dtype is not None, gate, witness)
    for name, least in LEAST.items():
        value = getattr(sizes, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{name}={value!r}; a whole number of at least {least} is needed, or None: all.")
    if all(getattr(sizes, field.name) == field.default for field in fields(sizes)):
        raise ValueError("nothing to compress: pass rows=, rank=, dtype=, gate= or witness=.")
    return sizes
