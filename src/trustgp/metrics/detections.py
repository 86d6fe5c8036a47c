"""Matching of detections with targets, and calibration of their confidence.

Detections have boxes (left, top, right, bottom in pixels, [k, 4]), labels, int64, [k], and confidences, [k],
such as `trustgp.Detections`; targets have boxes [m, 4] and labels [m], such as `trustgp.BoxTargets`.
"""

from typing import Any

import torch
from torch import Tensor

from .boxes import overlaps
from .classes import binned
from .ranking import same_shape

DECE_BINS, LAECE_BINS = 20, 25  # as in the papers


def match_targets(detections: Any, targets: Any, *, min_overlap: float = 0.5) -> tuple[Tensor, Tensor]:
    """Target that each detection matches (-1: none), and their overlap (0 if none), as COCO defines it.

    Detections are matched in the order of their confidence, each with the unmatched target of its class that
    it overlaps most, if the overlap is at least `min_overlap`.

    Args:
        detections: The k detections of a picture, with `boxes`, `labels` and `confidence`.
        targets: The m targets of the same picture, with `boxes` and `labels`.
        min_overlap: Intersection over union, in (0, 1].

    Returns:
        Indices, int64, and overlaps, float64, shape [k] each.
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


def detection_calibration_error(confidence: Tensor, right: Tensor, *, bins: int = DECE_BINS) -> Tensor | None:
    r"""D-ECE: how far confidence is from precision, a float64 scalar (Küppers et al. 2020).

    .. math:: \sum_b \tfrac{n_b}{n} | \mathrm{precision}_b - \mathrm{confidence}_b |

    over bins of equal width, open below and closed above. Missed targets cost nothing.

    Args:
        confidence: In [0, 1], shape [n].
        right: 1 where a detection matches a target, else 0, shape [n]; or other values to compare with.
        bins: Number of bins.

    Returns:
        The error; None without detections.
    """
    same_shape(confidence=confidence, right=right)
    if confidence.ndim != 1:
        raise ValueError(f"confidence is {tuple(confidence.shape)}; one of each detection is needed, [n].")
    if bins < 1:
        raise ValueError(f"bins={bins}; at least one is needed.")
    if not bool(((confidence >= 0) & (confidence <= 1)).all()):
        raise ValueError("confidences must lie in 0..1; are these logits?")
    if not len(confidence):
        return None
    number, mean, precision = binned(confidence.double(), right.double(), bins=bins)
    return (number * (precision - mean).abs()).sum() / number.sum()


def localisation_calibration_error(
    confidence: Tensor, shared: Tensor, labels: Tensor, *, bins: int = LAECE_BINS
) -> Tensor | None:
    r"""LaECE: calibration error, averaged over the detected classes, a float64 scalar (Oksuz et al. 2023).

    .. math:: \sum_b \tfrac{n_b}{n} | \mathrm{confidence}_b - \mathrm{precision}_b \overline{\mathrm{IoU}}_b |

    where the mean IoU is over the right detections in a bin: confidence should be precision times overlap.

    Args:
        confidence: In [0, 1], shape [n].
        shared: Overlap of each detection with the target that it matches, 0 without one, shape [n].
        labels: Class of each detection, int64, shape [n].
        bins: Number of bins of equal width; 25 in the paper.

    Returns:
        The error; None without detections.
    """
    same_shape(confidence=confidence, shared=shared, labels=labels)
    error: Any = detection_calibration_error  # not None: a class has a detection
    masks = [labels == c for c in labels.unique()]
    errors = [error(confidence[own], shared[own], bins=bins) for own in masks]
    return torch.stack(errors).mean() if errors else None
