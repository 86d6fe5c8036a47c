"""Everything that a detector says of a picture, however unsure it is: what its average precision is of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..metrics.boxes import corners
from .adapter import DetectorOutputs
from .query_rows import probabilities

MOST = 100  # pairs of a picture, as COCO and the DETR family have it


@dataclass(frozen=True)
class Candidates:
    """Boxes of a picture with a class each, the surest first; none where picture or answer is not finite."""

    boxes: Tensor  # left, top, right, bottom in pixels, [k, 4]
    labels: Tensor  # int64, [k]
    confidence: Tensor  # the detector's own probability of that class, [k]

    def cpu(self) -> Candidates:
        """The same on the CPU."""
        return Candidates(self.boxes.cpu(), self.labels.cpu(), self.confidence.cpu())


def candidates(said: DetectorOutputs, labels: int, size: tuple[int, int]) -> list[Candidates]:
    """Those of each picture, of so many classes, height and width; as post-processors of the DETR family do.

    Where each class is a yes or no, they are the surest 100 pairs of a query and a class, of which a query
    may give several; where "no object" is a class, each query as its surest class.
    """
    chances = probabilities(said.logits, labels)  # [n, Q, C]
    if said.logits.shape[-1] == labels:
        order = chances.flatten(1).argsort(dim=1, descending=True, stable=True)[:, :MOST]
        query, kinds = order // labels, order % labels
    else:
        query = chances.amax(dim=2).argsort(dim=1, descending=True, stable=True)
        kinds = chances.argmax(dim=2).gather(1, query)
    image = torch.arange(len(chances), device=chances.device)[:, None]
    confidence = chances[image, query, kinds]
    boxes = corners(said.boxes)[image, query] * said.boxes.new_tensor([size[1], size[0]] * 2)
    finite = torch.isfinite(said.logits.sum(dim=(1, 2)) + said.boxes.sum(dim=(1, 2))).tolist()
    each = zip(boxes, kinds, confidence, finite, strict=True)
    return [Candidates(b, k, c) if fine else Candidates(b[:0], k[:0], c[:0]) for b, k, c, fine in each]
