"""What was found in one picture, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Detections:
    """What was found in one picture, the surest first.

    Args:
        boxes: Left, top, right, bottom in pixels, as the detector says, [k, 4].
        std: How sure each edge is, in pixels, [k, 4].
        labels: The detector's classes, int64, [k].
        confidence: The detector's own probability of that class, [k].
        probabilities: Of all classes and, last, of no object, with the error bar, [k, C + 1].
        novelty: How far from what it was trained on, in [0, 1]: the latent variance of whether there is
            anything, over what it would be without training rows, [k].
        valid: False where the picture, or what the detector says of it, holds NaN or infinity: then nothing
            is known of it, and nothing found.
    """

    boxes: Tensor
    std: Tensor
    labels: Tensor
    confidence: Tensor
    probabilities: Tensor
    novelty: Tensor
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
        """Whether the novelty lies above the model's threshold, bool, [k]; see `DetectionModel.threshold`."""
        if self._threshold is None:
            raise ValueError(
                "there is no threshold yet; call model.threshold(false_alarm=0.01), then predict again."
            )
        return ~(self.novelty <= self._threshold)  # what is no number is novel

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper end of each edge, in pixels, [k, 4] each, of a normal distribution.

        Args:
            level: Probability within, in (0, 1).
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level={level}; it must lie between 0 and 1.")
        reach = (
            torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64)).to(self.std) * self.std
        )
        return self.boxes - reach, self.boxes + reach

    @property
    def summary(self) -> dict[str, float]:
        """Of the picture: how many, and the largest novelty, entropy and deviation; 0 without any.

        Of a picture that is not valid the novelty is 1 and the deviation infinite. With a threshold there is
        also "novel": how many are.
        """
        known = {} if self._threshold is None else {"novel": int(self.is_novel.sum())}
        if not len(self):
            novelty, std = (0.0, 0.0) if self.valid else (1.0, float("inf"))
            return {"detections": 0, "novelty": novelty, "entropy": 0.0, "std": std, **known}
        return {
            "detections": len(self),
            "novelty": float(self.novelty.max()),
            "entropy": float(self.entropy.max()),
            "std": float(self.std.max()),
            **known,
        }
