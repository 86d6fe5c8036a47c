"""What a user gets back: numbers, classes or boxes, each with its error bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ..math.calibration import check_share
from ..math.cross_entropy import two_sided
from ..math.predictive import MOST_DF, PredictiveDistribution

if TYPE_CHECKING:
    from .base import FamiliarScores


def _shares(name: str, value: float | Tensor) -> float | Tensor:
    """The same, if all lie strictly between 0 and 1."""
    for end in (value.min(), value.max()) if isinstance(value, Tensor) else (value,):
        check_share(name, float(end), 0.95)
    return value


def above(score: Tensor, threshold: float | None) -> Tensor:
    """Which scores are novel, bool; what is no number is."""
    if threshold is None:
        raise ValueError(
            "there is no threshold, since there are no held-out rows; call model.threshold(rows), with "
            "familiar rows, then predict again."
        )
    return ~(score <= threshold)


Later = Any
"""Another prediction, or a function that makes it; None: there is none."""


@dataclass(frozen=True)
class Prediction:
    r"""A prediction and its error bar; every tensor has the shape of the network's output unless noted.

    Of a half-precision network `mean` is in half precision, all else in float32.
    """

    mean: Tensor  # the network's own output, to the bit; or, for `corrected`, that plus the residual mean
    epistemic: Tensor  # variance for want of data: it grows away from the training rows
    aleatoric: Tensor  # variance of the noise in the targets
    excess: Tensor  # squared residual mean: how far the network itself is thought to be off here
    novelty: Tensor  # epistemic over prior variance, in [0, 1], [n]: 0 on the training rows, 1 far away
    expert: Tensor  # which expert answered, shape [n], or [n, C] with separate outputs
    valid: Tensor  # False for rows with NaN or infinite inputs or outputs (their variance is infinite), [n]
    rare: Tensor | None = None  # second moment of what rows that are far off add; None: there are none
    df: Tensor | None = None  # degrees of freedom of the tails; None: they are Gaussian
    share: float = 0.0  # of rows that are far off: what the training rows cannot rule out
    _score: Tensor | None = field(default=None, repr=False)
    _threshold: float | None = field(default=None, repr=False)
    _familiar: FamiliarScores | None = field(default=None, repr=False)
    _corrected: Later = field(default=None, repr=False)
    _plain: Later = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def variance(self) -> Tensor:
        """Second moment of the target about `mean`: epistemic + aleatoric + excess + rare."""
        usual = self.epistemic + self.aleatoric + self.excess
        return usual if self.rare is None else usual + self.rare

    @property
    def std(self) -> Tensor:
        """Square root of the variance."""
        return self.variance.sqrt()

    @property
    def corrected(self) -> Prediction:
        """The distribution about the corrected mean: network output plus residual mean."""
        return self._made("_corrected")

    @property
    def plain(self) -> Prediction:
        """The paper's variance: evidence only, no leave-out scale, no excess."""
        return self._made("_plain")

    def _made(self, name: str) -> Prediction:
        """What is made when it is asked for, and then kept; itself where there is nothing else."""
        found: Any = getattr(self, name)
        if callable(found):
            found = cast(Any, found)()
            object.__setattr__(self, name, found)
        return self if found is None else found

    def __getstate__(self) -> dict[str, Any]:
        later = [name for name in ("_corrected", "_plain") if callable(vars(self)[name])]
        return {**vars(self), **{name: self._made(name) for name in later}}  # functions do not travel

    @property
    def score(self) -> Tensor:
        """How foreign a row is, as one number, the higher the more, shape [n].

        In regression the novelty; in classification how many times as novel as a usual held-out row, by the
        latent variance of the logits or by its share of the prior variance, whichever is more.
        """
        return self.novelty if self._score is None else self._score

    @property
    def is_novel(self) -> Tensor:
        """Whether the score lies above the model's threshold, shape [n] bool.

        That of `model.threshold`. Before it is called, one that 1 % of the familiar rows exceed at most, or,
        with fewer than 99 held-out rows, the largest of their scores.
        """
        return above(self.score, self._threshold)

    @property
    def novelty_rank(self) -> Tensor:
        """The share of familiar (held-out) rows that are less novel than this one, in [0, 1], float64 [n].

        It means the same for every model and network: 0.5 is usual, 1 is more novel than all of them.
        """
        if self._familiar is None:
            raise ValueError("this prediction does not come from a model with held-out rows.")
        return torch.where(self.valid, self._familiar.share_below(self.score), 1.0)

    @property
    def probabilities(self) -> Tensor:
        """Of the classes, for `likelihood=Classification()` only."""
        raise AttributeError("probabilities are those of classes; fit with likelihood=Classification().")

    @property
    def classes(self) -> Tensor:
        """The predicted ones, for `likelihood=Classification()` only."""
        raise AttributeError("only classifiers predict classes; fit with likelihood=Classification().")

    @property
    def scale(self) -> Tensor:
        """Of the Student-t about its centre: the variance there is that scale squared times df / (df - 2)."""
        spread = self.epistemic + self.aleatoric
        return (spread if self.df is None else spread * ((self.df - 2.0) / self.df)).sqrt()

    @property
    def distribution(self) -> PredictiveDistribution:
        """Of the target; all below follows from it, and `variance` is its variance."""
        none = torch.zeros((), dtype=torch.float64, device=self.mean.device)
        return PredictiveDistribution(
            mean=self.mean,
            offset=self.excess.sqrt(),
            scale=self.scale,
            df=none + MOST_DF if self.df is None else self.df,
            share=none + self.share,
            spread=none if self.rare is None or not self.share else self.rare.double() / self.share,
        )

    def log_prob(self, targets: Tensor) -> Tensor:
        """Log density of the targets, in nats, float64; minus infinity where nothing is known."""
        return self.distribution.log_prob(targets)

    def crps(self, targets: Tensor) -> Tensor:
        """Continuous ranked probability score, in the targets' units, float64; lower is better."""
        return self.distribution.crps(targets)

    def quantile(self, q: float | Tensor) -> Tensor:
        """What the target stays at or below with probability q, in (0, 1)."""
        return self.distribution.quantile(_shares("q", q)).to(self.epistemic.dtype)

    def sample(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """k draws of the target, shape [k, ...]; of each entry by itself."""
        return self.distribution.sample(k, generator).to(self.epistemic.dtype)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the interval about `mean` that holds the target with this probability."""
        half = self.distribution.half_width(_shares("level", level)).to(self.epistemic.dtype)
        return self.mean - half, self.mean + half

    @staticmethod
    def cat(parts: Sequence[Prediction]) -> Prediction:
        """Predictions for several lots of rows, one after another."""
        kind = type(parts[0])
        return kind(**{f.name: _joined([getattr(part, f.name) for part in parts]) for f in fields(kind)})


def _joined(values: list[Any]) -> Any:
    """One field of several predictions: None where it is missing in one of them."""
    if any(value is None for value in values):
        return None
    if callable(values[0]) or isinstance(values[0], Prediction):
        return lambda: Prediction.cat([v if isinstance(v, Prediction) else v() for v in values])
    if not isinstance(values[0], Tensor):
        return values[0]
    if all(value.ndim == 2 and value.shape[1] > 1 and value.stride(1) == 0 for value in values):
        return torch.cat([value[:, :1] for value in values]).expand(-1, values[0].shape[1])  # stays a view
    return torch.cat(values)


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    r"""Logits, the probabilities of the classes, and the latent variance of the logits.

    `mean` is the network's logits, to the bit, of shape [n, C], or [n] or [n, 1] where one logit stands for
    two classes. `epistemic`, which is also `variance`, is their latent variance, of the same shape: a
    view of one number a row unless each logit has a kernel of its own. `aleatoric` and `excess` are 0: that
    a label may fall out otherwise is in the probabilities.
    """

    temperature: Tensor = field(kw_only=True)  # T of each row, float64, shape [n]

    @property
    def variance(self) -> Tensor:
        """The latent variance of the logits, the same as `epistemic`."""
        return self.epistemic

    @property
    def probabilities(self) -> Tensor:
        r"""Of the classes, softmax(z / T), shape [n, C]; with one logit [n, 2].

        All logits of a row are divided by the same number: the most probable class is the network's. Where
        nothing is known (`valid` is False) all classes are equally probable.
        """
        return torch.softmax(self.cooled, dim=1)

    @property
    def cooled(self) -> Tensor:
        """z / T, of which `probabilities` is the softmax, shape [n, C]; one logit z is the pair (0, z)."""
        logits = self.mean if self.mean.dtype in (torch.float32, torch.float64) else self.mean.float()
        logits = two_sided(logits.reshape(logits.shape[0], -1))
        inverse = torch.where(self.valid, 1.0 / self.temperature, 0.0).to(logits)[:, None]
        return torch.where(self.valid[:, None], logits, 0.0) * inverse

    @property
    def classes(self) -> Tensor:
        """The class of the network's largest logit, which no error bar changes, int64, shape [n]."""
        logits = self.mean.reshape(len(self.mean), -1)
        return (logits.squeeze(1) > 0).long() if logits.shape[1] == 1 else logits.argmax(dim=1)

    @property
    def distribution(self) -> PredictiveDistribution:
        """Not for classes: `model.conformal(validation, level=...).sets(inputs)` gives sets of them."""
        raise TypeError(
            "a class has no interval; model.conformal(validation, level=0.95).sets(inputs) gives the classes "
            "among which the true one is, `probabilities` how likely each is."
        )


@dataclass(frozen=True)
class Detections:
    """What was found in one picture, the surest first."""

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
