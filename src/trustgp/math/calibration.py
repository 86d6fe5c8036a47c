r"""How large the error bar must be: leave-out errors, the three numbers of the scale, held-out quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from .predictive import MOST_DF

STEADY = 20.0  # rows' worth of the experts' average in each expert's leave-one-out scale
# The quantile of held-out novelty up to which held-out rows speak, and its bounds.
REACH, LEAST_REACH, MOST_REACH = 0.95, 1e-6, 0.99
# A network that meets every target exactly would otherwise claim to be certain everywhere.
LEAST_KAPPA = 1e-6
LARGEST = 100.0  # scale, as a logarithm, likewise
HUGE = 1e300  # beyond, a variance is infinite
SMALL, LARGE = 1e-30, 1e30  # variances of targets; shares and multiples of them must fit into float32
KNOTS = (0.5, 1.0)  # of A: shares of the way from nu_1 to 1, in log nu
ROUNDING = 1e-9  # (n + 1) * level in floats may lie this much above a whole number


@dataclass(frozen=True)
class Calibration:
    r"""The scale of the experts' variance, what the experts and the witness say together, and the tails.

    The experts expect the network to be off by m, with variance

    .. math:: \log V = \log E + A(\nu)
        + u \, \big( \gamma (\log c + a \log\kappa) + (1 - \gamma) \log(\sigma_0^2 / E) \big), \quad
        E = \mathrm{epistemic} + \sigma^2, \quad
        u = (1 - \nu^b) \min(1, \nu_0 / \nu, E_0 / E) :

    near the data, at novelty nu = 0, what leaving-out says, at gamma = 0 a constant noise; far away, at 1,
    the evidence's own, times what clusters of rows that were left out say of rows as novel. Held-out rows say
    nothing about rows more novel than themselves, nor about those where the network may vary more, so what is
    fitted to them fades beyond the novelty nu_0 and the variance E_0 that they reach. A begins at the novelty
    nu_1 that single rows reach when they are left out, and is linear in log nu between `KNOTS` of the way to
    1. The witness expects it to be off by h, with precision p (0: none). Together they expect

    .. math:: \mu = (v m + g h) / (1 + g), \quad L V, \quad L = (1 + g) / (1 + g^2), \quad g = t p V .

    The target has a `PredictiveDistribution` about :math:`f + z \mu`, of variance L V about its centres,
    which lie :math:`\sqrt{w} (1 - z) |\mu|` on either side.
    """

    fade: Tensor  # a, a scalar
    onset: Tensor  # b, a scalar
    level: Tensor  # c of each output [C]
    excess: Tensor  # w, the weight of the expected error's square, a scalar
    reach: Tensor  # nu_0, the novelty up to which held-out rows speak, a scalar; 1 without them
    shift: Tensor  # z, the share of the expected error that is added to f: 0, or 1 for the corrected mean
    weight: Tensor  # v, of the experts' residual mean, a scalar
    trust: Tensor  # t of each output, in the witness [C]
    varying: Tensor  # gamma, the share of what varies from row to row, a scalar
    constant: Tensor  # sigma_0^2 of each output, a constant noise [C]
    beyond: Tensor  # nu_1, the novelty from which on A is not 0, a scalar
    growth: Tensor  # A at the knots [K]
    df: Tensor  # degrees of freedom of each output [C]
    share: Tensor  # pi, of rows that are far off, a scalar; see `rare_share`
    spread: Tensor  # W, the variance of what they are off by, of each output [C]
    extent: Tensor  # E_0, the variance E up to which held-out rows speak, of each output [C]

    @classmethod
    def default(cls, num_outputs: int, *, shift: float, rare: OutlierPrior | None = None) -> Calibration:
        """a = b = c = w = v = t = gamma = 1, A = 0, Gaussian; no row is far off unless `rare` says so."""
        one = torch.ones((), dtype=torch.float64)
        level, nothing = torch.ones(num_outputs, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        share, spread = (nothing, torch.zeros_like(level)) if rare is None else rare
        z, growth = torch.tensor(shift, dtype=torch.float64), torch.zeros(len(KNOTS), dtype=torch.float64)
        tails = (MOST_DF * level, share, spread, HUGE * level)
        return cls(one, one, level, one, one, z, one, level, one, level, one, growth, *tails)

    def folded(self, device: torch.device, dtype: torch.dtype) -> tuple[Any, tuple[Tensor, Tensor], Tensor]:
        """The same on a device, scalars as plain numbers; log c and log sigma_0^2; and pi W in a precision,
        or in float64 where variances of such targets have no room in it. Made once."""
        known = self.__dict__.setdefault("_folded", {})
        if (device, dtype) not in known:
            values = {field.name: getattr(self, field.name) for field in fields(self)}
            found = {k: v.to(device) if v.ndim else float(v) for k, v in values.items()}
            logs = found["level"].log(), found["constant"].log()  # pyright: ignore
            found["growth"] = self.growth.tolist()  # pyright: ignore
            small = (self.spread > 0) & (self.spread < SMALL)
            room = not bool((small | (torch.maximum(self.spread, self.constant) > LARGE)).any())
            rare = (self.share * self.spread).to(device, dtype if room else torch.float64)
            known[device, dtype] = Calibration(**found), logs, rare  # pyright: ignore
        return known[device, dtype]

    def scale(
        self, novelty: Tensor, log_kappa: Tensor, variance: Tensor, log_level: Tensor, log_constant: Tensor
    ) -> Tensor:
        """V / E of [n, C] or what broadcasts to it, from E, log c and log sigma_0^2."""
        beyond = torch.maximum(novelty / self.reach, variance / self.extent).clamp_min(1.0)
        near = (1.0 - novelty**self.onset) / beyond
        fitted = log_level + self.fade * log_kappa
        if self.varying < 1.0:
            # where nothing is known E is infinite
            noise = log_constant - variance.clamp_max(HUGE).log()
            fitted = self.varying * fitted + (1.0 - self.varying) * noise
        return torch.exp((near * fitted + self.far_field_log_scale(novelty)).clamp(-LARGEST, LARGEST))

    def far_field_log_scale(self, novelty: Tensor) -> Tensor | float:
        """A(nu)."""
        if not any(self.growth):
            return 0.0
        least = math.log(min(float(self.beyond), MOST_REACH))  # without A nu_1 is 1, and its logarithm 0
        way = 1.0 - (novelty.clamp_min(LEAST_REACH).log() / least).clamp(0.0, 1.0)
        total, before, height = torch.zeros_like(novelty), 0.0, 0.0
        for knot, value in zip(KNOTS, self.growth, strict=True):
            slope = (value - height) / (knot - before)
            total = total + slope * (way - before).clamp(0.0, knot - before)
            before, height = knot, value
        return total


@dataclass(frozen=True)
class HeldOutRows:
    """Tensors, each with as many entries."""

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name).cpu() for part in parts]) for name in names})

    def some(self, which: Tensor) -> Self:
        """Those at the True places of `which`, or at these positions."""
        return type(self)(**{name: value[which] for name, value in vars(self).items()})

    def at_most(self, most: int) -> Self:
        """So many of them, at random."""
        if len(self) <= most:
            return self
        return self.some(torch.randperm(len(self), generator=torch.Generator().manual_seed(0))[:most])

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))


@dataclass(frozen=True)
class CalibrationRows(HeldOutRows):
    """Rows that a prediction has not seen, one entry per row and output, each of shape [L]."""

    residual: Tensor  # y - f(x)
    residual_mean: Tensor  # m(x)
    epistemic: Tensor  # before calibration
    noise: Tensor  # sigma^2, before calibration
    novelty: Tensor  # nu(x)
    log_kappa: Tensor  # of the expert that answers
    output: Tensor  # which output the entry belongs to, int64
    witness_mean: Tensor  # what the witness expects of y - f(x)
    witness_precision: Tensor  # how much that counts; 0: there is no witness

    @classmethod
    def of(cls, outputs: Tensor, *, residual: Tensor, **values: Tensor) -> CalibrationRows:
        """From residuals [n, B] of the outputs [B], and values that are as large or broadcast to that."""
        entries = {"residual": residual, "output": outputs.to(residual.device), **values}
        return cls(**{name: value.expand(residual.shape).flatten() for name, value in entries.items()})


def steady_log_kappa(log_kappa: Tensor, rows: Tensor) -> Tensor:
    r"""Leave-one-out scales pulled towards the experts' average, as if it came with `STEADY` rows.

    .. math:: (n_e \log\kappa_e + n_0 \overline{\log\kappa}) / (n_e + n_0),

    shape [M, B], with `rows` n_e of each expert [M]; 0 takes the average.
    """
    weight = rows.to(log_kappa)[:, None]
    average = (weight * log_kappa).sum(dim=0) / weight.sum(dim=0)
    return (weight * log_kappa + STEADY * average) / (weight + STEADY)


def support_quantile(values: Tensor, least: float = LEAST_REACH) -> Tensor:
    """nu_0, or E_0, a scalar: up to which held-out rows, of these novelties [n], or variances, speak."""
    ordered = values.sort().values
    return ordered[min(len(ordered) - 1, int(REACH * len(ordered)))].clamp_min(least)


class OutlierPrior(NamedTuple):
    """Rows that are far off."""

    share: Tensor  # pi, a scalar
    spread: Tensor  # W of each output [C]

    @classmethod
    def of(cls, targets: Tensor) -> OutlierPrior | None:
        r"""What training rows with targets y [n, C] cannot rule out, with pi = 1 / 2n and W = var(y).

        Where none of n rows was off by a full spread of the targets (a glitch of a sensor, a state that
        repeats with another answer), the rate of such rows is still half a row in n, by Jeffreys' rule.
        Without it, a prediction that is right to four digits n times would be certain of the fifth.
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
    r"""The error that experts and witness expect together, mu, and the share L of V that is left.

    Both have seen the same noise, so their errors go together: precisions must not be added. The mean is
    weighted by precision; the precision is the mean :math:`\omega / V + (1 - \omega) t p` of the two, as
    covariance intersection has it, with the weights :math:`\omega = 1 / (1 + g)` of the means: two equal
    opinions are worth one, and of two unequal ones the surer prevails. Without a witness it is the experts'
    own word. V is the `variance` of the experts, already scaled, m, h and p `shift`, `witness_mean` and
    `witness_precision`, t `trust`, all of the same shape.
    """
    # where nothing is known V is infinite, and 0 * inf no number
    gain = (trust * witness_precision * variance).nan_to_num(0.0)
    more = 1.0 + gain
    return (calibration.weight * shift + gain * witness_mean) / more, more / (1.0 + gain.square())


def check_share(name: str, value: float, example: float) -> None:
    """Refuse what does not lie strictly between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name}={value}; it must lie strictly between 0 and 1, for example {example}.")


def needed_rows(level: float) -> int:
    """The fewest held-out rows of which the largest score is high enough: level (n + 1) <= n."""
    return math.ceil(level / (1.0 - level) - ROUNDING)


def held_out_quantile(scores: Tensor, level: float) -> Tensor:
    r"""The score that a new row stays at or below with probability at least `level`, in (0, 1), [] or [C].

    The k-th smallest of the n held-out scores, where k is (n + 1) level, rounded up. A new row that is
    exchangeable with them is equally likely to take any of the n + 1 places among them, so this
    holds for every n and whatever the scores are (Vovk et al. 2005). Infinite where k > n: too few rows.
    The scores, [n] or [n, C], must be of rows that were not used to make what scores them.
    """
    check_share("level", level, 0.9)
    k = math.ceil((len(scores) + 1) * level - ROUNDING)
    if k > len(scores):
        return scores.new_full(scores.shape[1:], torch.inf)
    return scores.sort(dim=0).values[k - 1]


def merge_groups(points: Tensor, weights: Tensor, *, least: float) -> Tensor:
    """The smallest group joins the one nearest to it, until none weighs less than `least`, or one is left.

    From points [M, q] and weights [M] comes the group of each, numbered from 0 in the order of their first
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
        apart = (centres - centres[small]).square().sum(dim=1)
        apart[small] = torch.inf
        groups[groups == names[small]] = names[int(apart.argmin())]
    first = {int(g): i for i, g in enumerate(dict.fromkeys(groups.tolist()))}
    return torch.tensor([first[g] for g in groups.tolist()])
