r"""A Gaussian of the features of each class, and the posterior variance of a linear function of them.

Where a detector predicts class c, the Gaussian process is one of linear functions of the features s, with a
mean of its own: its kernel is :math:`\delta_{c c'} (1 + s^\top P^{-1} s')`, an expert for each class. From
n_c training rows the posterior variance at s is, over its mean at the training rows,

.. math:: u(s, c) = (s - m_c)^\top S_c^{-1} (s - m_c) / d, \quad
          S_c = \frac{\sum_{i \in c} (s_i - m_c)(s_i - m_c)^\top + \nu W}{n_c + \nu}, \quad
          W = (1 - \rho) \bar S + \rho \, \bar\sigma^2 I .

The prior W is the pooled covariance of all classes, shrunk towards a sphere. Its weight nu, in rows, and rho
maximise the likelihood of held-out rows. u is 1 on average over data like the training data, and grows with
the square of the distance. From it follow probabilities and error bars of edges, fitted to held-out boxes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.distributions import StudentT

from ..data.trees import concatenate
from ..math.search import minimise_from_zero, with_gradient

WEIGHTS = (0.01, 0.1, 1.0, 10.0)  # nu, over the width of the features
SPHERES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # rho
PRIOR_ROWS = 1.0  # of the common mean, in that of each class
MIN_SPREAD = 1e-12  # of the features, over their size: they may be constant
MAX_STEPS, TOLERANCE = 500, 1e-15  # to convergence, so that machines which round otherwise agree
MIN_VARIANCE = 1e-3  # of u and w
MAX_POWER = 3.0  # of u and w
MAX_LOG = 6.0  # distance of a logarithm from where the search begins
MAX_LOG_COLD = 3.0  # the same below T_0: colder ones are all alike
MIN_ERROR = 1e-6  # pixels: of a detector without errors
EdgeErrors = tuple[Tensor, Tensor, Tensor]  # of matched boxes: in pixels [m, 4], u [m] or [m, 4], w [m]


@dataclass(frozen=True)
class ClassMoments:
    """Sums over features by class, to which rows are added."""

    count: Tensor  # rows, [C]
    total: Tensor  # sum of s, [C, d]
    square: Tensor  # sum of s s^T, [C, d, d]

    @classmethod
    def zero(cls, classes: int, width: int) -> ClassMoments:
        """Before any row, float64."""
        shapes = (classes,), (classes, width), (classes, width, width)
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def include(self, features: Tensor, labels: Tensor) -> None:
        """Add rows [m, d] and the class of each, int64 [m], in place: with many classes a copy is large."""
        for label in labels.unique().tolist():
            own = features[labels == label].to(self.total)
            self.count[label] += len(own)
            self.total[label] += own.sum(dim=0)
            self.square[label] += own.T @ own


@dataclass(frozen=True)
class ClassGaussians:
    """The posterior: m_c [C, d], and R_c [C, d, d] with R_c R_c^T = S_c^-1 / d."""

    centre: Tensor
    root: Tensor

    def __call__(self, features: Tensor, labels: Tensor) -> Tensor:
        """u of rows [k, d] and their classes [k], float64, [k]."""
        centre, root = (part.to(features.device) for part in (self.centre, self.root))
        variance = features.new_empty(len(features), dtype=torch.float64)
        for label in labels.unique().tolist():  # one by one: R of every row would be d times as large as s
            away = features[own := labels == label].double() - centre[label].double()
            variance[own] = (away @ root[label].double()).square().sum(dim=1)
        return variance

    @classmethod
    def fit(cls, sums: ClassMoments, held_out: Tensor, labels: Tensor) -> ClassGaussians:
        """From the sums of training rows, and features of held-out rows [k, d] of classes [k]."""
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
    """Negative log likelihood of held-out rows [k, d], over their number; infinite where it is singular."""
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
class ClassTemperature:
    r"""Probabilities are softmax(z / T), with :math:`T^2 = T_0^2 + \lambda u`."""

    least: Tensor  # T_0, a scalar
    growth: Tensor  # lambda, a scalar

    def __call__(self, logits: Tensor, variance: Tensor) -> Tensor:
        """Of the classes and, last, of no object, [k, C + 1], from logits like that and u [k]."""
        least, growth = (part.to(logits.device) for part in (self.least, self.growth))
        temperature = (least.square() + growth * variance.double()).sqrt()
        return (logits.double() / temperature[:, None]).softmax(dim=1)

    @classmethod
    def fit(cls, logits: Tensor, variance: Tensor, labels: Tensor) -> ClassTemperature:
        """The likeliest, from held-out queries: logits [m, C + 1], u [m] and true classes, int64 [m]."""
        logits, variance, labels = logits.cpu(), variance.cpu(), labels.cpu()

        def of(free: Tensor) -> ClassTemperature:
            return cls(free[0].exp(), 0.1 * free[1].exp())

        def loss(free: Tensor) -> Tensor:
            return -of(free)(logits, variance).gather(1, labels[:, None]).clamp_min(1e-300).log().mean()

        return of(_best(loss, [(-MAX_LOG_COLD, MAX_LOG), (-MAX_LOG, MAX_LOG)]))


@dataclass(frozen=True)
class EdgeNoise:
    r"""Errors of left, top, right and bottom of a box, in pixels: Student's t, of the scale

    .. math:: \sigma_c = a_c \, u^\gamma \, w^\delta

    where u is the variance of the query, and w that of the picture.
    """

    level: Tensor  # a, [4]
    growth: Tensor  # gamma, a scalar
    picture: Tensor  # delta, a scalar
    df: Tensor  # of the tails, above 2, a scalar

    def scale(self, variance: Tensor, picture: Tensor) -> Tensor:
        """sigma, float64, [k, 4], from u, [k] or [k, 4], and w [k]."""
        level, growth, share = (p.to(variance.device) for p in (self.level, self.growth, self.picture))
        own = variance if variance.ndim == 2 else variance[:, None]
        return level * (growth * _log(own) + share * _log(picture)[:, None]).exp()

    def std(self, variance: Tensor, picture: Tensor) -> Tensor:
        """The standard deviation of each edge, float64, [k, 4]."""
        return self.scale(variance, picture) * (self.df / (self.df - 2.0)).sqrt().to(variance.device)

    @classmethod
    def fit(cls, held_out: EdgeErrors, variants: EdgeErrors | None = None) -> EdgeNoise:
        """The likeliest for held-out boxes.

        With photometric variants, gamma and delta are fitted to both: in held-out pictures, like those of
        training, u and w hardly differ. Levels and tails are of the held-out ones.
        """
        if variants is None:
            return _likeliest(held_out, None)
        powers = _likeliest(concatenate([held_out, variants]), None)
        return _likeliest(held_out, (powers.growth, powers.picture))


def _likeliest(given: EdgeErrors, powers: tuple[Tensor, Tensor] | None) -> EdgeNoise:
    """Under which the errors are likeliest; powers: gamma and delta, None: they are fitted, too."""
    errors, variance, picture = (part.detach().cpu().double() for part in given)
    typical = errors.square().mean(dim=0).sqrt().clamp_min(MIN_ERROR)
    usual = _log(variance).mean(), _log(picture).mean()  # where a is fitted

    def of(free: Tensor) -> EdgeNoise:
        growth, share = (free[5], free[6]) if powers is None else powers
        level = typical * (free[:4] - growth * usual[0] - share * usual[1]).exp()
        return EdgeNoise(level, growth, share, 2.0 + 4.0 * free[4].exp())

    def loss(free: Tensor) -> Tensor:
        scale = (noise := of(free)).scale(variance, picture)
        return -StudentT(noise.df, 0.0, scale, validate_args=False).log_prob(errors).mean()

    return of(_best(loss, [(-MAX_LOG, MAX_LOG)] * 5 + ([(0.0, MAX_POWER)] * 2 if powers is None else [])))


def _best(loss: Callable[[Tensor], Tensor], bounds: list[tuple[float, float]]) -> Tensor:
    """Where the loss is lowest within bounds; zeros where the search fails."""
    options = {"max_iter": MAX_STEPS, "tolerance": TOLERANCE, "bounds": bounds}
    best = minimise_from_zero(with_gradient(loss), len(bounds), **options)
    return torch.zeros(len(bounds), dtype=torch.float64) if best is None else torch.from_numpy(best)


def _log(value: Tensor) -> Tensor:
    return value.double().clamp_min(MIN_VARIANCE).log()
