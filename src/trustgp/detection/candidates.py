"""Everything that a detector says of a picture, however unsure it is: what its average precision is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.rows import finite_rows
from ..metrics.boxes import corners
from .adapter import Detector
from .pictures import as_pictures
from .query_rows import PICTURES, probabilities


@dataclass(frozen=True)
class Candidates:
    """Every query of a picture, as its surest class; none where picture or answer is not finite."""

    boxes: Tensor  # left, top, right, bottom in pixels, [Q, 4]
    labels: Tensor  # int64, [Q]
    confidence: Tensor  # the detector's own probability of that class, [Q]

    def cpu(self) -> Candidates:
        """The same on the CPU."""
        return Candidates(self.boxes.cpu(), self.labels.cpu(), self.confidence.cpu())


@torch.no_grad()
def candidates(detector: Detector, images: Any, *, size: tuple[int, int] | None = None) -> list[Candidates]:
    """Those of each picture, [n, channels, height, width] or a list, of this size."""
    pictures = as_pictures(images, channels=detector.channels, size=size)
    good = finite_rows(pictures)
    found = []
    for start in range(0, len(pictures), PICTURES):
        part = pictures[start : start + PICTURES]
        seen = detector(part)
        confidence, labels = probabilities(seen.logits, detector.labels).max(dim=2)
        boxes = corners(seen.boxes) * seen.boxes.new_tensor([part.shape[3], part.shape[2]] * 2)
        finite = torch.isfinite(confidence.sum(dim=1) + boxes.sum(dim=(1, 2))).cpu()
        kept = (finite & good[start : start + PICTURES].cpu()).tolist()
        each = zip(boxes, labels, confidence, kept, strict=True)
        found += [Candidates(b, k, c) if fine else Candidates(b[:0], k[:0], c[:0]) for b, k, c, fine in each]
    return found
