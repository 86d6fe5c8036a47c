"""The detections of a picture: boxes, each with its error bar."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Normal, StudentT

from ..math.quantiles import check_share
from .batch import Batch, above


@dataclass(frozen=True, repr=False)
class Detections(Batch):
    """The detections of one picture, the most confident first; a batch, like a `Prediction`.

    Examples:
        >>> first = detections.predict(pictures)[0]
        >>> sure = first[first.std.amax(dim=1) < 5.0]
    """

    ARRAYS: ClassVar[tuple[str, ...]] = ("boxes", "std", "labels", "confidence", "probabilities", "novelty")

    boxes: Tensor  # the detector's left, top, right, bottom in pixels, [k, 4]
    std: Tensor  # standard deviation of each edge, in pixels, [k, 4]
    labels: Tensor  # the detector's classes, int64, [k]
    confidence: Tensor  # the detector's own probability of that class, [k]
    probabilities: Tensor  # of the classes and, last, of no object, with the error bar, [k, C + 1]
    # Distance of the features from those in training, in [0, 1): u / (1 + u), [k], where the posterior
    # variance u is 1 on average over familiar data.
    novelty: Tensor
    # False where the picture, or the detector's output, is not finite: there are no detections.
    valid: bool = True
    threshold: float | None = None  # the model's threshold of the novelty; None: it has none
    picture_novelty: float = 0.0  # novelty of the whole picture, also without detections
    df: float = math.inf  # degrees of freedom of the edges' errors; infinite: they are normal
    picture_threshold: float | None = None  # threshold of the picture's novelty; None: there is none

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the probabilities, in nats, [k]."""
        return torch.special.entr(self.probabilities).sum(dim=1)

    @property
    def is_novel(self) -> Tensor:
        """Whether the novelty lies above the model's threshold, bool, [k]; see `Prediction.is_novel`."""
        return above(self.novelty, self.threshold)

    @property
    def picture_is_novel(self) -> bool:
        """Whether the picture's novelty lies above the threshold for pictures."""
        if self.picture_threshold is None:
            raise ValueError("there are no held-out pictures to compare with; fit with `validation=`.")
        return not self.picture_novelty <= self.picture_threshold

    @property
    def over_threshold(self) -> float:
        """Largest ratio of novelty to threshold among the detections and the picture; a novelty without a
        threshold counts as it is."""
        pairs = [(float(new), self.threshold) for new in self.novelty.tolist()]
        pairs.append((self.picture_novelty, self.picture_threshold))
        return max(new / limit if limit else new for new, limit in pairs)

    @property
    def distribution(self) -> Normal | StudentT:
        """Distribution of each edge, in pixels, [k, 4]."""
        if math.isinf(self.df):
            return Normal(self.boxes, self.std, validate_args=False)
        return StudentT(self.df, self.boxes, self.std * self._narrow, validate_args=False)

    @property
    def _narrow(self) -> float:
        """Ratio of the scale of the edges' errors to their standard deviation."""
        return 1.0 if math.isinf(self.df) else math.sqrt((self.df - 2.0) / self.df)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of each edge's interval with probability `level`, in pixels, [k, 4] each."""
        from scipy.special import ndtri, stdtrit  # half a second to import

        check_share("level", level, 0.95)
        upper = 0.5 + level / 2
        quantile = float(ndtri(upper) if math.isinf(self.df) else stdtrit(self.df, upper))
        reach = quantile * self._narrow * self.std
        return self.boxes - reach, self.boxes + reach

    @property
    def summary(self) -> dict[str, float]:
        """Summary of the picture: its own novelty ("picture"), the number of detections, and their largest
        novelty, entropy and standard deviation; 0 without detections.

        In a picture that is not valid the novelty is 1 and the deviation infinite. With a threshold there is
        also "novel", the number of novel detections.
        """
        novelty, entropy, std = (0.0, 0.0, 0.0) if self.valid else (1.0, 0.0, math.inf)
        if len(self):
            novelty, entropy, std = (float(each.max()) for each in (self.novelty, self.entropy, self.std))
        values = {"detections": len(self), "novelty": novelty, "entropy": entropy, "std": std}
        values["picture"] = self.picture_novelty
        return values if self.threshold is None else {**values, "novel": int(self.is_novel.sum())}

    @property
    def _title(self) -> str:
        return f"{len(self)} detections in a picture" + ("" if self.valid else " that is not finite")

    def _lines(self) -> list[list[str]]:
        edges = (
            [f"{edge:.1f} \u00b1 {std:.1f}" for edge, std in zip(*both, strict=True)]
            for both in zip(self.boxes.tolist(), self.std.tolist(), strict=True)
        )
        each = zip(edges, self.labels.tolist(), self.confidence.tolist(), self.novelty.tolist(), strict=True)
        rows = ([str(i), str(c), f"{p:.3f}", *e, f"{new:.3f}"] for i, (e, c, p, new) in enumerate(each))
        return [["", "label", "confidence", "left", "top", "right", "bottom", "novelty"], *rows]
