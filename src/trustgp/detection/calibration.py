"""From posterior variances to class probabilities and error bars of edges, fitted to held-out detections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import StudentT

from ..data.trees import concatenate
from ..math.search import minimise_from_zero, with_gradient

MAX_STEPS, TOLERANCE = 500, 1e-15  # to convergence, so that machines which round otherwise agree
MIN_VARIANCE = 1e-3  # of u and w
MAX_POWER = 3.0  # of u and w
MAX_LOG = 6.0  # distance of a logarithm from where the search begins
MAX_LOG_COLD = 3.0  # the same below T_0: colder ones are all alike
MIN_ERROR = 1e-6  # pixels: of a detector without errors
EdgeErrors = tuple[Tensor, Tensor, Tensor]  # of matched boxes: in pixels [m, 4], u [m] or [m, 4], w [m]


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
        noise = of(free)
        noise_of_edges = StudentT(noise.df, 0.0, noise.scale(variance, picture), validate_args=False)
        return -noise_of_edges.log_prob(errors).mean()

    bounds = [(-MAX_LOG, MAX_LOG)] * 5 + ([(0.0, MAX_POWER)] * 2 if powers is None else [])
    return of(_best(loss, bounds))


def _best(loss: Callable[[Tensor], Tensor], bounds: list[tuple[float, float]]) -> Tensor:
    """Where the loss is lowest within bounds; zeros where the search fails."""
    options = {"max_iter": MAX_STEPS, "tolerance": TOLERANCE, "bounds": bounds}
    best = minimise_from_zero(with_gradient(loss), len(bounds), **options)
    return torch.zeros(len(bounds), dtype=torch.float64) if best is None else torch.from_numpy(best)


def _log(value: Tensor) -> Tensor:
    return value.double().clamp_min(MIN_VARIANCE).log()
