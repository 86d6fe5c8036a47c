"""How good are a detector's boxes and confidences? Lists with an entry for each picture in, numbers out.

What was found has boxes (left, top, right, bottom in pixels, [k, 4]), labels, int64, [k], and confidences,
[k], such as `trustgp.Detections`; what is there has boxes [m, 4] and labels [m], such as `trustgp.Things`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .boxes import overlaps
from .ranking import same_shape

# Overlaps over which COCO averages, and recalls at which it reads off the precision: numpy's, as there, since
# a recall of 7 in 100 may lie just above torch's.
STEPS, RECALLS = torch.from_numpy(np.linspace(0.5, 0.95, 10)), torch.from_numpy(np.linspace(0.0, 1.0, 101))
MOST = 100  # detections of a class that count in a picture, as COCO has it
DECE_BINS, PLACE_BINS, LAECE_BINS = 20, 5, 25  # as in the papers; by confidence and place: of each of them
FEWEST = 8  # detections in a bin by place; with fewer the share of right ones says nothing


class LabelledBoxes(Protocol):
    """What is in a picture."""

    @property
    def boxes(self) -> Tensor:
        """Left, top, right, bottom in pixels, [m, 4]."""
        ...

    @property
    def labels(self) -> Tensor:
        """Classes, int64, [m]."""
        ...


class ScoredBoxes(LabelledBoxes, Protocol):
    """What was found in a picture."""

    @property
    def confidence(self) -> Tensor:
        """How sure each is, [m]."""
        ...


def match_things(
    found: ScoredBoxes, true: LabelledBoxes, *, least: Tensor | float = 0.5
) -> tuple[Tensor, Tensor]:
    """Which thing each detection has found, -1: none, and their overlap, 0 without, as COCO has it.

    The surest comes first, and takes the free thing of its class that it overlaps most, if by `least`.

    Args:
        found: k detections in a picture.
        true: m things in it.
        least: Overlaps, intersection over union, in (0, 1]: one of them, or [T].

    Returns:
        int64 and float64, shape [k] each; or [T, k].
    """
    steps = torch.as_tensor(least, dtype=torch.float64).reshape(-1, 1)
    k, m = len(found.labels), len(true.labels)
    which = torch.full((len(steps), k), -1)
    shared = torch.zeros(len(steps), k, dtype=torch.float64)
    if k and m:
        every = overlaps(found.boxes.double(), true.boxes.double())
        every = torch.where(found.labels[:, None] == true.labels, every, -1.0)
        free = torch.ones(len(steps), m, dtype=torch.bool)
        order = found.confidence.argsort(descending=True, stable=True)
        for row in order[every[order].amax(dim=1) >= steps.min()].tolist():
            reach = torch.where(free & (every[row] >= steps), every[row], 0.0)
            best = m - 1 - reach.flip(1).argmax(dim=1)  # of equal ones COCO takes the last
            shared[:, row] = reach.gather(1, best[:, None])[:, 0]
            hit = (shared[:, row] > 0).nonzero().flatten()
            which[hit, row], free[hit, best[hit]] = best[hit], False
    alone = not isinstance(least, Tensor) or least.ndim == 0
    return (which[0], shared[0]) if alone else (which, shared)


def precision_curves(
    found: Sequence[ScoredBoxes], true: Sequence[LabelledBoxes], *, least: Tensor = STEPS
) -> dict[int, Tensor]:
    r"""Precision at 101 recalls, by class and overlap, as COCO defines it; the mean is the average precision.

    .. math:: \mathrm{AP}_c = \tfrac{1}{101 T} \sum_t \sum_{r \in \{0, 0.01, \dots, 1\}}
        \max_{r' \ge r} \mathrm{precision}_{ct}(r')

    with 0 where the recall is not reached. AP is the mean over classes that have things, and over the
    overlaps 0.5, 0.55, ..., 0.95; AP50 that at 0.5. In a picture the 100 surest of a class count. There are
    no crowds, and no sizes that are left out.

    Args:
        found: What was found in each of n pictures.
        true: What is there, in the same order.
        least: From which overlap a detection is right, shape [T].

    Returns:
        By class that has things: float64, shape [T, 101].
    """
    _check_lengths(found, true)
    things = torch.cat([one.labels.reshape(-1) for one in true]) if len(true) else torch.zeros(0)
    parts = []
    for mine, there in zip(found, true, strict=True):
        which, _ = match_things(mine, there, least=least)
        counts = _rank_in_class(mine) < MOST
        parts.append((mine.confidence[counts], mine.labels[counts], (which >= 0)[:, counts]))
    if not parts:
        return {}
    confidence, labels, right = (torch.cat(lot, dim=-1) for lot in zip(*parts, strict=True))
    kinds, numbers = things.unique(return_counts=True)
    return {
        int(c): _curve(confidence[labels == c], right[:, labels == c], int(number))
        for c, number in zip(kinds, numbers, strict=True)
    }


def average_precision(
    found: Sequence[ScoredBoxes], true: Sequence[LabelledBoxes], *, least: Tensor = STEPS
) -> Tensor:
    """Mean of the `precision_curves` over classes, overlaps and recalls: COCO's AP, a float64 scalar."""
    curves = precision_curves(found, true, least=least)
    if not curves:
        raise ValueError("there is no thing in any picture; average precision needs one.")
    return torch.stack(list(curves.values())).mean()


def _curve(confidence: Tensor, right: Tensor, number: int) -> Tensor:
    """Precision at the recalls, [T, 101], of detections of one class: [k] and [T, k], with so many things."""
    order = confidence.argsort(descending=True, stable=True)
    hits = right[:, order].double().cumsum(dim=1)
    precision = hits / torch.arange(1, len(order) + 1, dtype=torch.float64)
    falling = precision.flip(1).cummax(dim=1).values.flip(1) if len(order) else precision
    reached = torch.searchsorted(hits / number, RECALLS.expand(len(right), -1).contiguous())
    return torch.nn.functional.pad(falling, (0, 1)).gather(1, reached)  # the last: that recall is not reached


def _rank_in_class(found: ScoredBoxes) -> Tensor:
    """How many of the same class are surer, int64, [k]."""
    order = found.confidence.argsort(descending=True, stable=True)
    labels = found.labels[order]
    rank = torch.empty_like(order)
    rank[order] = (labels[:, None] == labels).tril(-1).sum(dim=1)
    return rank


def detection_calibration_error(
    confidence: Tensor, right: Tensor, *, places: Tensor | None = None, bins: int | None = None
) -> Tensor | None:
    r"""D-ECE: how far confidence is from precision, a float64 scalar (Küppers et al. 2020).

    .. math:: \sum_b \tfrac{n_b}{n} | \mathrm{precision}_b - \mathrm{confidence}_b |

    over bins of equal width, each without its lower and with its upper end. With `places`, a bin is one of
    confidence and of each of them; as in the paper, bins with fewer than 8 detections are left out, and n
    counts the others (the authors' netcal keeps all in n: few detections then look calibrated). What is not
    found costs nothing.

    Args:
        confidence: In [0, 1], shape [n].
        right: 1 where a detection has found a thing, else 0, shape [n]; or what else it should be sure of.
        places: In [0, 1], for example centre, width and height over those of the picture, shape [n, D].
        bins: Of each dimension; None: 20, and 5 with places.

    Returns:
        None where no bin is left: without detections, or with too few in every bin.
    """
    same_shape(confidence=confidence, right=right)
    if confidence.ndim != 1 or (places is not None and (places.ndim != 2 or len(places) != len(right))):
        shapes = [tuple(part.shape) for part in (confidence, places) if part is not None]
        raise ValueError(f"confidence and places are {shapes}; [n] and [n, D] are needed.")
    bins = (DECE_BINS if places is None else PLACE_BINS) if bins is None else bins
    if bins < 1:
        raise ValueError(f"bins={bins}; at least one is needed.")
    if not bool(((confidence >= 0) & (confidence <= 1)).all()):
        raise ValueError("confidences must lie in 0..1; are these logits?")
    if not len(confidence):
        return None
    columns = confidence.double()[:, None]
    columns = columns if places is None else torch.cat([columns, places.to(columns)], dim=1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1].to(columns.device)
    cells, counts = torch.bucketize(columns, edges).unique(dim=0, return_inverse=True, return_counts=True)[1:]
    gaps = torch.zeros(len(counts), dtype=torch.float64, device=columns.device)
    gaps = gaps.scatter_add(0, cells, right.double() - confidence.double()).abs()
    full = counts >= (1 if places is None else FEWEST)
    return gaps[full].sum() / counts[full].sum() if bool(full.any()) else None


def localisation_calibration_error(
    confidence: Tensor, shared: Tensor, labels: Tensor, *, bins: int = LAECE_BINS
) -> dict[int, Tensor]:
    r"""LaECE of each class that was detected (Oksuz et al. 2023); the score is their mean.

    .. math:: \sum_b \tfrac{n_b}{n} | \mathrm{confidence}_b - \mathrm{precision}_b \overline{\mathrm{IoU}}_b |

    where the mean overlap is that of the right detections in a bin: a confidence should be precision and fit.

    Args:
        confidence: In [0, 1], shape [n].
        shared: Overlap of a detection with the thing that it has found, 0 where there is none, shape [n].
        labels: Its class, int64, shape [n].
        bins: Of equal width; 25 in the paper.
    """
    same_shape(confidence=confidence, shared=shared, labels=labels)
    found = {}
    for c in labels.unique().tolist():
        mine = labels == c
        error = detection_calibration_error(confidence[mine], shared[mine], bins=bins)
        assert error is not None  # there is a detection
        found[c] = error
    return found


def _check_lengths(found: Sequence[object], true: Sequence[object]) -> None:
    if len(found) != len(true):
        raise ValueError(f"found is of {len(found)} pictures but true of {len(true)}; they must agree.")
