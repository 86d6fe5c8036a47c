"""What a user gets back of a picture: boxes, each with its error bar."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Normal

from ..math.calibration import check_share
from .batch import Batch
from .prediction import above


@dataclass(frozen=True, repr=False)
class Detections(Batch):
    """What was found in one picture, the surest first; a batch of detections, as a `Prediction` of rows."""

    ARRAYS: ClassVar[tuple[str, ...]] = (
        *("boxes", "std", "labels", "confidence", "probabilities", "novelty"),
    )

    boxes: Tensor  # left, top, right, bottom in pixels, as the detector says, [k, 4]
    std: Tensor  # how sure each edge is, in pixels, [k, 4]
    labels: Tensor  # the detector's classes, int64, [k]
    confidence: Tensor  # the detector's own probability of that class, [k]
    probabilities: Tensor  # of all classes and, last, of no object, with the error bar, [k, C + 1]
    # How far from what it was trained on, in [0, 1]: the latent variance of whether there is anything, over
    # what it would be without training rows, [k].
    novelty: Tensor
    # False where the picture, or what the detector says of it, is not finite: nothing is known, or found.
    valid: bool = True
    _threshold: float | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def entropy(self) -> Tensor:
        """Of the probabilities, in nats, [k]."""
        return torch.special.entr(self.probabilities).sum(dim=1)

    @property
    def is_novel(self) -> Tensor:
        """Whether the novelty lies above the model's threshold, bool, [k]; see `Prediction.is_novel`."""
        return above(self.novelty, self._threshold)

    @property
    def distribution(self) -> Normal:
        """Of each edge, in pixels, [k, 4]."""
        return Normal(self.boxes, self.std, validate_args=False)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper end of each edge, in pixels, [k, 4] each, that a Gaussian has `level` between."""
        check_share("level", level, 0.95)
        quantile = torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64))
        reach = quantile.to(self.std) * self.std
        return self.boxes - reach, self.boxes + reach

    @property
    def summary(self) -> dict[str, float]:
        """Of the picture: how many, and the largest novelty, entropy and deviation; 0 without any.

        Of a picture that is not valid the novelty is 1 and the deviation infinite. With a threshold there is
        also "novel": how many are.
        """
        novelty, entropy, std = (0.0, 0.0, 0.0) if self.valid else (1.0, 0.0, math.inf)
        if len(self):
            novelty, entropy, std = (float(each.max()) for each in (self.novelty, self.entropy, self.std))
        found = {"detections": len(self), "novelty": novelty, "entropy": entropy, "std": std}
        return found if self._threshold is None else {**found, "novel": int(self.is_novel.sum())}

    @property
    def _title(self) -> str:
        return f"{len(self)} detections in a picture" + ("" if self.valid else " that is not finite")

    def _lines(self) -> list[list[str]]:
        edges = (
            [f"{edge:.1f} \u00b1 {std:.1f}" for edge, std in zip(*both, strict=True)]
            for both in zip(self.boxes.tolist(), self.std.tolist(), strict=True)
        )
        each = zip(edges, self.labels.tolist(), self.confidence.tolist(), self.novelty.tolist(), strict=True)
        rows = ([str(i), str(kind), f"{p:.3f}", *e, f"{new:.3f}"] for i, (e, kind, p, new) in enumerate(each))
        return [["", "label", "confidence", "left", "top", "right", "bottom", "novelty"], *rows]
