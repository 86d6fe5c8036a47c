"""Above which limits is a frame novel, or too uncertain? What the user says, or what familiar rows show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.rows import Rows
from ..likelihoods.novelty import NoveltyThreshold
from ..math.quantiles import held_out_quantile, needed_rows
from ..model import UncertaintyModel
from .readings import Reading, read_prediction

MOST_ROWS = 1000  # held-out rows that are asked


@dataclass(frozen=True)
class Limits:
    """Enter levels of the two alarms.

    Args:
        score: Above it a frame is novel.
        doubt: Above it, in any number, a frame is uncertain, float64, shape [C] or [1]; None: none is.
    """

    score: float
    doubt: Tensor | None


def joint_limit(doubts: Tensor, false_alarm: float) -> Tensor | None:
    r"""Limits [C] that a new row exceeds in any of its C numbers with probability `false_alarm` at most.

    .. math:: l_c = \mathrm{median}_c \cdot Q_{1 - \alpha}( \max_c d_c / \mathrm{median}_c )

    One quantile for all numbers, as that of held-out scores (`held_out_quantile`), so that many outputs
    give no more false alarms than one. None where the rows are too few.

    Args:
        doubts: Of held-out rows, finite, shape [n, C].
        false_alarm: Alpha, in (0, 1).
    """
    if len(doubts) < needed_rows(1.0 - false_alarm):
        return None
    usual = doubts.median(dim=0).values.clamp_min(torch.finfo(torch.float64).tiny)
    return usual * held_out_quantile((doubts / usual).amax(dim=1), 1.0 - false_alarm)


def find_limits(
    model: Any, *, threshold: float | None, std: Any, confidence: float | None, rows: Any, false_alarm: float
) -> Limits:
    """The limits of a monitor; see `trustgp.Monitor` for what each option means."""
    if not 0.0 < false_alarm < 1.0:
        raise ValueError(
            f"false_alarm={false_alarm}; it must lie strictly between 0 and 1, for example 0.01."
        )
    given = _given_doubt(std, confidence)
    asked = None
    if rows is not None or (given is None and isinstance(model, UncertaintyModel)):
        asked = _asked(model, rows)
    if threshold is not None:
        score = float(threshold)
    elif rows is not None and asked is not None:
        score = float(NoveltyThreshold.fit(asked.score, false_alarm).threshold)
    else:
        score = _known_score(model, false_alarm)
    if not score >= 0.0 or math.isinf(score):
        raise ValueError(f"threshold={score}; it must be a finite number of at least 0.")
    if given is None and asked is not None:
        given = joint_limit(asked.doubt[asked.valid], false_alarm)
    return Limits(score, given)


def _given_doubt(std: Any, confidence: float | None) -> Tensor | None:
    if confidence is not None:
        if std is not None:
            raise ValueError("pass std= for numbers or confidence= for classes, not both.")
        if not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence={confidence}; it must lie strictly between 0 and 1, such as 0.6.")
        return torch.tensor([1.0 - confidence], dtype=torch.float64)
    if std is None:
        return None
    limit = torch.as_tensor(std, dtype=torch.float64).detach().cpu().reshape(-1)
    if not len(limit) or not bool((limit > 0).all()):
        raise ValueError(f"std={std}; pass one positive number, or one for each output.")
    return limit


def _asked(model: Any, rows: Any) -> Reading | None:
    """What the model says of familiar rows: those given, or those held out in its fit; None: it has none."""
    if rows is not None:
        return read_prediction(model, rows)
    held: Rows | None = getattr(model.memory, "validation", None)
    if held is None:
        return None
    return read_prediction(model, held.take(evenly(len(held), MOST_ROWS)))


def _known_score(model: Any, false_alarm: float) -> float:
    """The threshold that a model brings with it."""
    if isinstance(model, UncertaintyModel):
        alarm = model.alarm or NoveltyThreshold.fit(model.held_scores, false_alarm)
        return float(alarm.threshold)
    told = getattr(model, "metadata", {}).get("threshold", "none")
    if told == "none":
        raise ValueError(
            "there is no threshold: pass threshold=, the novelty score above which a frame is novel, or "
            "familiar rows as rows=."
        )
    return float(told)
