r"""The distribution of a target: a Student-t on both sides of the mean, and outliers.

.. math:: p(f + e) = (1 - \pi) \, \tfrac12 \big( T(e - d) + T(e + d) \big) + \pi \, N(e; 0, W + u) ,

where f is the mean, T a Student-t density of scale s with df degrees of freedom, d the expected distance of
the target from f (on either side, so that f stays the mean), and u the variance of the first part: outliers,
a share pi of the rows, have a variance larger by W. With probability q the target comes from the distribution
of the training targets instead: a Student-t about their centre, with scale sqrt(W).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, StudentT, constraints

MAX_DF = 1e6  # beyond, a Student-t is a Gaussian
# Of the distribution of the training targets, whose scale is their deviation: heavy tails, with a variance.
MARGINAL_DF = 2.2
# log density of its unit at 0
MARGINAL_UNIT = math.lgamma((MARGINAL_DF + 1) / 2) - math.lgamma(MARGINAL_DF / 2)
MARGINAL_UNIT -= 0.5 * math.log(math.pi * MARGINAL_DF)
MARGINAL_VARIANCE = MARGINAL_DF / (MARGINAL_DF - 2.0)  # over the targets'
MAX_STEPS, TOLERANCE = 80, 1e-10  # of the search for a quantile
NODES = 20  # of quadrature, in each part
NONE = torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class PredictiveDistribution(Distribution):
    """Distribution of a batch of targets; parameters broadcast, and results are float64.

    A scalar `torch.distributions.Distribution`: each entry of a parameter is an element of the batch.
    """

    loc: Tensor  # f
    offset: Tensor  # d, not negative
    scale: Tensor  # s
    df: Tensor  # above 2
    share: Tensor  # pi
    spread: Tensor  # W
    vague: Tensor = NONE  # q
    centre: Tensor = NONE  # of the training targets
    _mixed = False  # whether q is not 0

    arg_constraints = {  # noqa: RUF012  # pyright: ignore
        "loc": constraints.real,
        "offset": constraints.nonnegative,
        "scale": constraints.positive,
        "df": constraints.greater_than(2.0),
        "share": constraints.unit_interval,
        "spread": constraints.nonnegative,
        "vague": constraints.unit_interval,
        "centre": constraints.real,
    }
    support = constraints.real  # pyright: ignore

    def __post_init__(self) -> None:
        wide = (getattr(self, name).detach().double().to(self.loc.device) for name in self.arg_constraints)
        values = dict(zip(self.arg_constraints, torch.broadcast_tensors(*wide), strict=True))
        # parameters of invalid rows are infinite or NaN: they are not validated
        shapes = {"_batch_shape": values["loc"].shape, "_event_shape": torch.Size(), "_validate_args": False}
        mixed = bool((values["vague"] > 0).any())
        vars(self).update(values, **shapes, _mixed=mixed)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> PredictiveDistribution:
        """Distribution with its parameters expanded to this batch shape."""
        wider = {name: getattr(self, name).expand(batch_shape) for name in self.arg_constraints}
        return replace(self, **wider)

    @property
    def mean(self) -> Tensor:
        """Mean f of the first part, also where q > 0."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        r"""Variance :math:`s^2 \, df / (df - 2) + d^2 + \pi W`; where q > 0, the second moment about f."""
        usual = self._usual() + self.share * self.spread
        marginal = MARGINAL_VARIANCE * self.spread + (self.centre - self.loc).square()
        return torch.where(self.vague > 0, usual + self.vague * (marginal - usual), usual)

    @property
    def _trusting(self) -> PredictiveDistribution:
        """Distribution with q = 0."""
        return replace(self, vague=torch.zeros_like(self.vague))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of the targets, in nats; minus infinity for invalid rows."""
        value = aligned(value, self.loc.shape)
        error = value.double() - self.loc
        density = log_density(error, self.offset, self.scale.square(), self.df, self.share, self.spread)
        if self._mixed:
            marginal = StudentT(MARGINAL_DF, self.centre, self.spread.sqrt(), False).log_prob(value.double())
            mixed = torch.logaddexp(torch.log1p(-self.vague) + density, torch.log(self.vague) + marginal)
            density = torch.where(self.vague > 0, mixed, density)
        return torch.where(torch.isfinite(self.scale) & torch.isfinite(error), density, -torch.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability P(Y <= y)."""
        value = aligned(value, self.loc.shape)
        error = value.double() - self.loc
        usual = 0.5 * (1.0 + error.sign() * self._within(error.abs()))
        if not self._mixed:
            return usual
        from scipy import special  # slow to import

        away = ((value.double() - self.centre) / self.spread.sqrt()).cpu().numpy()
        marginal = torch.from_numpy(np.asarray(special.stdtr(MARGINAL_DF, away))).to(usual.device)
        return torch.where(self.vague > 0, usual + self.vague * (marginal - usual), usual)

    def within(self, distance: Tensor) -> Tensor:
        """Probability P(|Y - mean| <= z); 0 where the scale is infinite."""
        if not self._mixed:
            return self._within(distance)
        inside = self.cdf(self.mean + distance) - self.cdf(self.mean - distance)
        return torch.where(torch.isfinite(self.scale), inside, 0.0)

    @np.errstate(invalid="ignore", over="ignore")  # where the scale is infinite
    def _within(self, distance: Tensor) -> Tensor:
        """Probability P(|Y - f| <= z) with q = 0; 0 where the scale is infinite."""
        from scipy import special  # slow to import

        z, d, s, df, far = self._arrays(distance)
        usual = special.stdtr(df, (z - d) / s) + special.stdtr(df, (z + d) / s) - 1.0
        share = self.share.cpu().numpy()
        inside = (1.0 - share) * usual + share * special.erf(z / (far * math.sqrt(2.0)))
        return torch.from_numpy(np.asarray(inside)).to(self.mean.device)

    def half_width(self, level: float | Tensor) -> Tensor:
        """Half width z with P(|Y - f| <= z) = level, in (0, 1); infinite where the scale is infinite."""
        level = torch.as_tensor(level, dtype=torch.float64, device=self.mean.device).expand_as(self.mean)
        finite = torch.isfinite(self.scale)
        low, z = torch.zeros_like(self.scale), self.offset + self.variance.sqrt()
        high = torch.full_like(low, torch.inf)
        for _ in range(MAX_STEPS):  # Newton steps; outside the bracket, expansion or bisection
            gap = self.within(z) - level
            low, high = torch.where(gap < 0, z, low), torch.where(gap < 0, high, z)
            step = z - gap / (self.log_prob(self.mean + z).exp() + self.log_prob(self.mean - z).exp())
            safe = torch.where(torch.isinf(high), 4.0 * z, 0.5 * (low + high))
            new = torch.where((step > low) & (step < high) & (step < 16.0 * z), step, safe)
            moved, z = (new - z).abs() > TOLERANCE * new, new
            if not bool((moved & finite).any()):
                break
        return torch.where(finite, z, torch.inf)

    def widening(self, value: Tensor, level: float, rank: int) -> Tensor:
        """Factor by which intervals of this level must grow to cover `rank` of the targets; at least 1.

        A half width takes a search, so it is computed only for intervals that miss their targets.
        """
        error = (value.double() - self.loc).abs().flatten()
        outside = (~(self.within(error.view_as(self.loc)) <= level)).flatten().nonzero().flatten()
        missed = rank - len(error) + len(outside)
        if missed < 1:
            return torch.ones_like(error.sum())
        few = replace(self, **{k: getattr(self, k).flatten()[outside] for k in self.arg_constraints})
        return (error[outside] / few.half_width(level)).sort().values[missed - 1]

    def icdf(self, value: float | Tensor) -> Tensor:
        """Quantile y with P(Y <= y) = q, in (0, 1)."""
        q = torch.as_tensor(value, dtype=torch.float64, device=self.mean.device).expand_as(self.mean)
        if self._mixed:
            return self._between(q)
        side = (q - 0.5).sign()
        # at the median the half width is 0, and 0 is no valid level
        half = self.half_width((2.0 * q - 1.0).abs().clamp(min=torch.finfo(q.dtype).tiny))
        return self.mean + torch.where(side == 0, 0.0, side * half)

    def _between(self, q: Tensor) -> Tensor:
        """Quantile by bisection: it lies between those of the two parts."""
        from scipy import special

        marginal = torch.from_numpy(np.asarray(special.stdtrit(MARGINAL_DF, q.cpu().numpy()))).to(q.device)
        ends = self._trusting.icdf(q), self.centre + self.spread.sqrt() * marginal
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        for _ in range(MAX_STEPS):
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < q
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return torch.where(self.vague > 0, 0.5 * (low + high), ends[0])

    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Random draws, shape [*sample_shape, ...]."""
        shape, device = (*sample_shape, *self.mean.shape), self.mean.device

        def drawn(kind: Callable[..., Tensor]) -> Tensor:
            return kind(shape, dtype=torch.float64, generator=generator).to(device)

        seed = int(torch.randint(2**62, (), generator=generator))
        chi = np.random.default_rng(seed).chisquare(self.df.cpu().numpy(), size=shape)
        student = drawn(torch.randn) / (torch.from_numpy(chi).to(device) / self.df).sqrt()
        usual = torch.where(drawn(torch.rand) < 0.5, -self.offset, self.offset) + self.scale * student
        far = (self.spread + self._usual()).sqrt() * drawn(torch.randn)
        drawn_usual = self.loc + torch.where(drawn(torch.rand) < self.share, far, usual)
        if not self._mixed:
            return drawn_usual
        chi = torch.from_numpy(np.random.default_rng(seed + 1).chisquare(MARGINAL_DF, size=shape)).to(device)
        marginal = self.centre + self.spread.sqrt() * drawn(torch.randn) / (chi / MARGINAL_DF).sqrt()
        return torch.where(drawn(torch.rand) < self.vague, marginal, drawn_usual)

    @np.errstate(invalid="ignore", over="ignore")
    def crps(self, targets: Tensor) -> Tensor:
        r"""Continuous ranked probability score, :math:`E|Y - y| - \tfrac12 E|Y - Y'|`.

        The first term is closed; the second is :math:`2 \int_0^\infty F (1 - F)` by Gauss and Legendre, in
        :math:`u`, where :math:`z = d + s \sinh u`.
        """
        from scipy import special

        targets = aligned(targets, self.loc.shape)
        error = (targets.double() - self.loc).abs()
        z, d, s, df, far = self._arrays(error)
        share = self.share.cpu().numpy()
        usual = 0.5 * s * (_mean_distance((z - d) / s, df) + _mean_distance((z + d) / s, df))
        unit = z / far
        gross = unit * special.erf(unit / math.sqrt(2.0)) + math.sqrt(2.0 / math.pi) * np.exp(-0.5 * unit**2)
        gross = far * gross
        first = torch.from_numpy(np.asarray((1.0 - share) * usual + share * gross)).to(error.device)
        if self._mixed:
            root = self.spread.sqrt()
            away = ((targets.double() - self.centre) / root).abs().cpu().numpy()
            marginal = torch.from_numpy(_mean_distance(away, np.full_like(away, MARGINAL_DF))).to(root) * root
            first = torch.where(self.vague > 0, first + self.vague * (marginal - first), first)
        score = first - self._half_difference()
        return torch.where(torch.isfinite(self.scale) & torch.isfinite(error), score, torch.inf)

    def _half_difference(self) -> Tensor:
        """E|Y - Y'| / 2."""
        if self._mixed:
            return self._mixed_half_difference()
        d, s = self.offset, self.scale
        # Outliers change the tail too sharply in u for one part. Beyond the last end less than 1e-7 of the
        # integral is left, also with heavy tails.
        far = (self.spread + self._usual()).sqrt() / s
        reach = [torch.asinh(times * far) for times in (0.1, 10.0, 1e6)]
        ends = [torch.asinh(-d / s), torch.zeros_like(s), torch.full_like(s, 4.0)]
        ends += [end.clamp_min(4.0) for end in reach]

        def rise(u: Tensor) -> Tensor:
            inside = self.within((d + s * torch.sinh(u)).clamp_min(0.0))
            return 0.25 * (1.0 + inside) * (1.0 - inside)

        return 2.0 * self._integral(rise, ends, NODES)

    def _mixed_half_difference(self) -> Tensor:
        """E|Y - Y'| / 2 where q > 0, by an integral over both sides of f: z = s sinh u."""
        far = self.spread + self._usual() + (self.centre - self.loc).square()
        ends = [torch.asinh(times * far.sqrt() / self.scale).clamp_min(4.0) for times in (0, 0.1, 1, 10, 1e6)]
        ends += [torch.asinh(self.offset / self.scale + step) for step in (-4.0, 0.0, 4.0)]  # F bends there
        ends = torch.stack([*ends, torch.zeros_like(far), *(-end for end in ends)]).sort(dim=0).values

        def rise(u: Tensor) -> Tensor:
            share = self.cdf(self.loc + self.scale * torch.sinh(u))
            return share * (1.0 - share)

        total = self._integral(rise, ends, 2 * NODES)
        return torch.where(self.vague > 0, total, self._trusting._half_difference())

    def _integral(self, rise: Callable[[Tensor], Tensor], ends: Iterable[Tensor], count: int) -> Tensor:
        """Integral of `rise`, F (1 - F), piece by piece between the ends; its argument is u, in s sinh u."""
        nodes, weights = np.polynomial.legendre.leggauss(count)
        total = torch.zeros_like(self.scale)
        for left, right in pairwise(ends):
            if not bool((right > left).any()):
                continue
            for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
                u = 0.5 * (left + right) + 0.5 * (right - left) * node
                total += 0.5 * (right - left) * weight * rise(u) * self.scale * torch.cosh(u)
        return total

    def _usual(self) -> Tensor:
        """Variance u of the first part."""
        return self.scale.square() * self.df / (self.df - 2.0) + self.offset.square()

    def _arrays(self, distance: Tensor) -> tuple[np.ndarray, ...]:
        """z, d, s, df and the standard deviation of outliers."""
        far = (self.spread + self._usual()).sqrt()
        values = torch.broadcast_tensors(distance.double(), self.offset, self.scale, self.df, far)
        return tuple(value.cpu().numpy() for value in values)


def aligned(values: Tensor, shape: torch.Size) -> Tensor:
    """Values for a batch of this shape, or for several such [k, ...]: [n] and [n, 1] mean the same. A number,
    or a table, broadcasts to several batches, and one entry takes any values; others raise ValueError."""
    flat = shape[:-1] if shape[-1:] == (1,) else shape
    if values.shape in (flat, (*flat, 1)):
        return values.reshape(shape)
    whole = values.shape[-len(shape) :] == shape or (
        values.ndim > 1 and shape[-values.ndim :] == values.shape
    )
    if values.ndim and shape.numel() > 1 and not whole:
        what = f"targets have the shape {tuple(values.shape)}, predictions {tuple(shape)}"
        raise ValueError(f"{what}; pass targets of the same shape.")
    return values


def log_density(
    error: Tensor, offset: Tensor, squared_scale: Tensor, df: Tensor, share: Tensor, spread: Tensor
) -> Tensor:
    """Log density log p(f + error), elementwise; differentiable in all arguments."""
    sides = [_log_student(error - way * offset, squared_scale, df) for way in (1.0, -1.0)]
    both, usual = torch.logaddexp(*sides) - math.log(2.0), squared_scale * df / (df - 2.0) + offset.square()
    both = both + torch.lgamma(0.5 * (df + 1.0)) - torch.lgamma(0.5 * df) - 0.5 * torch.log(math.pi * df)
    far = -0.5 * (torch.log(2 * math.pi * (spread + usual)) + error.square() / (spread + usual))
    return torch.logaddexp(torch.log1p(-share) + both, torch.log(share) + far)


def _log_student(error: Tensor, squared_scale: Tensor, df: Tensor) -> Tensor:
    """Log density of a Student-t, less that of a standard one at 0."""
    far = torch.log1p(error.square() / (df * squared_scale))
    return -0.5 * (torch.log(squared_scale) + (df + 1.0) * far)


def _mean_distance(u: np.ndarray, df: np.ndarray) -> np.ndarray:
    """Mean distance E|T - u| of a standard Student-t T from u."""
    from scipy import special

    unit = special.gammaln(0.5 * (df + 1.0)) - special.gammaln(0.5 * df) - 0.5 * np.log(math.pi * df)
    density = np.exp(unit - 0.5 * (df + 1.0) * np.log1p(u**2 / df))
    return u * (2.0 * special.stdtr(df, u) - 1.0) + 2.0 * density * (df + u**2) / (df - 1.0)
