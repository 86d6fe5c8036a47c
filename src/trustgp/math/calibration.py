r"""The calibration of the variance: its scale, the witness, outliers, and held-out quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from .predictive import MAX_DF

SHRINKAGE_ROWS = 20.0  # weight of the experts' average in each expert's leave-one-out scale, in rows
# The quantile of held-out novelty up to which a fit to held-out rows applies, and its bounds.
SUPPORT_QUANTILE, MIN_SUPPORT, MAX_SUPPORT = 0.95, 1e-6, 0.99
# Without these bounds, a network without training error would be certain everywhere.
MIN_KAPPA = 1e-6
MAX_LOG_SCALE = 100.0
MAX_VARIANCE = 1e300  # larger ones count as infinite
MIN_FLOAT32, MAX_FLOAT32 = 1e-30, 1e30  # variances of targets whose multiples fit into float32
KNOTS = (0.5, 1.0)  # of A: shares of the way from nu_1 to 1, in log nu
RANK_TOLERANCE = 1e-9  # (n + 1) * level in floats may lie this much above a whole number


@dataclass(frozen=True)
class Calibration:
    r"""The scale of the experts' variance, the combination with the witness, and the tails.

    The experts expect the network to be off by m, with variance

    .. math:: \log V = \log E + A(\nu)
        + u \, \big( \gamma (\log c + a \log\kappa) + (1 - \gamma) \log(\sigma_0^2 / E) + w \log h \big),
    .. math:: E = \mathrm{epistemic} + \sigma^2, \quad
        u = (1 - \nu^b) \min(1, \nu_0 / \nu, E_0 / E) :

    near the data, at novelty nu = 0, the leave-one-out scale, at gamma = 0 a constant noise; far away, at 1,
    the variance of the evidence times exp(A), fitted to clusters that were left out. Held-out rows carry no
    information about rows of higher novelty or variance than theirs, so what is fitted to them fades beyond
    their novelty nu_0 and variance E_0. A begins at nu_1, the novelty of single rows that are left out, and
    is linear in log nu between `KNOTS` of the way to 1. The witness expects an error h, with precision p (0:
    no witness). Together they expect

    .. math:: \mu = (v m + g h) / (1 + g), \quad L V, \quad L = (1 + g) / (1 + g^2), \quad g = t p V .

    The target has a `PredictiveDistribution` about :math:`f + z \mu`, of variance L V about its centres,
    which lie :math:`\sqrt{w} (1 - z) |\mu|` on either side.
    """

    fade: Tensor  # a, a scalar
    onset: Tensor  # b, a scalar
    level: Tensor  # c of each output [C]
    excess: Tensor  # w, the weight of the expected error's square, a scalar
    reach: Tensor  # nu_0, the novelty that held-out rows cover, a scalar; 1 without them
    shift: Tensor  # z, the share of the expected error that is added to f: 0, or 1 for the corrected mean
    weight: Tensor  # v, of the experts' residual mean, a scalar
    trust: Tensor  # t of each output, in the witness [C]
    varying: Tensor  # gamma, the share of what varies from row to row, a scalar
    constant: Tensor  # sigma_0^2 of each output, a constant noise [C]
    beyond: Tensor  # nu_1, the novelty from which on A is not 0, a scalar
    growth: Tensor  # A at the knots [K]
    df: Tensor  # degrees of freedom of each output [C]
    share: Tensor  # pi, of outliers, a scalar; see `OutlierPrior`
    spread: Tensor  # W, the variance of their errors, of each output [C]
    extent: Tensor  # E_0, the variance E that held-out rows cover, of each output [C]
    leverage: Tensor  # w, the weight of the leverage in the posterior of all rows, a scalar

    @classmethod
    def default(cls, num_outputs: int, *, shift: float, outliers: OutlierPrior | None = None) -> Calibration:
        """a = b = c = w = v = t = gamma = 1, A = 0, Gaussian tails."""
        one = torch.ones((), dtype=torch.float64)
        level = torch.ones(num_outputs, dtype=torch.float64)
        share, spread = (0 * one, 0 * level) if outliers is None else outliers
        z, growth = torch.tensor(shift, dtype=torch.float64), torch.zeros(len(KNOTS), dtype=torch.float64)
        tails = (MAX_DF * level, share, spread, MAX_VARIANCE * level, 0 * one)
        return cls(one, one, level, one, one, z, one, level, one, level, one, growth, *tails)

    def folded(self, device: torch.device, dtype: torch.dtype) -> tuple[Any, tuple[Tensor, Tensor], Tensor]:
        """The same on a device, scalars as plain numbers; log c and log sigma_0^2; and pi W in a precision,
        or in float64 where it would over- or underflow. Cached."""
        cache = self.__dict__.setdefault("_folded", {})
        if (device, dtype) not in cache:
            tensors = {field.name: getattr(self, field.name) for field in fields(self)}
            values: Any = {k: v.to(device) if v.ndim else float(v) for k, v in tensors.items()}
            logs = values["level"].log(), values["constant"].log()
            values["growth"] = self.growth.tolist()
            small = (self.spread > 0) & (self.spread < MIN_FLOAT32)
            large = torch.maximum(self.spread, self.constant) > MAX_FLOAT32
            moments = (self.share * self.spread).to(device, torch.float64 if (small | large).any() else dtype)
            cache[device, dtype] = Calibration(**values), logs, moments
        return cache[device, dtype]

    def scale(
        self,
        novelty: Tensor,
        log_kappa: Tensor,
        variance: Tensor,
        log_leverage: Tensor,
        log_level: Tensor,
        log_constant: Tensor,
    ) -> Tensor:
        """V / E of [n, C] or what broadcasts to it, from E, log h, log c and log sigma_0^2."""
        beyond = torch.maximum(novelty / self.reach, variance / self.extent).clamp_min(1.0)
        nearness = (1.0 - novelty**self.onset) / beyond
        fitted = log_level + self.fade * log_kappa
        if self.varying < 1.0:
            # E is infinite for invalid rows
            noise = log_constant - variance.clamp_max(MAX_VARIANCE).log()
            fitted = self.varying * fitted + (1.0 - self.varying) * noise
        if self.leverage > 0.0:
            fitted = fitted + self.leverage * log_leverage
        return torch.exp(
            (nearness * fitted + self.far_field_log_scale(novelty)).clamp(-MAX_LOG_SCALE, MAX_LOG_SCALE)
        )

    def far_field_log_scale(self, novelty: Tensor) -> Tensor | float:
        """A(nu)."""
        if not any(self.growth):
            return 0.0
        least = math.log(min(float(self.beyond), MAX_SUPPORT))  # without A nu_1 is 1 and its logarithm 0
        way = 1.0 - (novelty.clamp_min(MIN_SUPPORT).log() / least).clamp(0.0, 1.0)
        total, before, height = torch.zeros_like(novelty), 0.0, 0.0
        for knot, value in zip(KNOTS, self.growth, strict=True):
            slope = (value - height) / (knot - before)
            total = total + slope * (way - before).clamp(0.0, knot - before)
            before, height = knot, value
        return total


@dataclass(frozen=True)
class HeldOutRows:
    """Tensors with the same number of entries."""

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name).cpu() for part in parts]) for name in names})

    def subset(self, which: Tensor) -> Self:
        """The entries where a mask is True, or at these positions."""
        return type(self)(**{name: value[which] for name, value in vars(self).items()})

    def sample(self, count: int) -> Self:
        """At most `count` of them, drawn at random, the same each time."""
        if len(self) <= count:
            return self
        return self.subset(torch.randperm(len(self), generator=torch.Generator().manual_seed(0))[:count])

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))


@dataclass(frozen=True)
class CalibrationRows(HeldOutRows):
    """Held-out rows, one entry per row and output, each of shape [L]."""

    residual: Tensor  # y - f(x)
    residual_mean: Tensor  # m(x)
    epistemic: Tensor  # before calibration
    noise: Tensor  # sigma^2, before calibration
    novelty: Tensor  # nu(x)
    log_kappa: Tensor  # of the row's expert
    output: Tensor  # which output the entry belongs to, int64
    witness_mean: Tensor  # of y - f(x)
    witness_precision: Tensor  # 0: there is no witness
    log_leverage: Tensor  # of the posterior of all rows, over that of typical rows; 0: there is none
    log_stated: Tensor  # log of the variance that the network states; 0: it states none

    @classmethod
    def of(cls, outputs: Tensor, *, residual: Tensor, **values: Tensor) -> CalibrationRows:
        """From residuals [n, B] of the outputs [B], and values that broadcast to that shape."""
        entries = {"residual": residual, "output": outputs.to(residual.device), **values}
        return cls(**{name: value.expand(residual.shape).flatten() for name, value in entries.items()})


def steady_log_kappa(log_kappa: Tensor, rows: Tensor) -> Tensor:
    r"""Leave-one-out scales shrunk towards the experts' average, which counts as `SHRINKAGE_ROWS` rows.

    .. math:: (n_e \log\kappa_e + n_0 \overline{\log\kappa}) / (n_e + n_0),

    shape [M, B], with `rows` n_e of each expert [M]; an expert without rows has the average.
    """
    weight = rows.to(log_kappa)[:, None]
    average = (weight * log_kappa).sum(dim=0) / weight.sum(dim=0)
    return (weight * log_kappa + SHRINKAGE_ROWS * average) / (weight + SHRINKAGE_ROWS)


def support_quantile(values: Tensor, least: float = MIN_SUPPORT) -> Tensor:
    """nu_0 or E_0, a scalar: the quantile of held-out novelties [n], or variances, that a fit covers."""
    ordered = values.sort().values
    return ordered[min(len(ordered) - 1, int(SUPPORT_QUANTILE * len(ordered)))].clamp_min(least)


class OutlierPrior(NamedTuple):
    """Rows with errors as large as the spread of the targets."""

    share: Tensor  # pi, a scalar
    spread: Tensor  # W of each output [C]

    @classmethod
    def of(cls, targets: Tensor) -> OutlierPrior | None:
        r"""pi = 1 / 2n and W = var(y), from training rows with targets y [n, C]; None for a single row.

        Where none of n rows had such an error (a glitch of a sensor, a state that repeats with another
        target), the rate of outliers is still half a row in n, by Jeffreys' rule. Without it, a network that
        is right to four digits n times would be certain of the fifth.
        """
        if len(targets) < 2:
            return None
        spread = targets.double().var(dim=0).cpu()
        return cls(torch.tensor(0.5 / len(targets), dtype=torch.float64), spread)


def pooled(
    calibration: Calibration,
    variance: Tensor,
    shift: Tensor,
    witness_mean: Tensor,
    witness_precision: Tensor,
    trust: Tensor,
) -> tuple[Tensor, Tensor]:
    r"""The error mu that experts and witness expect together, and the share L of V that remains.

    Both were fitted to the same noise, so their errors are correlated: precisions must not be added. The mean
    is weighted by precision; the precision is the mean :math:`\omega / V + (1 - \omega) t p` of the two, as
    in covariance intersection, with the weights :math:`\omega = 1 / (1 + g)` of the means: two equal
    predictions count as one, and of two unequal ones the more precise dominates. Without a witness g = 0.
    V is the `variance` of the experts, already scaled, m, h and p `shift`, `witness_mean` and
    `witness_precision`, t `trust`, all of the same shape.
    """
    # V is infinite for invalid rows, and 0 * inf is NaN
    gain = (trust * witness_precision * variance).nan_to_num(0.0)
    more = 1.0 + gain
    return (calibration.weight * shift + gain * witness_mean) / more, more / (1.0 + gain.square())


def check_share(name: str, value: float, example: float) -> None:
    """Raise unless the value lies strictly between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name}={value}; it must lie strictly between 0 and 1, for example {example}.")


def needed_rows(level: float) -> int:
    """The smallest number n of held-out rows with level (n + 1) <= n."""
    return math.ceil(level / (1.0 - level) - RANK_TOLERANCE)


def held_out_quantile(scores: Tensor, level: float) -> Tensor:
    r"""The score that a new row does not exceed with probability at least `level`, in (0, 1), [] or [C].

    The k-th smallest of the n held-out scores, where k is (n + 1) level, rounded up. A new row that is
    exchangeable with them is equally likely to take any of the n + 1 places among them, so this
    holds for every n and whatever the scores are (Vovk et al. 2005). Infinite where k > n: too few rows.
    The scores, [n] or [n, C], must be of rows that the scoring model was not fitted to.
    """
    check_share("level", level, 0.9)
    k = math.ceil((len(scores) + 1) * level - RANK_TOLERANCE)
    if k > len(scores):
        return scores.new_full(scores.shape[1:], torch.inf)
    return scores.sort(dim=0).values[k - 1]


def merge_groups(points: Tensor, weights: Tensor, *, least: float) -> Tensor:
    """Merge the lightest group with its nearest one until none weighs less than `least`, or one is left.

    From points [M, q] and weights [M], returns the group of each, numbered from 0 in the order of their first
    points, int64, shape [M].
    """
    groups = torch.arange(len(points))
    while True:
        names = groups.unique()
        mass = torch.stack([weights[groups == g].sum() for g in names])
        small = int(mass.argmin())
        if len(names) == 1 or float(mass[small]) >= least:
            break
        shares = torch.stack([(groups == g).to(points.dtype) for g in names])
        centres = shares @ points / shares.sum(dim=1, keepdim=True)
        distance = (centres - centres[small]).square().sum(dim=1)
        distance[small] = torch.inf
        groups[groups == names[small]] = names[int(distance.argmin())]
    first = {int(g): i for i, g in enumerate(dict.fromkeys(groups.tolist()))}
    return torch.tensor([first[g] for g in groups.tolist()])
