"""When is a row called novel? The threshold of the novelty score, and how it is saved."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..math.quantiles import held_out_quantile, needed_rows

PREFIX = "novelty."


@dataclass(frozen=True)
class NoveltyThreshold:
    """A row whose score lies above the threshold is novel.

    Args:
        threshold: Of the score, a scalar.
        false_alarm: With which probability a familiar row lies above it, at most, a scalar.
    """

    threshold: Tensor
    false_alarm: Tensor

    @classmethod
    def fit(cls, scores: Tensor, false_alarm: float) -> NoveltyThreshold:
        """The threshold for held-out scores [k]; see `held_out_quantile`."""
        if not 0.0 < false_alarm < 1.0:
            raise ValueError(
                f"false_alarm={false_alarm}; it must lie strictly between 0 and 1, for example 0.01."
            )
        needed = needed_rows(1.0 - false_alarm)
        if len(scores) < needed:
            raise ValueError(
                f"a threshold for false_alarm={false_alarm} takes at least {needed} held-out rows, and there "
                f"are {len(scores)}; fit with `validation=`, pass familiar rows to model.threshold(rows), or "
                "allow more false alarms."
            )
        if not bool(torch.isfinite(scores).all()):
            raise ValueError("held-out rows have no finite score; drop those whose `valid` is False.")
        threshold = held_out_quantile(scores.double().cpu(), 1.0 - false_alarm)
        return cls(threshold, torch.tensor(false_alarm, dtype=torch.float64))


def novelty_tensors(scores: Tensor, limit: NoveltyThreshold | None) -> dict[str, Tensor]:
    """What a file holds of them."""
    table = {f"{PREFIX}scores": scores} if len(scores) else {}
    if limit is not None:
        table |= {f"{PREFIX}threshold": limit.threshold, f"{PREFIX}false_alarm": limit.false_alarm}
    return table


def read_novelty(reader: Reader) -> tuple[Tensor, NoveltyThreshold | None]:
    """The held-out scores, empty where there are none, and the threshold if one was fitted."""
    names, real = reader.matching(PREFIX), torch.float64
    scores = reader.take(f"{PREFIX}scores", real, None) if "scores" in names else torch.zeros(0, dtype=real)
    if not bool((scores >= 0).all()):
        raise reader.fail(f"{PREFIX}scores", "must not be negative")
    if not {"threshold", "false_alarm"} & set(names):
        return scores, None
    found = NoveltyThreshold(
        reader.take(f"{PREFIX}threshold", real), reader.take(f"{PREFIX}false_alarm", real)
    )
    if float(found.threshold) < 0:
        raise reader.fail(f"{PREFIX}threshold", "must not be negative")
    if not 0 < float(found.false_alarm) < 1:
        raise reader.fail(f"{PREFIX}false_alarm", "must lie between 0 and 1")
    return scores, found
