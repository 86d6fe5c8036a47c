r"""A Gaussian of the features of each class, and the posterior variance of a linear function of them.

Where a detector predicts class c, the Gaussian process is one of linear functions of the features s, with a
mean of its own: its kernel is :math:`\delta_{c c'} (1 + s^\top P^{-1} s')`, an expert for each class. From
n_c training rows the posterior variance at s is, over its mean at the training rows,

.. math:: u(s, c) = (s - m_c)^\top S_c^{-1} (s - m_c) / d, \quad
          S_c = \frac{\sum_{i \in c} (s_i - m_c)(s_i - m_c)^\top + \nu W}{n_c + \nu}, \quad
          W = (1 - \rho) \bar S + \rho \, \bar\sigma^2 I .

The prior W is the pooled covariance of all classes, shrunk towards a sphere. Its weight nu, in rows, and rho
maximise the likelihood of held-out rows. u is 1 on average over data like the training data, and grows with
the square of the distance. It gives probabilities and error bars of edges, fitted to held-out boxes, and the
novelty, from u of two kinds of features: what the query has attended to, and what lies inside its box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.distributions import StudentT

from ..math.quantiles import TailShares
from ..math.search import minimise_from_zero, with_gradient

WEIGHTS = (0.01, 0.1, 1.0, 10.0)  # nu, over the width of the features
SPHERES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # rho
PRIOR_ROWS = 1.0  # of the common mean, in that of each class
MIN_SPREAD = 1e-12  # of the features, over their size: they may be constant
MAX_STEPS, TOLERANCE = 500, 1e-15  # to convergence, so that results hardly depend on rounding
MIN_VARIANCE = 1e-3  # of u and w
MAX_POWER = 3.0  # of u and w
MAX_LOG = 6.0  # distance of a logarithm from where the search begins
MAX_GROWTH = 400.0  # ten times the largest lambda
MAX_LOG_COLD = 3.0  # the same below T_0: colder ones hardly differ
MIN_ERROR = 1e-6  # pixels: of a detector without errors
RIDGES = (1e-2, 1e-1, 1.0)  # of the weights of the features in the local noise
MAX_LOCAL_STEPS, LOCAL_TOLERANCE = 60, 1e-9  # of their search
MAX_DEVIATIONS = 4.0  # of a feature from its mean
# of matched boxes: in pixels [m, 4], u [m] or [m, 4], w [m], and the local noise [m, 4]
EdgeErrors = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class ClassMoments:
    """Sums over the features of each class; `include` adds rows."""

    count: Tensor  # rows, [C]
    total: Tensor  # sum of s, [C, d]
    square: Tensor  # sum of s s^T, [C, d, d]

    @classmethod
    def zero(cls, classes: int, width: int) -> ClassMoments:
        """Sums over no rows, float64."""
        shapes = (classes,), (classes, width), (classes, width, width)
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def include(self, features: Tensor, labels: Tensor) -> None:
        """Add rows [m, d] with classes, int64 [m], in place, since a copy is large with many classes."""
        for label in labels.unique().tolist():
            own = features[labels == label].to(self.total)
            self.count[label] += len(own)
            self.total[label] += own.sum(dim=0)
            self.square[label] += own.T @ own


@dataclass(frozen=True)
class ClassGaussians:
    """Posterior of each class: m_c [C, d], and R_c [C, d, d] with R_c R_c^T = S_c^-1 / d."""

    centre: Tensor
    root: Tensor

    def __call__(self, features: Tensor, labels: Tensor) -> Tensor:
        """Variance u of rows [k, d] with classes [k], float64, [k]."""
        centre, root = (part.to(features.device) for part in (self.centre, self.root))
        variance = features.new_empty(len(features), dtype=torch.float64)
        for label in labels.unique().tolist():  # one by one: R of every row would be d times as large as s
            away = features[own := labels == label].double() - centre[label].double()
            variance[own] = (away @ root[label].double()).square().sum(dim=1)
        return variance

    @classmethod
    def fit(cls, sums: ClassMoments, held_out: Tensor, labels: Tensor) -> ClassGaussians:
        """Fit to the sums of training rows, with nu and rho from held-out rows [k, d] of classes [k]."""
        held_out = held_out.double().to(sums.total.device)
        means = sums.total / sums.count.clamp_min(1.0)[:, None]
        mean = sums.total.sum(dim=0) / sums.count.sum()
        square = sums.square.sum(dim=0) / sums.count.sum()
        within = square - (sums.count[:, None] * means).T @ means / sums.count.sum()  # about means of classes
        rows, between = sums.count[:, None, None], square - torch.outer(mean, mean)  # about that of all
        common = torch.where(rows > 0, within, between)  # a class without rows is as wide as all together
        least = MIN_SPREAD * float(mean.square().mean()) + torch.finfo(torch.float64).tiny
        variance = common.diagonal(dim1=1, dim2=2).mean(dim=1).clamp_min(least)[:, None, None]
        centre = (sums.total + PRIOR_ROWS * mean) / (sums.count + PRIOR_ROWS)[:, None]  # m_c
        cross, eye, width = sums.total[:, :, None] * centre[:, None], torch.eye(len(mean)).to(mean), len(mean)
        scatter = sums.square - cross - cross.mT + rows * centre[:, :, None] * centre[:, None]

        def spread(weight: float, sphere: float) -> Tensor:  # S_c, [C, d, d]
            prior = (1.0 - sphere) * common + sphere * variance * eye
            return (scatter + weight * width * prior) / (rows + weight * width)

        def loss(shrinkage: tuple[float, float]) -> float:
            return _loss(centre, spread(*shrinkage), held_out, labels.to(held_out.device))

        best = spread(*min(product(WEIGHTS, SPHERES), key=loss))
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(best)) / width
        return cls(centre.float(), torch.linalg.cholesky(inverse).float().contiguous())


def _loss(centre: Tensor, spread: Tensor, held_out: Tensor, labels: Tensor) -> float:
    """Mean negative log likelihood of held-out rows [k, d], up to a constant; infinite if S is singular."""
    factor, failed = torch.linalg.cholesky_ex(spread)
    if bool(failed.any()):
        return float("inf")
    total = 0.0
    for label in labels.unique().tolist():
        away = held_out[labels == label] - centre[label]
        white = torch.linalg.solve_triangular(factor[label], away.T, upper=False)
        total += float(0.5 * white.square().sum() + len(away) * factor[label].diagonal().log().sum())
    return total / max(1, len(held_out))


@dataclass(frozen=True)
class FeaturePool:
    r"""Novelty of rows with several kinds of features: each kind gives one u_k, and tail shares pool them.

    .. math:: e = \frac1K \sum_k -\log P_k(\log u > \log u_k), \quad \text{novelty} = e / (1 + e)

    where P_k is the share among held-out rows, over which e is 1 on average; see `TailShares`.
    """

    gaussians: tuple[ClassGaussians, ...]  # of each kind of features
    tails: Tensor  # the table of `TailShares`, float64, [3, K, Q]

    def variances(self, features: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Variances u of rows with classes [k] and features [k, d] of each kind, float64, [k, K]."""
        pairs = zip(self.gaussians, features, strict=False)
        return torch.stack([own(rows, labels) for own, rows in pairs], dim=1)

    def __call__(self, variances: Tensor) -> Tensor:
        """The novelty, in [0, 1], float64, [k], from u [k, K]; 1 where u has overflowed."""
        exponent = TailShares(self.tails.to(variances.device))(_log(variances))
        return (exponent / (1.0 + exponent)).nan_to_num(1.0)

    @classmethod
    def fit(
        cls, sums: Sequence[ClassMoments], held_out: Sequence[Tensor], labels: Tensor, familiar: Tensor
    ) -> FeaturePool:
        """Fit to sums of training rows and to held-out features [k, d] of each kind. `familiar`, bool [k],
        marks the held-out rows that define the tail shares. Kinds of width 0 are left out."""
        pairs = [(own, rows) for own, rows in zip(sums, held_out, strict=True) if rows.shape[1]]
        pool = cls(tuple(ClassGaussians.fit(*pair, labels) for pair in pairs), torch.zeros(0))
        variances = pool.variances([rows[familiar] for _, rows in pairs], labels[familiar])
        return cls(pool.gaussians, TailShares.fit(_log(variances)).table)


@dataclass(frozen=True)
class ClassTemperature:
    r"""Probabilities are softmax(z / T), with :math:`T^2 = T_0^2 + \lambda u`."""

    least: Tensor  # T_0, a scalar
    growth: Tensor  # lambda, a scalar

    def __call__(self, logits: Tensor, variance: Tensor) -> Tensor:
        """Probabilities of the classes and, last, of no object, [k, C + 1], from their logits and u [k]."""
        least, growth = (part.to(logits.device) for part in (self.least, self.growth))
        temperature = (least.square() + growth * variance.double()).sqrt()
        return (logits.double() / temperature[:, None]).softmax(dim=1)

    @classmethod
    def fit(cls, logits: Tensor, variance: Tensor, labels: Tensor) -> ClassTemperature:
        """Fit by maximum likelihood to held-out logits [m, C + 1], u [m] and true classes, int64 [m]."""
        logits, variance, labels = logits.cpu(), variance.cpu(), labels.cpu()

        def of(free: Tensor) -> ClassTemperature:
            return cls(free[0].exp(), 0.1 * free[1])

        def loss(free: Tensor) -> Tensor:
            return -of(free)(logits, variance).gather(1, labels[:, None]).clamp_min(1e-300).log().mean()

        return of(_best(loss, [(-MAX_LOG_COLD, MAX_LOG), (0.0, MAX_GROWTH)]))


@dataclass(frozen=True)
class LocalNoise:
    r"""Logarithm of the size of edge errors, linear in the features of the box,

    .. math:: \ell_c(x) = w_c^\top (x - \bar x) / s ,

    beyond what u explains. It is learnt from errors in the training pictures, which are too small, so
    `EdgeNoise` sets the level.
    """

    weights: Tensor  # w, [F, 4]
    centre: Tensor  # of the features, [F]
    spread: Tensor  # s, likewise
    bounds: Tensor  # the smallest and largest l in the training pictures, [2, 4]

    def __call__(self, features: Tensor, boxes: Tensor) -> Tensor:
        """Noise l [k, 4], float64, of features [k, d] and boxes [k, 4] (centre, size over the picture's)."""
        own = (part.to(features.device) for part in (self.weights, self.centre, self.spread, self.bounds))
        weights, centre, spread, bounds = own
        white = (described(features, boxes) - centre) / spread
        return (white.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS) @ weights).clamp(bounds[0], bounds[1])

    @classmethod
    def fit(cls, features: Tensor, boxes: Tensor, errors: Tensor, offset: Tensor, ridge: float) -> LocalNoise:
        """Fit by penalised maximum likelihood, with Student's t errors [m, 4] in pixels; the offset [m] is
        the part of the logarithm that u explains."""
        rows, errors = described(features, boxes), errors.double()
        centre, spread = rows.mean(dim=0), rows.std(dim=0, correction=0)
        spread = torch.where(spread > MIN_SPREAD, spread, 1.0)
        white = ((rows - centre) / spread).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        offset = (offset - offset.mean())[:, None]
        typical, width = errors.square().mean(dim=0).sqrt().clamp_min(MIN_ERROR), rows.shape[1]

        def loss(free: Tensor) -> Tensor:
            weights = free[5:].reshape(width, 4)
            scale = typical * (free[:4] + white @ weights + offset).exp()
            fit = StudentT(2.0 + 4.0 * free[4].exp(), 0.0, scale, validate_args=False).log_prob(errors)
            return 0.25 * ridge * weights.square().sum() - fit.mean()

        bounds = [(-MAX_LOG, MAX_LOG)] * (5 + 4 * width)
        weights = _best(loss, bounds, MAX_LOCAL_STEPS, LOCAL_TOLERANCE)[5:].reshape(width, 4)
        local = white @ weights
        return cls(weights, centre, spread, torch.stack([local.amin(dim=0), local.amax(dim=0)]))


def described(features: Tensor, boxes: Tensor) -> Tensor:
    """Features of a query [k, d] and its box: centre, size, and log of the size; float64, [k, d + 6]."""
    boxes = boxes.double()
    return torch.cat([features.double(), boxes, boxes[:, 2:].clamp_min(MIN_VARIANCE).log()], dim=1)


@dataclass(frozen=True)
class EdgeNoise:
    r"""Errors of the left, top, right and bottom of a box, in pixels: Student's t with the scale

    .. math:: \sigma_c = a_c \, u^\gamma \, w^\delta \, \exp(\eta \ell_c / \sqrt{\max(1, u)})

    where u is the variance of the query, w that of the picture, and l_c the local noise, whose effect fades
    far from the training data.
    """

    level: Tensor  # a, [4]
    growth: Tensor  # gamma, a scalar
    picture: Tensor  # delta, a scalar
    local: Tensor  # eta, a scalar
    df: Tensor  # of the tails, above 2, a scalar

    def scale(self, variance: Tensor, picture: Tensor, local: Tensor) -> Tensor:
        """Scale sigma, float64, [k, 4], for u, [k] or [k, 4], w [k] and l [k, 4]."""
        place, parts = variance.device, (self.level, self.growth, self.picture, self.local)
        level, growth, share, weight = (part.to(place) for part in parts)
        own = variance if variance.ndim == 2 else variance[:, None]
        faded = weight * local / own.double().clamp_min(1.0).sqrt()
        return level * (growth * _log(own) + share * _log(picture)[:, None] + faded).exp()

    def std(self, variance: Tensor, picture: Tensor, local: Tensor) -> Tensor:
        """The standard deviation of each edge, float64, [k, 4]."""
        return self.scale(variance, picture, local) * (self.df / (self.df - 2.0)).sqrt().to(variance.device)

    @classmethod
    def fit(cls, held_out: EdgeErrors, variants: EdgeErrors | None = None) -> EdgeNoise:
        """Fit by maximum likelihood to held-out boxes.

        With photometric variants, gamma and delta are fitted to both: in the held-out pictures, which are
        like the training pictures, u and w hardly vary. Levels, tails and eta are then fitted to the held-out
        boxes only. eta comes last: learnt near the training data, the local noise must not replace u.
        """
        parts = [held_out] if variants is None else [held_out, variants]
        errors, variance, picture, local = (torch.cat(part) for part in zip(*parts, strict=True))
        return _likeliest((errors, variance, picture, 0.0 * local), None).refit(held_out)

    def refit(self, held_out: EdgeErrors) -> EdgeNoise:
        """Fit by maximum likelihood with gamma and delta fixed to these values."""
        return _likeliest(held_out, (self.growth, self.picture))

    def loss(self, held_out: EdgeErrors) -> float:
        """The mean negative log likelihood of an edge, in nats."""
        errors, *given = (part.detach().cpu().double() for part in held_out)
        return -float(StudentT(self.df, 0.0, self.scale(*given), validate_args=False).log_prob(errors).mean())


def _likeliest(given: EdgeErrors, powers: tuple[Tensor, Tensor] | None) -> EdgeNoise:
    """Maximum-likelihood noise of the errors; `powers`: gamma and delta, None: they are fitted, too."""
    errors, variance, picture, local = (part.detach().cpu().double() for part in given)
    typical = errors.square().mean(dim=0).sqrt().clamp_min(MIN_ERROR)
    usual = _log(variance).mean(), _log(picture).mean(), local.mean(dim=0)  # where a is fitted

    def of(free: Tensor) -> EdgeNoise:
        growth, share = (free[6], free[7]) if powers is None else powers
        shift = growth * usual[0] + share * usual[1] + free[5] * usual[2]
        level = typical * (free[:4] - shift).exp()
        return EdgeNoise(level, growth, share, free[5], 2.0 + 4.0 * free[4].exp())

    def loss(free: Tensor) -> Tensor:
        scale = (noise := of(free)).scale(variance, picture, local)
        return -StudentT(noise.df, 0.0, scale, validate_args=False).log_prob(errors).mean()

    extents = [(0.0, MAX_POWER)] * (3 if powers is None else 1)
    return of(_best(loss, [(-MAX_LOG, MAX_LOG)] * 5 + extents))


def _best(
    loss: Callable[[Tensor], Tensor],
    bounds: list[tuple[float, float]],
    max_iter: int = MAX_STEPS,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Minimiser of the loss within bounds; zeros if the search fails."""
    options: dict = {"max_iter": max_iter, "tolerance": tolerance, "bounds": bounds}
    best = minimise_from_zero(with_gradient(loss), len(bounds), **options)
    return torch.zeros(len(bounds), dtype=torch.float64) if best is None else torch.from_numpy(best)


def _log(value: Tensor) -> Tensor:
    return value.double().clamp_min(MIN_VARIANCE).log()
