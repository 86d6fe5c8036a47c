r"""The calibration of the variance: a pool of opinions, the witness, outliers, and the limit far away."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .predictive import MAX_DF
from .quantiles import TailShares

SHRINKAGE_ROWS = 20.0  # weight of the experts' average in each expert's leave-one-out scale, in rows
MIN_SUPPORT = 1e-6  # least novelty whose logarithm is taken
# Without these bounds, a network without training error would be certain everywhere.
MIN_KAPPA = 1e-6
MAX_LOG_SCALE = 100.0
MAX_VARIANCE = 1e300  # larger ones count as infinite
MIN_FLOAT32, MAX_FLOAT32 = 1e-30, 1e30  # variances of targets whose multiples fit into float32
NOVEL_SHARE = 0.005  # of held-out rows: if fewer are as novel as a row, the pool has under half the weight
LOG_ODDS = -math.log(NOVEL_SHARE)
MAX_EXPONENT = 60.0  # of the novelty: u is not 0
STATISTICS = ("experts", "log_leverage", "log_noise", "log_stated")  # of the pool; 0: there is none


@dataclass(frozen=True)
class Calibration:
    r"""The pool of opinions about the variance, the combination with the witness, and the tails.

    The experts expect the network to be off by m, with variance

    .. math:: \log V = u \Big( b + \sum_k w_k z_k \Big) + (1 - u) (\log E + A),
    .. math:: E = \mathrm{epistemic} + \sigma^2, \quad u = 1 / (1 + \epsilon e^D) :

    near the data, log V pools statistics z, logarithms of variances: that of the experts, E kappa; the
    leverage in the posterior of all rows; the local noise; and the variance that the network states. Far
    away, where no held-out row is as novel (D is minus the logarithm of their share), V is E exp(A). A comes
    from left-out clusters and is common to all rows, as the novelty of a row jumps from expert to expert.
    The witness expects an error h, with precision p (0: no witness). Together they expect

    .. math:: \mu = (v m + g h) / (1 + g), \quad L V, \quad L = (1 + g) / (1 + g^2), \quad g = t p V .

    The target has a `PredictiveDistribution` about :math:`f + z \mu`, of variance L V about its centres,
    which lie :math:`\sqrt{w} (1 - z) |\mu|` on either side; with a probability of q times the `ignorance`
    it has the distribution of the training targets instead, whatever the row is.
    """

    weights: Tensor  # w of the `STATISTICS` [S]
    bias: Tensor  # b of each output [C]
    excess: Tensor  # w, the weight of the expected error's square, a scalar
    shift: Tensor  # z, the share of the expected error that is added to f: 0, or 1 for the corrected mean
    weight: Tensor  # v, of the experts' residual mean, a scalar
    trust: Tensor  # t of each output, in the witness [C]
    growth: Tensor  # A, a scalar
    df: Tensor  # degrees of freedom of each output [C]
    share: Tensor  # pi, of outliers, a scalar; see `OutlierPrior`
    spread: Tensor  # W, the variance of their errors, and of the targets, of each output [C]
    centre: Tensor  # mean of the training targets of each output [C]
    vague: Tensor  # q, the most that the distribution of the training targets counts, a scalar
    tails: Tensor  # of the novelty measures of held-out rows; see `TailShares`
    level: Tensor  # mean squared residual of held-out rows of each output [C]: whether it fits into float32

    @classmethod
    def default(cls, num_outputs: int, *, shift: float, outliers: OutlierPrior | None = None) -> Calibration:
        """Calibration with w = 1 for the experts alone, b = 0, v = t = 1, A = 0, and Gaussian tails."""
        one = torch.ones((), dtype=torch.float64)
        each = torch.ones(num_outputs, dtype=torch.float64)
        share, spread, centre = (0 * one, 0 * each, 0 * each) if outliers is None else outliers
        weights = torch.eye(len(STATISTICS), dtype=torch.float64)[0]
        z = torch.tensor(shift, dtype=torch.float64)
        others = (0 * one, MAX_DF * each, share, spread, centre, 0 * one, TailShares.default().table, each)
        return cls(weights, 0 * each, one, z, one, each, *others)

    def folded(self, device: torch.device, dtype: torch.dtype) -> tuple[Any, Tensor]:
        """Calibration on a device, with scalars and weights as Python numbers; and pi W in a precision, or in
        float64 where it would over- or underflow, the precision also of df and centre. Cached."""
        cache = self.__dict__.setdefault("_folded", {})
        if (device, dtype) not in cache:
            tensors = {field.name: getattr(self, field.name) for field in fields(self)}
            values: Any = {k: v.to(device) if v.ndim else float(v) for k, v in tensors.items()}
            values["weights"] = self.weights.tolist()
            unsafe = (self.spread > 0) & (self.spread < MIN_FLOAT32)
            unsafe |= torch.maximum(self.spread, self.level) > MAX_FLOAT32
            moments = (self.share * self.spread).to(device, torch.float64 if unsafe.any() else dtype)
            values |= {name: values[name].to(moments.dtype) for name in ("df", "centre")}
            cache[device, dtype] = Calibration(**values), moments
        return cache[device, dtype]

    def nearness(self, measures: Tensor) -> tuple[Tensor, Tensor]:
        """u and D of n rows with novelty measures [n, K], each [n]."""
        exponent = TailShares(self.tails)(measures)
        return torch.sigmoid(LOG_ODDS - exponent.clamp_max(MAX_EXPONENT)), exponent

    def scale(self, raw: Any, variance: Tensor, nearness: Tensor) -> Tensor:
        """V / E [n, C] of a latent prediction with the variance E [n, C] and u [n, 1]."""
        experts, *others = map(float, self.weights)
        if (offset := vars(self).get("_offset")) is None:
            offset = vars(self)["_offset"] = self.bias - self.growth
        # infinite for invalid rows
        pool = torch.add(offset, variance.clamp_max(MAX_VARIANCE).log(), alpha=experts - 1.0)
        pool = torch.add(pool, raw.log_kappa, alpha=experts)
        for weight, name in zip(others, STATISTICS[1:], strict=True):
            if weight > 0.0:
                pool = torch.add(pool, getattr(raw, name), alpha=weight)
        total = nearness * pool + self.growth
        return total.clamp(-MAX_LOG_SCALE, MAX_LOG_SCALE).exp()


def ignorance(nearness: Any) -> Any:
    r"""Weight of the training targets' distribution: its odds are twice those of 1 - u, that of E exp(A)."""
    return 2.0 * (1.0 - nearness) / (2.0 - nearness)


def steady_log_kappa(log_kappa: Tensor, rows: Tensor) -> Tensor:
    r"""Leave-one-out scales shrunk towards the experts' average, which counts as `SHRINKAGE_ROWS` rows.

    .. math:: (n_e \log\kappa_e + n_0 \overline{\log\kappa}) / (n_e + n_0),

    shape [M, B], with `rows` n_e of each expert [M]; an expert without rows has the average.
    """
    weight = rows.to(log_kappa)[:, None]
    average = (weight * log_kappa).sum(dim=0) / weight.sum(dim=0)
    return (weight * log_kappa + SHRINKAGE_ROWS * average) / (weight + SHRINKAGE_ROWS)


class OutlierPrior(NamedTuple):
    """Prior of outliers: rows with errors as large as the spread of the targets."""

    share: Tensor  # pi, a scalar
    spread: Tensor  # W of each output [C]
    centre: Tensor  # mean of the targets of each output [C]

    @classmethod
    def of(cls, targets: Tensor) -> OutlierPrior | None:
        r"""pi = 1 / 2n and W = var(y), from training rows with targets y [n, C]; None for a single row.

        Where none of n rows had such an error (a glitch of a sensor, a state that repeats with another
        target), the rate of outliers is still half a row in n, by Jeffreys' rule. Without it, a network that
        is right to four digits n times would be certain of the fifth.
        """
        if len(targets) < 2:
            return None
        share = torch.tensor(0.5 / len(targets), dtype=torch.float64)
        return cls(share, *(moment.cpu() for moment in torch.var_mean(targets.double(), dim=0)))


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
    V is `variance`, that of the experts after scaling, m `shift`, h `witness_mean`, p `witness_precision` and
    t `trust`, all of the same shape.
    """
    # V is infinite for invalid rows, and 0 * inf is NaN
    gain = (trust * witness_precision * variance).nan_to_num(0.0)
    more = 1.0 + gain
    expected = (calibration.weight * shift + gain * witness_mean) / more
    return expected, more / (1.0 + gain * gain)
