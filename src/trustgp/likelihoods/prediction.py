"""What a user gets back: numbers, classes or boxes, each with its error bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

import torch
from torch import Tensor

from ..math.calibration import check_share
from ..math.cross_entropy import two_sided

HALVINGS = 40  # of a stretch about one sigma long: to 1e-12


def folded_quantile(offset: Tensor, spread: Tensor, level: float) -> Tensor:
    r"""The width z with :math:`P(|d + \sigma \epsilon| \le z) = p` for a standard Gaussian epsilon.

    .. math:: \Phi((z - d) / \sigma) - \Phi((-z - d) / \sigma) = p

    It lies between :math:`d + q_1 \sigma` and :math:`d + q_2 \sigma`, the Gaussian quantiles of one side
    and of both sides, and is found by halving that stretch. Offset d and spread sigma are not negative and of
    one shape; the widths are float64, and infinite where the spread is.
    """
    d, s = offset.double(), spread.double()
    ends = torch.tensor([2.0 * level - 1.0, level], dtype=torch.float64)
    near, far = (torch.full_like(s, math.sqrt(2.0) * end) for end in torch.erfinv(ends).tolist())
    ratio = torch.where(s > 0, d / s, 0.0)
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        held = 0.5 * (torch.erf(middle / math.sqrt(2.0)) + torch.erf((middle + 2 * ratio) / math.sqrt(2.0)))
        near, far = torch.where(held < level, middle, near), torch.where(held < level, far, middle)
    return d + s * far


def folded_share(distance: Tensor, offset: Tensor, spread: Tensor) -> Tensor:
    r"""The level :math:`P(|d + \sigma \epsilon| \le z)` whose interval just reaches a target z away.

    .. math:: \tfrac12 ( \mathrm{erf}((z - d) / \sqrt2 \sigma) + \mathrm{erf}((z + d) / \sqrt2 \sigma) )

    The inverse of `folded_quantile`: the interval of every level from this one on holds the target. Distance
    z, offset d and spread sigma are not negative and of one shape; the shares in [0, 1] are float64, and 0
    where the spread is infinite.
    """
    z, d, s = distance.double(), offset.double(), math.sqrt(2.0) * spread.double()
    unit = torch.where(s > 0, s, 1.0)
    share = 0.5 * (torch.erf((z - d) / unit) + torch.erf((z + d) / unit))
    return torch.where(s > 0, share, (z >= d).double())


def above(score: Tensor, threshold: float | None) -> Tensor:
    """Which scores are novel, bool; what is no number is."""
    if threshold is None:
        raise ValueError(
            "there is no threshold yet; call model.threshold(false_alarm=0.01), then predict again."
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
    # Second moment of errors that the training rows cannot rule out; None: left out. It is part of the
    # variance but not of the interval: it comes from rare rows, not from all.
    rare: Tensor | None = None
    _score: Tensor | None = field(default=None, repr=False)
    _threshold: float | None = field(default=None, repr=False)
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

        In regression the novelty; in classification the latent variance of the logits.
        """
        return self.novelty if self._score is None else self._score

    @property
    def is_novel(self) -> Tensor:
        """Whether the score lies above the model's threshold, shape [n] bool; see `model.threshold`."""
        return above(self.score, self._threshold)

    @property
    def probabilities(self) -> Tensor:
        """Of the classes, for `likelihood=Classification()` only."""
        raise AttributeError("probabilities are those of classes; fit with likelihood=Classification().")

    @property
    def classes(self) -> Tensor:
        """The predicted ones, for `likelihood=Classification()` only."""
        raise AttributeError("only classifiers predict classes; fit with likelihood=Classification().")

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the interval about `mean` that holds the target with this probability.

        The target is Gaussian about the corrected mean. Where that lies away from `mean`, `std` times a
        Gaussian quantile would hold too much: the half width is the quantile of |target - mean| itself.
        """
        check_share("level", level, 0.95)
        spread = (self.epistemic + self.aleatoric).sqrt()
        half = folded_quantile(self.excess.sqrt(), spread, level).to(spread.dtype)
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

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Not for classes: `model.conformal(validation, level=...).sets(inputs)` gives sets of them."""
        raise TypeError(
            "a class has no interval; model.conformal(validation, level=0.95).sets(inputs) gives the classes "
            "among which the true one is."
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
        """Whether the novelty lies above the model's threshold, bool, [k]; see `DetectionModel.threshold`."""
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
