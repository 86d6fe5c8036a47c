"""Predictions with their uncertainty: of numbers, or of classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor
from torch.distributions import Categorical

from ..data.torch_modes import cpu_default
from ..math.cross_entropy import two_sided
from ..math.logit_noise import log_probabilities
from ..math.predictive import MARGINAL_VARIANCE, MAX_DF, PredictiveDistribution, aligned
from ..math.quantiles import check_share
from .batch import Batch, above, columns, ranks_of

if TYPE_CHECKING:
    from .base import ReferenceScores


def _shares(name: str, value: float | Tensor) -> float | Tensor:
    """Return the values; raise unless all lie strictly between 0 and 1."""
    for end in (value.min(), value.max()) if isinstance(value, Tensor) else (value,):
        check_share(name, float(end), 0.95)
    return value


Later = Any  # another prediction, or a function that returns it; None: there is none
MAX_SHOWN = 4  # outputs in a text


@dataclass(frozen=True, repr=False)
class Prediction(Batch):
    r"""A prediction and its uncertainty; tensors have the shape of the network's output unless noted.

    For a half-precision network `mean` is in half precision, all else in float32; in float64 where squares of
    targets over- or underflow in float32.

    It is a batch of rows: `p[3:7]`, `p[mask]`, `len(p)`, `for row in p`, `p.to(...)`, `p.numpy()`.

    Examples:
        >>> p = model.predict(inputs)
        >>> familiar = p[~p.is_novel]
        >>> lower, upper = familiar.interval(0.95)
    """

    ARRAYS: ClassVar[tuple[str, ...]] = (
        *("mean", "std", "variance", "epistemic", "aleatoric", "excess", "rare", "df"),
        *("novelty", "expert", "valid"),
    )
    FLOAT64: ClassVar[tuple[str, ...]] = ("_score", "_outputs", "temperature")
    EXPANDABLE: ClassVar[tuple[str, ...]] = ("rare", "df", "fallback_weight", "fallback_location")
    RECORDED: ClassVar[tuple[str, ...]] = ("variance_without_fallback",)  # cached, and recorded on a GPU
    EXPORTED: ClassVar[tuple[str, ...]] = ()  # outputs of an exported file, besides those of every model

    mean: Tensor  # the network's own output, to the bit; or, for `corrected`, that plus the residual mean
    epistemic: Tensor  # variance from lack of data: it grows away from the training rows
    aleatoric: Tensor  # variance of the noise in the targets
    excess: Tensor  # squared residual mean: the expected error of the network
    novelty: Tensor  # epistemic over prior variance, in [0, 1], [n]: 0 on the training rows, 1 far away
    expert: Tensor  # index of the expert, shape [n], or [n, C] with separate outputs
    valid: Tensor  # False where inputs, outputs or the variance are not finite (it is infinite then), [n]
    rare: Tensor | None = None  # second moment from outliers; None: there are none
    df: Tensor | None = None  # degrees of freedom of the tails; None: they are Gaussian
    outlier_share: float = 0.0
    fallback_weight: Tensor | None = None  # of the training targets' distribution; None: it is not mixed in
    fallback_location: Tensor | None = None  # the centre of that distribution
    _outputs: Tensor | None = None  # covariance of the outputs in the posterior of all rows [n, C, C]
    _score: Tensor | None = None
    _threshold: float | None = None
    _reference: ReferenceScores | None = None
    _corrected: Later = None
    _plain: Later = None

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def variance(self) -> Tensor:
        """Second moment of the target about `mean`: epistemic + aleatoric + excess + rare; far from the
        data it is mixed with the second moment of the training targets."""
        usual, weight = self.variance_without_fallback, self.fallback_weight
        if weight is None or self.fallback_location is None:
            return usual
        marginal = MARGINAL_VARIANCE * self._spread + (self.fallback_location - self.mean).square()
        return torch.where(weight > 0, usual + weight * (marginal - usual), usual)

    @cached_property
    def variance_without_fallback(self) -> Tensor:
        """Sum of epistemic + aleatoric + excess + rare."""
        usual = self.epistemic + self.aleatoric + self.excess
        return usual if self.rare is None else usual + self.rare

    @property
    def _spread(self) -> Tensor:
        """Variance of outliers."""
        rare, share = self.rare, self.outlier_share
        return torch.zeros_like(self.mean) if rare is None or not share else rare / share

    @property
    def std(self) -> Tensor:
        """Square root of the variance."""
        return self.variance.sqrt()

    @property
    def covariance(self) -> Tensor | None:
        r"""Second moments of a row's targets about `mean`, [n, C, C], the variance on the diagonal.

        :math:`\sqrt{e_c e_d} \, \rho_{cd}` off the diagonal: e is `epistemic`, and rho the correlation of the
        outputs in the posterior of all rows. Noise is independent. Without that posterior (exact experts,
        outputs with kernels of their own, more than 16 outputs) rho is 0.
        """
        variance, deviation = (columns(v) for v in (self.variance, self.epistemic.sqrt()))
        if self._outputs is None:
            return torch.diag_embed(variance)
        unit = self._outputs.diagonal(dim1=1, dim2=2).sqrt()
        usable = self.valid[:, None] & (unit > 0)
        each = torch.where(usable, deviation / unit, 0.0).to(variance)
        between = self._outputs.to(variance) * each[:, :, None] * each[:, None]
        return between + torch.diag_embed(variance - between.diagonal(dim1=1, dim2=2))

    @property
    def corrected(self) -> Prediction:
        """The prediction about the corrected mean: network output plus residual mean."""
        return self._made("_corrected")

    @property
    def plain(self) -> Prediction:
        """The prediction with the paper's variance: evidence only, no leave-out scale, no excess."""
        return self._made("_plain")

    @cpu_default()
    def _made(self, name: str) -> Prediction:
        """The lazy prediction of this name, computed once; this prediction itself where there is none."""
        value: Any = getattr(self, name)
        if callable(value):
            value = cast(Any, value)()
            object.__setattr__(self, name, value)
        return self if value is None else value

    def _one(self, name: str, change: Callable[[str, Tensor], Tensor]) -> Any:
        value = getattr(self, name)
        if callable(value) or isinstance(value, Prediction):
            return lambda: self._made(name)._changed(change)
        if name in self.EXPANDABLE and value is not None:
            return change(name, value.expand_as(self.mean))
        return super()._one(name, change)

    def __getstate__(self) -> dict[str, Any]:
        later = [name for name in ("_corrected", "_plain") if callable(vars(self)[name])]
        return {**vars(self), **{name: self._made(name) for name in later}}  # functions are not pickled

    @property
    def score(self) -> Tensor:
        """The novelty score, higher for out-of-distribution rows, shape [n].

        Minus the logarithm of the share of held-out rows that are more novel, averaged over some measures. In
        regression: novelty of the witness and distance to the nearest rows, or, without a witness, share of
        the prior variance, and variance. In classification: latent variance of the logits or its share of the
        prior variance, distance of hidden vectors to stored training rows, and entropy.
        """
        return self.novelty if self._score is None else self._score

    @property
    def is_novel(self) -> Tensor:
        """Whether the score lies above the model's threshold, shape [n] bool.

        `model.threshold` sets it. By default at most 1 % of in-distribution rows exceed the threshold; with
        fewer than 99 held-out rows it is the largest of their scores.
        """
        return above(self.score, self._threshold)

    @property
    def novelty_rank(self) -> Tensor:
        """Share of held-out rows with a lower score, in [0, 1], float64 [n].

        It is comparable between models: 0.5 is typical, 1 means more novel than all of them.
        """
        if self._reference is None:
            raise ValueError("this prediction has no held-out scores to compare with; predict with a model.")
        return torch.where(self.valid, self._reference.share_below(self.score), 1.0)

    @property
    def probabilities(self) -> Tensor:
        """Probabilities of the classes, for `likelihood=Classification()` only."""
        raise AttributeError("probabilities are those of classes; fit with likelihood=Classification().")

    @property
    def classes(self) -> Tensor:
        """Predicted classes, for `likelihood=Classification()` only."""
        raise AttributeError("only classifiers predict classes; fit with likelihood=Classification().")

    @property
    def scale(self) -> Tensor:
        """Scale of the Student-t about its centre: the variance there is scale^2 df / (df - 2)."""
        spread = self.epistemic + self.aleatoric
        return (spread if self.df is None else spread * ((self.df - 2.0) / self.df)).sqrt()

    @property
    def distribution(self) -> PredictiveDistribution:
        """Distribution of the target, as in `torch.distributions`, in float64; a `Categorical` for classes.

        Its scale is infinite for rows that are not `valid`.
        """
        return self._real

    @property
    def _real(self) -> PredictiveDistribution:
        """Distribution of targets that are real numbers."""
        none = torch.zeros((), dtype=torch.float64, device=self.mean.device)
        outliers = None if self.rare is None or not self.outlier_share else self.rare.double()
        return PredictiveDistribution(
            loc=self.mean,
            offset=self.excess.sqrt(),
            scale=self.scale,
            df=none + MAX_DF if self.df is None else self.df,
            share=none + self.outlier_share,
            spread=none if outliers is None else outliers / self.outlier_share,
            vague=none if self.fallback_weight is None else self.fallback_weight,
            centre=none if self.fallback_location is None else self.fallback_location,
        )

    def log_prob(self, targets: Tensor) -> Tensor:
        """Log density of the targets, in nats, float64; minus infinity for invalid rows."""
        return self.distribution.log_prob(targets)

    def crps(self, targets: Tensor) -> Tensor:
        """Continuous ranked probability score, in the targets' units, float64; lower is better."""
        return self._real.crps(targets)

    def quantile(self, q: float | Tensor) -> Tensor:
        """Quantile of the target at level q, in (0, 1)."""
        return self._real.icdf(_shares("q", q)).to(self.epistemic.dtype)

    def sample(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw k independent samples of each target, shape [k, ...]."""
        return self._real.sample((k,), generator).to(self.epistemic.dtype)

    def interval(
        self, level: float | Sequence[float] = 0.95, *, alpha: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the interval about `mean` that holds the target with probability `level`.

        Args:
            level: Probability in (0, 1); for several levels [k] the ends have the shape [k, ...].
            alpha: 1 - level, in place of `level`.
        """
        given: Any = level if alpha is None else 1.0 - alpha
        if torch.as_tensor(given).ndim:
            lower, upper = zip(*map(self.interval, given), strict=True)
            return torch.stack(lower), torch.stack(upper)
        half = self._real.half_width(_shares("level", given)).to(self.epistemic.dtype)
        return self.mean - half, self.mean + half

    @staticmethod
    def cat(parts: Sequence[Prediction]) -> Prediction:
        """Concatenate predictions."""
        kind = type(parts[0])
        return kind(**{f.name: _joined([getattr(part, f.name) for part in parts]) for f in fields(kind)})

    @property
    def _title(self) -> str:
        outputs = columns(self.mean).shape[1]
        rows = "1 row" if len(self) == 1 else f"{len(self):,} rows"
        valid = int(self.valid.sum())
        share = "all valid" if valid == len(self) else f"{100 * valid / len(self):.3g} % of them valid"
        return f"{type(self).__name__} of {rows}, {self._counted(outputs)}, {share}"

    def _counted(self, outputs: int) -> str:
        return "1 output" if outputs == 1 else f"{outputs:,} outputs"

    def _lines(self) -> list[list[str]]:
        means, stds = (columns(value) for value in (self.mean, self.std))
        shown = range(min(MAX_SHOWN, means.shape[1]))
        more = ["..."] if means.shape[1] > MAX_SHOWN else []
        header = [f"output {c}" if means.shape[1] > 1 else "mean \u00b1 std" for c in shown]
        title, ranks = ranks_of(self)
        lines = [["", *header, *more, title]]
        for i, (m, s, rank) in enumerate(zip(means, stds, ranks, strict=True)):
            pairs = (f"{float(m[c]):.4g} \u00b1 {float(s[c]):.2g}" for c in shown)
            lines.append([str(i), *pairs, *more, rank])
        return lines


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


class Labels(Categorical):
    """Categorical distribution whose `log_prob` takes class numbers [n] or [n, 1]."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(aligned(value, self.batch_shape))


@dataclass(frozen=True, repr=False)
class ClassPrediction(Prediction):
    r"""Logits, the probabilities of the classes, and the latent variance of the logits.

    `mean` is the network's logits, to the bit, shape [n, C], or [n] or [n, 1] where one logit serves two
    classes. `epistemic`, which is also `variance`, is their latent variance, of the same shape: a view of one
    number a row unless each logit has its own kernel. `aleatoric` and `excess` are 0: label noise is part of
    the probabilities.

    Examples:
        >>> p = classes.predict(inputs)
        >>> best, probability = p.classes, p.probabilities.amax(dim=1)
    """

    ARRAYS: ClassVar[tuple[str, ...]] = (
        *("classes", "probabilities", "mean", "variance", "temperature", "covariance"),
        *("novelty", "score", "expert", "valid"),
    )

    RECORDED: ClassVar[tuple[str, ...]] = ("tempered_logits",)
    EXPORTED: ClassVar[tuple[str, ...]] = ("probabilities",)

    temperature: Tensor = field(kw_only=True)  # T of each row, float64, shape [n]
    # of differences between the leading logits and the largest one, [n, k - 1, k - 1]; None: it is 0
    covariance: Tensor | None = None  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def variance(self) -> Tensor:
        """The latent variance of the logits, the same as `epistemic`."""
        return self.epistemic

    @property
    def probabilities(self) -> Tensor:
        r"""Probabilities [n, C] of the classes: the mean of softmax((z + e) / T) over draws e of the latent
        noise of the logits, which has this `covariance`; shape [n, 2] with one logit.

        In rows that are not `valid` all classes are equally probable. The most probable class is nearly
        always the network's own, `classes`; see `reordered`.
        """
        return torch.softmax(self.tempered_logits, dim=1)

    @property
    def reordered(self) -> Tensor:
        """Whether another class than `classes` is the most probable, bool [n]: the noise of many classes
        together may outweigh the network's class. The mean of this is the share of such rows."""
        p = self.probabilities
        return p.gather(1, self.classes[:, None]).squeeze(1) < p.amax(dim=1)

    @cached_property
    def tempered_logits(self) -> Tensor:
        """Logits whose softmax is `probabilities`, shape [n, C]; one logit z becomes the pair (0, z)."""
        logits = self.mean if self.mean.dtype in (torch.float32, torch.float64) else self.mean.float()
        logits = two_sided(columns(logits))
        inverse = torch.where(self.valid, 1.0 / self.temperature, 0.0).to(logits)
        cooled = torch.where(self.valid[:, None], logits, 0.0) * inverse[:, None]
        if self.covariance is None:
            return cooled
        return log_probabilities(cooled, self.covariance.to(logits) * inverse.square()[:, None, None])

    @property
    def classes(self) -> Tensor:
        """The class of the network's largest logit, int64, shape [n]."""
        logits = columns(self.mean)
        return (logits.squeeze(1) > 0).long() if logits.shape[1] == 1 else logits.argmax(dim=1)

    @property
    def distribution(self) -> Categorical:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Distribution of the class number, with `probabilities`, in float64."""
        return Labels(logits=self.tempered_logits.double(), validate_args=len(self) > 0)

    def sample(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw k samples of the class number, int64 [k, n]."""
        return torch.multinomial(self.probabilities, k, replacement=True, generator=generator).T

    @property
    def _real(self) -> PredictiveDistribution:
        raise TypeError(
            "a class has no interval; use `probabilities`, or prediction sets: "
            "model.conformal(validation, level=0.95).sets(inputs)."
        )

    def _counted(self, outputs: int) -> str:
        return f"{max(2, outputs):,} classes"

    def _lines(self) -> list[list[str]]:
        sure = self.probabilities.amax(dim=1).tolist()
        title, ranks = ranks_of(self)
        each = enumerate(zip(self.classes.tolist(), sure, ranks, strict=True))
        return [
            ["", "class", "probability", title],
            *([str(i), str(c), f"{p:.3f}", rank] for i, (c, p, rank) in each),
        ]
