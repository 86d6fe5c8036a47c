r"""Cross entropy as squared error, and the temperature of a classifier.

The pseudo-target of a row is where one Newton step on its loss leads: with p = softmax(z), the loss of a row
with label y has the gradient R = p - e_y and the curvature :math:`H = \mathrm{diag}(p) - p p^\top` in its
logits z. Probabilities are the mean over the latent noise of the logits, at a temperature that grows with
their variances:

.. math:: p = E \, \mathrm{softmax}((z + e) / T), \qquad T = \sqrt{T_0^2 + \lambda v + \mu u}, \qquad
    e \sim N(0, \lambda V)

V is the covariance of the leading classes in the posterior of all rows (see `logit_noise`), v the variance
there of one fixed combination of all logits, and u that of the experts, which know the rows nearby: far away
it grows where v does not. Where there is no posterior of all rows, v = e = 0: T_0 = 1 and mu = pi / 8 is then
MacKay's approximation of the average over Gaussian logits of variance u. Held-out rows determine T_0, lambda
and mu; one temperature is lambda = mu = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..data.chunking import evenly
from ..data.trees import moved
from .held_out import HeldOutRows
from .logit_noise import NUM_DRAWS, log_probabilities
from .quantiles import TailShares
from .search import MAX_LOG_STEP, minimise_from_zero, with_gradient

# H is singular along (1, ..., 1), and nearly so for confident predictions. This is added to its diagonal and
# bounds the step of a misclassified row to about 1 / FLOOR.
FLOOR = 0.01
SLOPE = math.pi / 8
OVERFIT_LOSS, MIN_OVERFIT_LOSS = 0.15, 1e-4  # of a network's training rows; see `overfit_base`
BASE_STD = 1.0  # standard deviation of the prior of log T_0^2 about 0
SLOPE_STD = 3.0  # ... of log lambda and log mu about log(pi / 8): scales are known to powers of ten only
CHANCE = 1.0  # nats in all: the fit is kept unless one temperature is likelier by as much
MAX_SCALE_POWER, SCALE_LOSS = 16, 0.05  # of 2: scales of logits that are tried; nats that do not matter
MAX_LOGITS = 2**22  # of the fit; evenly spread rows where there are more
MIN_FIT_ROWS = 1000  # rows that are used in any case
NUM_POOLED, MIN_MEASURE = 3, 1e-12  # measures of novelty; the least, so that its logarithm is finite
SOFTNESS = 3.0  # temperature of the entropy that measures novelty


def newton_step(logits: Tensor, labels: Tensor, *, floor: float = FLOOR) -> Tensor:
    r"""The step :math:`-(H + \epsilon I)^{-1} R` in the logits z [n, C], of class numbers y [n], float64.

    With D = diag(p) + epsilon I it is, by Sherman and Morrison,

    .. math:: -D^{-1} R - D^{-1} p \, \frac{p^\top D^{-1} R}{1 - p^\top D^{-1} p}, \qquad
        1 - p^\top D^{-1} p = \epsilon \sum_c \frac{p_c}{p_c + \epsilon} ,

    so a row costs O(C). Its entries add up to 0. With a single logit, p = sigmoid(z)
    is the probability of the second of two classes, and the step is :math:`(y - p) / (p (1 - p) + \epsilon)`.
    """
    z, gradient = logits.double(), loss_gradient(logits, labels)
    if z.shape[1] == 1:
        p = z.sigmoid()
        return -gradient / (p * (1 - p) + floor)
    p = z.softmax(dim=1)
    inside, direction = gradient / (p + floor), p / (p + floor)
    share = (p * inside).sum(dim=1) / (floor * direction.sum(dim=1))
    return -(inside + direction * share[:, None])


def loss_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """R = p - e_y, shape [n, C], float64; with a single logit p - y."""
    z = logits.double()
    if z.shape[1] == 1:
        return z.sigmoid() - labels[:, None].double()
    gradient = z.softmax(dim=1)
    gradient[torch.arange(len(z), device=z.device), labels] -= 1.0
    return gradient


def two_sided(logits: Tensor) -> Tensor:
    """Logits of at least two classes: a single one, z, becomes the equivalent pair (0, z)."""
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits


def mean_logits(logits: Tensor) -> Tensor:
    r"""Logits of the mean of M networks' probabilities, from theirs [M, n] or [M, n, C].

    .. math:: \log \tfrac{1}{M} \sum_m \mathrm{softmax}(z_m)_c

    With a single logit, it is the difference of both classes' logarithms.
    """
    if logits.ndim == 3 and logits.shape[2] > 1:
        return logits.log_softmax(dim=2).logsumexp(dim=0) - math.log(len(logits))
    each = torch.nn.functional.logsigmoid(torch.stack([logits, -logits])).logsumexp(dim=1)
    return each[0] - each[1]


def log_entropy(logits: Tensor) -> Tensor:
    """Logarithm of the entropy of softmax(z / 3), from logits z [n, C], float64 [n]: that of softmax(z)
    itself vanishes in most rows, and detects unfamiliar ones less well."""
    log_p = (two_sided(logits.double()) / SOFTNESS).log_softmax(dim=1)
    return (-(log_p.exp() * log_p).sum(dim=1)).clamp_min(MIN_MEASURE).log()


@dataclass(frozen=True)
class Temperature:
    """Temperature and noise of the logits, as functions of their latent variances."""

    base: Tensor  # T_0^2, a scalar
    slope: Tensor  # lambda, a scalar
    expert: Tensor  # mu, a scalar

    @classmethod
    def default(cls) -> Temperature:
        """Temperature with T_0 = 1, lambda = mu = pi / 8."""
        slope = torch.tensor(SLOPE, dtype=torch.float64)
        return cls(torch.ones_like(slope), slope, slope)

    def __call__(self, variances: Tensor) -> Tensor:
        """Temperature T of rows with variances v and u [n, 2], float64 [n], infinite where u is."""
        return (self.base + self.slope * variances[:, 0] + self.expert * variances[:, 1]).sqrt()

    def covariance(self, latent: Tensor) -> Tensor:
        """Covariance lambda D [n, k - 1, k - 1], from D [n, (k - 1)^2] of the differences of logits."""
        return (self.slope * latent).unflatten(1, (math.isqrt(latent.shape[1]), -1))


@dataclass(frozen=True)
class UsualNovelty:
    r"""The distribution of the novelty measures among held-out rows: three opinions, pooled.

    .. math:: \mathrm{score} = -\tfrac13 \sum_k \log \Pr( M_k > m_k ), \qquad
        m_1 = \max( v / \mathrm{median}(v), \; \nu / \mathrm{median}(\nu) )

    The first is the latent variance v, or its share nu of the prior variance, over that of a typical row: it
    detects images of another kind. The second, the distance to training rows in the last hidden layer, and
    the third, the entropy of the softened probabilities, detect new classes among familiar ones.
    """

    variance: Tensor  # median of v, a scalar
    novelty: Tensor  # median of nu, a scalar
    tails: Tensor  # of `TailShares`, of the logarithms of the three [3, 3, Q]

    @classmethod
    def default(cls) -> UsualNovelty:
        """Distribution without held-out rows: the score grows with nu, and is infinite where v is."""
        one = torch.ones((), dtype=torch.float64)
        tails = TailShares.default(NUM_POOLED, start=math.log(MIN_MEASURE))
        return cls(torch.finfo(torch.float64).max * one, one, tails.table)

    @classmethod
    def fit(cls, measures: Tensor) -> UsualNovelty:
        """Distribution of held-out rows with v, nu, log distance and log entropy [n, 4]."""
        least = torch.finfo(torch.float64).tiny
        variance, novelty = (each.median().clamp_min(least) for each in measures[:, :2].unbind(dim=1))
        usual = cls(variance, novelty, measures)
        return replace(usual, tails=TailShares.fit(usual.pooled(measures)).table)

    def pooled(self, measures: Tensor) -> Tensor:
        """Logarithms of the three measures [n, 3]."""
        variance, novelty, *others = measures.unbind(dim=1)
        own = torch.maximum(variance / self.variance, novelty / self.novelty)
        return torch.stack([own.clamp_min(MIN_MEASURE).log(), *others], dim=1)

    def __call__(self, measures: Tensor) -> Tensor:
        """Score of rows with these measures [n, 4], float64 [n], infinite where the variance is."""
        score = TailShares(self.tails)(self.pooled(measures))
        return torch.where(measures[:, 0] == torch.inf, torch.inf, score)


@dataclass(frozen=True)
class ClassCalibrationRows(HeldOutRows):
    """Held-out rows with labels."""

    logits: Tensor  # z [n, C]; C = 1: of the second of two classes
    labels: Tensor  # class numbers [n]
    measures: Tensor  # of novelty [n, 4], float64
    latent: Tensor  # v and u of the temperature [n, 2], float64
    covariance: Tensor  # D of the leading logits [n, (k - 1)^2]; [n, 0] where it is unknown

    def thinned(self) -> ClassCalibrationRows:
        """These rows, or evenly spread ones where there are more than a fit needs."""
        drawn = NUM_DRAWS * (math.isqrt(self.covariance.shape[1]) + 2) if self.covariance.shape[1] else 0
        most = max(MIN_FIT_ROWS, MAX_LOGITS // max(drawn, self.logits.shape[1]))
        return moved(self, lambda values: values[evenly(len(self), most)])


def class_nll(rows: ClassCalibrationRows, temperature: Temperature) -> Tensor:
    """Negative log likelihood of each row's label, shape [n], float64."""
    spread = temperature(rows.latent)
    logs = two_sided(rows.logits.double()) / spread[:, None]
    if rows.covariance.shape[1]:
        logs = log_probabilities(logs, temperature.covariance(rows.covariance / spread.square()[:, None]))
    return torch.logsumexp(logs, dim=1) - logs.gather(1, rows.labels[:, None]).squeeze(1)


def overfit_base(loss: Tensor) -> Tensor:
    r"""T_0^2 of a network that was trained on the held-out rows, from its mean cross entropy there.

    .. math:: T_0 = \max(1, (0.15 / \mathrm{loss})^{1/8})

    Such rows do not show how overconfident the network is on new ones, but the smaller their loss, the more
    it is. Nearly all of the small networks tried, trained for few to many steps, needed a higher one.
    """
    return (OVERFIT_LOSS / loss.clamp_min(MIN_OVERFIT_LOSS)).clamp_min(1.0).pow(0.25)


def fit_temperature(rows: ClassCalibrationRows, *, seen: bool) -> Temperature:
    """Fit T_0, lambda and mu by maximum a posteriori with the priors above, never less likely than default,
    nor, beyond chance, than the best single temperature.

    On rows of its training set, `seen`, the network's overconfidence does not show: T_0 is `overfit_base`.
    """
    rows, default = rows.thinned(), Temperature.default()
    none = default.slope * math.exp(-MAX_LOG_STEP)
    if seen:
        usual = class_nll(rows, Temperature(default.base, 0.0 * none, 0.0 * none)).mean()
        return _fit(rows, replace(default, base=overfit_base(usual)), torch.tensor([0.0, 1.0, 1.0]))
    plain = replace(rows, covariance=rows.covariance[:, :0])  # without noise there is nothing to draw
    single = _fit(plain, Temperature(default.base, none, none), torch.tensor([1.0, 0.0, 0.0]))
    every = _fit(rows, default, torch.ones(3))
    loss, least = (float(class_nll(rows, one).sum()) for one in (every, single))
    return every if loss < least + CHANCE else single


def likeliest_scale(rows: ClassCalibrationRows) -> float:
    """Power of 2 that divides the logits of held-out rows about best; of several, the one nearest to 1."""
    rows, powers = rows.thinned(), sorted(range(-MAX_SCALE_POWER, MAX_SCALE_POWER + 1), key=abs)
    logits = two_sided(rows.logits.double())
    losses = [float(nn.functional.cross_entropy(logits / 2.0**power, rows.labels)) for power in powers]
    best = min(losses) + SCALE_LOSS
    return next(2.0**power for power, loss in zip(powers, losses, strict=True) if loss <= best)


def _fit(rows: ClassCalibrationRows, start: Temperature, free: Tensor) -> Temperature:
    """Likeliest temperature, never worse than `start`; T_0, lambda and mu change only where they are `free`
    (1, not 0)."""
    spread = torch.tensor([BASE_STD, SLOPE_STD, SLOPE_STD], dtype=torch.float64)

    def temperature(steps: Tensor) -> Temperature:
        factors = (free * steps.clamp(-MAX_LOG_STEP, MAX_LOG_STEP)).exp()
        return Temperature(start.base * factors[0], start.slope * factors[1], start.expert * factors[2])

    def loss(steps: Tensor) -> Tensor:
        return (class_nll(rows, temperature(steps)).sum() + 0.5 * (steps / spread).square().sum()) / len(rows)

    steps = minimise_from_zero(with_gradient(loss), 3, max_iter=100, tolerance=1e-14)
    return temperature(torch.zeros_like(spread) if steps is None else torch.from_numpy(steps))
