"""From how well something is known to how sure its class and its edges are; fitted to held-out detections."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import StudentT

from ..math.search import minimise_from_zero, with_gradient

STEPS, EXACT = 500, 1e-15  # to the end, so that machines which round otherwise agree
TINY = 1e-3  # of u and w: below this nothing is better known
MOST = 3.0  # powers of u and w
FREE = 6.0  # that a logarithm may be from where the search begins
COLD = 3.0  # the same of the least temperature: colder ones are all alike
LEAST_ERROR = 1e-6  # pixels: of a detector that is always right


@dataclass(frozen=True)
class ClassTemperature:
    r"""Probabilities are softmax(z / T), with :math:`T^2 = T_0^2 + \lambda u`."""

    least: Tensor  # T_0, a scalar
    growth: Tensor  # lambda, a scalar

    def __call__(self, logits: Tensor, unknown: Tensor) -> Tensor:
        """Of the classes and, last, of no object, [k, C + 1], from logits like that and u [k]."""
        least, growth = (part.to(logits.device) for part in (self.least, self.growth))
        heat = (least.square() + growth * unknown.double()).sqrt()
        return (logits.double() / heat[:, None]).softmax(dim=1)

    @classmethod
    def fit(cls, logits: Tensor, unknown: Tensor, labels: Tensor) -> ClassTemperature:
        """The likeliest, from held-out queries: logits [m, C + 1], u [m] and true classes, int64 [m]."""
        logits, unknown, labels = logits.cpu(), unknown.cpu(), labels.cpu()

        def of(free: Tensor) -> ClassTemperature:
            return cls(free[0].exp(), 0.1 * free[1].exp())

        def loss(free: Tensor) -> Tensor:
            told = of(free)(logits, unknown)
            return -told.gather(1, labels[:, None]).clamp_min(1e-300).log().mean()

        found = minimise_from_zero(
            with_gradient(loss), 2, max_iter=STEPS, tolerance=EXACT, bounds=[(-COLD, FREE), (-FREE, FREE)]
        )
        return of(torch.zeros(2, dtype=torch.float64) if found is None else torch.from_numpy(found))


@dataclass(frozen=True)
class EdgeNoise:
    r"""How far off left, top, right and bottom of a box are, in pixels: Student's t, of the scale

    .. math:: \sigma_c = a_c \, u^\gamma \, w^\delta

    where u says how little is known of the query, and w of the picture.
    """

    level: Tensor  # a, [4]
    growth: Tensor  # gamma, a scalar
    picture: Tensor  # delta, a scalar
    df: Tensor  # of the tails, above 2, a scalar

    def scale(self, unknown: Tensor, picture: Tensor) -> Tensor:
        """sigma, float64, [k, 4], from u, [k] or [k, 4], and w [k]."""
        level, growth, share = (p.to(unknown.device) for p in (self.level, self.growth, self.picture))
        own = unknown if unknown.ndim == 2 else unknown[:, None]
        return level * (growth * _log(own) + share * _log(picture)[:, None]).exp()

    def std(self, unknown: Tensor, picture: Tensor) -> Tensor:
        """The standard deviation of each edge, float64, [k, 4]."""
        return self.scale(unknown, picture) * (self.df / (self.df - 2.0)).sqrt().to(unknown.device)

    @classmethod
    def fit(cls, held: EdgeErrors, changed: EdgeErrors | None = None) -> EdgeNoise:
        """The likeliest for held-out boxes.

        Where there are boxes of `changed` pictures, too, gamma and delta are those of both: in held-out
        pictures, like those of training, u and w hardly differ. Levels and tails are of the held-out ones.
        """
        powers = None
        if changed is not None:
            powers = _likeliest(cls, EdgeErrors.joined(held, changed), None)
        return _likeliest(cls, held, None if powers is None else (powers.growth, powers.picture))


@dataclass(frozen=True)
class EdgeErrors:
    """Of boxes that have found a thing."""

    errors: Tensor  # in pixels, [m, 4]
    unknown: Tensor  # u, [m] or [m, 4]
    picture: Tensor  # w, [m]

    @classmethod
    def joined(cls, *parts: EdgeErrors) -> EdgeErrors:
        """All of them."""
        names = ("errors", "unknown", "picture")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def _likeliest(kind: type[EdgeNoise], given: EdgeErrors, powers: tuple[Tensor, Tensor] | None) -> EdgeNoise:
    """Under which the errors are likeliest; powers: gamma and delta, None: they are looked for."""
    parts = (given.errors, given.unknown, given.picture)
    errors, unknown, picture = (part.detach().cpu().double() for part in parts)
    typical = errors.square().mean(dim=0).sqrt().clamp_min(LEAST_ERROR)
    usual = _log(unknown).mean(), _log(picture).mean()  # where a is looked for

    def of(free: Tensor) -> EdgeNoise:
        growth, share = (free[5], free[6]) if powers is None else powers
        level = typical * (free[:4] - growth * usual[0] - share * usual[1]).exp()
        return kind(level, growth, share, 2.0 + 4.0 * free[4].exp())

    def loss(free: Tensor) -> Tensor:
        noise = of(free)
        told = StudentT(noise.df, 0.0, noise.scale(unknown, picture), validate_args=False)
        return -told.log_prob(errors).mean()

    bounds = [(-FREE, FREE)] * 5 + ([(0.0, MOST)] * 2 if powers is None else [])
    found = minimise_from_zero(
        with_gradient(loss), len(bounds), max_iter=STEPS, tolerance=EXACT, bounds=bounds
    )
    return of(torch.zeros(len(bounds), dtype=torch.float64) if found is None else torch.from_numpy(found))


def _log(value: Tensor) -> Tensor:
    return value.double().clamp_min(TINY).log()
