"""Matching of detections with targets, and calibration of their confidence.

Detections have boxes (left, top, right, bottom in pixels, [k, 4]), labels, int64, [k], and confidences, [k],
such as `trustgp.Detections`; targets have boxes [m, 4] and labels [m], such as `trustgp.BoxTargets`.
"""

from typing import Any

import torch
from torch import Tensor

from .boxes import overlaps
from .ranking import same_shape

DECE_BINS, PLACE_BINS, LAECE_BINS = 20, 5, 25  # as in the papers; by confidence and place: of each of them
MIN_BIN_COUNT = 8  # detections in a bin by place: with fewer the precision is too noisy


def match_targets(detections: Any, targets: Any, *, min_overlap: float = 0.5) -> tuple[Tensor, Tensor]:
    """The target that each detection matches, -1: none, and their overlap, 0 without one, as COCO defines it.

    Detections are matched in the order of their confidence, each with the free target of its class that it
    overlaps most, if by `min_overlap` at least.

    Args:
        detections: k of a picture, with `boxes`, `labels` and `confidence`.
        targets: m of the same picture, with `boxes` and `labels`.
        min_overlap: Intersection over union, in (0, 1].

    Returns:
        int64 and float64, shape [k] each.
    """
    k, m = len(detections.labels), len(targets.labels)
    matched, shared = torch.full((k,), -1), torch.zeros(k, dtype=torch.float64)
    if k and m:
        every = overlaps(detections.boxes.double(), targets.boxes.double())
        every = torch.where(detections.labels[:, None] == targets.labels, every, -1.0)
        order = detections.confidence.argsort(descending=True, stable=True)
        for row in order[every[order].amax(dim=1) >= min_overlap].tolist():
            best = m - 1 - int(every[row].flip(0).argmax())  # of equal ones COCO takes the last
            if every[row, best] >= min_overlap:
                matched[row], shared[row] = best, every[row, best]
                every[:, best] = -1.0  # taken
    return matched, shared


def detection_calibration_error(
    confidence: Tensor, right: Tensor, *, positions: Tensor | None = None, bins: int | None = None
) -> Tensor | None:
    r"""D-ECE: how far confidence is from precision, a float64 scalar (Küppers et al. 2020).

    .. math:: \sum_b \tfrac{n_b}{n} | \mathrm{precision}_b - \mathrm{confidence}_b |

    over bins of equal width, each without its lower and with its upper end. With `positions`, a bin is one of
    confidence and of each of them; as in the paper, bins with fewer than 8 detections are left out, and n
    counts the others (the authors' netcal keeps all in n: few detections then look calibrated). Missed
    targets cost nothing.

    Args:
        confidence: In [0, 1], shape [n].
        right: 1 where a detection matches a target, else 0, shape [n]; or another aim of the confidence.
        positions: In [0, 1], for example centre, width and height over those of the picture, shape [n, D].
        bins: Of each dimension; None: 20, and 5 with positions.

    Returns:
        None where no bin is left: without detections, or with too few in every bin.
    """
    same_shape(confidence=confidence, right=right)
    shapes = [tuple(part.shape) for part in (confidence, positions) if part is not None]
    if confidence.ndim != 1 or (len(shapes) > 1 and (len(shapes[1]) != 2 or shapes[1][0] != len(right))):
        raise ValueError(f"confidence and positions are {shapes}; [n] and [n, D] are needed.")
    bins = (DECE_BINS if positions is None else PLACE_BINS) if bins is None else bins
    if bins < 1:
        raise ValueError(f"bins={bins}; at least one is needed.")
    if not bool(((confidence >= 0) & (confidence <= 1)).all()):
        raise ValueError("confidences must lie in 0..1; are these logits?")
    if not len(confidence):
        return None
    columns = confidence.double()[:, None]
    columns = columns if positions is None else torch.cat([columns, positions.to(columns)], dim=1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1].to(columns.device)
    cells, counts = torch.bucketize(columns, edges).unique(dim=0, return_inverse=True, return_counts=True)[1:]
    gaps = columns.new_zeros(len(counts)).scatter_add(0, cells, right.double() - confidence.double()).abs()
    full = counts >= (1 if positions is None else MIN_BIN_COUNT)
    return gaps[full].sum() / counts[full].sum() if bool(full.any()) else None


def localisation_calibration_error(
    confidence: Tensor, shared: Tensor, labels: Tensor, *, bins: int = LAECE_BINS
) -> dict[int, Tensor]:
    r"""LaECE of each class that was detected (Oksuz et al. 2023); the score is their mean.

    .. math:: \sum_b \tfrac{n_b}{n} | \mathrm{confidence}_b - \mathrm{precision}_b \overline{\mathrm{IoU}}_b |

    where the mean overlap is that of the right detections in a bin: a confidence should be precision and fit.

    Args:
        confidence: In [0, 1], shape [n].
        shared: Overlap of a detection with the target that it matches, 0 without one, shape [n].
        labels: Its class, int64, shape [n].
        bins: Of equal width; 25 in the paper.
    """
    same_shape(confidence=confidence, shared=shared, labels=labels)
    error: Any = detection_calibration_error  # not None: a class has a detection
    masks = {c: labels == c for c in labels.unique().tolist()}
    return {c: error(confidence[own], shared[own], bins=bins) for c, own in masks.items()}
