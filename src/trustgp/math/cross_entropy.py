r"""Cross entropy as squared error, and the temperature of a classifier.

The pseudo-target of a row is where one Newton step on its loss leads: with p = softmax(z), the loss of a row
with label y has the gradient R = p - e_y and the curvature :math:`H = \mathrm{diag}(p) - p p^\top` in its
logits z. A row has one temperature, which grows with its latent variance v:

.. math:: p = \mathrm{softmax}(z / T), \qquad T = \sqrt{T_0^2 + \lambda_e v}

T_0 = 1 and lambda = pi / 8 is MacKay's approximation of the average of softmax(z) over Gaussian logits of
variance v. Held-out rows determine the scale of v (lambda, for all rows and for those of each expert e), and
whether the network is overconfident where v is small (T_0: temperature scaling is lambda = 0). All logits of
a row are divided by the same number, so the predicted class does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.trees import moved
from .held_out import HeldOutRows
from .quantiles import TailShares
from .search import MAX_LOG_STEP, minimise_from_zero, with_gradient

# H is singular along (1, ..., 1), and nearly so for confident predictions. This is added to its diagonal and
# bounds the step of a misclassified row to about 1 / FLOOR.
FLOOR = 0.01
SLOPE = math.pi / 8
OVERFIT_LOSS, MIN_OVERFIT_LOSS = 0.15, 1e-4  # of a network's training rows; see `overfit_base`
BASE_STD = 0.5  # standard deviation of the prior of log T_0^2 about 0
SLOPE_STD = 3.0  # ... of log lambda about log(pi / 8): the scale of v is known to powers of ten only
EXPERT_STD = 0.5  # ... of an expert's log lambda about that of all
MIN_EXPERT_ROWS = 100  # held-out rows from which an expert has a lambda of its own
MAX_LOGITS = 2**22  # of the fit; evenly spread rows where there are more
MIN_FIT_ROWS = 1000  # rows that are used in any case
NUM_POOLED, MIN_MEASURE = 3, 1e-12  # measures of novelty; the least, so that its logarithm is finite
SOFTNESS = 3.0  # temperature of the entropy that measures novelty


def newton_step(logits: Tensor, labels: Tensor, *, floor: float = FLOOR) -> Tensor:
    r"""The step :math:`-(H + \epsilon I)^{-1} R` in the logits z [n, C], of class numbers y [n], float64.

    With D = diag(p) + epsilon I it is, by Sherman and Morrison,

    .. math:: -D^{-1} R - D^{-1} p \, \frac{p^\top D^{-1} R}{1 - p^\top D^{-1} p}, \qquad
        1 - p^\top D^{-1} p = \epsilon \sum_c \frac{p_c}{p_c + \epsilon} ,

    so a row costs O(C). Its entries add up to 0. With a single logit, p = sigmoid(z) and
    that of the second of two classes, the step is :math:`(y - p) / (p (1 - p) + \epsilon)`.
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

    Of a single logit it is the difference of both classes' logarithms.
    """
    if logits.ndim == 3 and logits.shape[2] > 1:
        return logits.log_softmax(dim=2).logsumexp(dim=0) - math.log(len(logits))
    each = torch.nn.functional.logsigmoid(torch.stack([logits, -logits])).logsumexp(dim=1)
    return each[0] - each[1]


def log_entropy(logits: Tensor) -> Tensor:
    """The logarithm of the entropy of softmax(z / 3), from logits z [n, C], float64 [n]: that of softmax(z)
    itself vanishes in most rows, and tells the unfamiliar ones less well."""
    log_p = (two_sided(logits.double()) / SOFTNESS).log_softmax(dim=1)
    return (-(log_p.exp() * log_p).sum(dim=1)).clamp_min(MIN_MEASURE).log()


@dataclass(frozen=True)
class Temperature:
    """Temperatures from latent variances."""

    base: Tensor  # T_0^2, a scalar
    slope: Tensor  # lambda of all rows, a scalar
    slopes: Tensor  # lambda of the rows of each expert [M]

    @classmethod
    def default(cls, num_experts: int) -> Temperature:
        """T_0 = 1, lambda = pi / 8."""
        slope = torch.tensor(SLOPE, dtype=torch.float64)
        return cls(torch.ones_like(slope), slope, slope.repeat(num_experts))

    def __call__(self, variance: Tensor, expert: Tensor) -> Tensor:
        """T of rows of variance v, float64 [n], infinite where v is; `expert` is -1 for invalid rows."""
        slopes = torch.where(expert < 0, self.slope, self.slopes[expert.clamp_min(0)])
        return (self.base + slopes * variance).sqrt()


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
        """Without held-out rows the score grows with nu; it is infinite where v is."""
        one = torch.ones((), dtype=torch.float64)
        tails = TailShares.default(NUM_POOLED, start=math.log(MIN_MEASURE))
        return cls(torch.finfo(torch.float64).max * one, one, tails.table)

    @classmethod
    def fit(cls, measures: Tensor) -> UsualNovelty:
        """Of held-out rows with v, nu, log distance and log entropy [n, 4]."""
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
        """The score of rows with these measures [n, 4], float64 [n], infinite where the variance is."""
        score = TailShares(self.tails)(self.pooled(measures))
        return torch.where(measures[:, 0] == torch.inf, torch.inf, score)


@dataclass(frozen=True)
class ClassCalibrationRows(HeldOutRows):
    """Held-out rows with labels."""

    logits: Tensor  # z [n, C]; C = 1: of the second of two classes
    labels: Tensor  # class numbers [n]
    variance: Tensor  # v [n], float64
    expert: Tensor  # index of the row's expert [n]
    measures: Tensor  # of novelty [n, 4], float64

    def thinned(self) -> ClassCalibrationRows:
        """These rows, or evenly spread ones where there are more than a fit needs."""
        most = max(MIN_FIT_ROWS, MAX_LOGITS // self.logits.shape[1])
        return moved(self, lambda values: values[evenly(len(self), most)])


def tempered_nll(rows: ClassCalibrationRows, temperature: Tensor) -> Tensor:
    """Negative log likelihood of each row's label at these temperatures, shape [n], float64."""
    cooled = two_sided(rows.logits.double()) / temperature[:, None]
    return torch.logsumexp(cooled, dim=1) - cooled.gather(1, rows.labels[:, None]).squeeze(1)


def overfit_base(loss: Tensor) -> Tensor:
    r"""T_0^2 of a network that was trained on the held-out rows, from its mean cross entropy there.

    .. math:: T_0 = \max(1, (0.15 / \mathrm{loss})^{1/8})

    Such rows do not show how overconfident the network is on new ones, but the smaller their loss, the more
    it is. Of small networks, trained for few to many steps, the right temperature was higher in nearly all.
    """
    return (OVERFIT_LOSS / loss.clamp_min(MIN_OVERFIT_LOSS)).clamp_min(1.0).pow(0.25)


def fit_temperature(rows: ClassCalibrationRows, num_experts: int, *, seen: bool, local: bool) -> Temperature:
    """T_0, lambda and, if `local`, that of each expert, by maximum a posteriori with the priors above.

    On rows of its training set, `seen`, the network's overconfidence does not show: T_0 is `overfit_base`.
    """
    rows = rows.thinned()
    usual = tempered_nll(rows, torch.ones_like(rows.variance)).mean()
    start = overfit_base(usual) if seen else torch.ones_like(usual)
    spread = torch.tensor([BASE_STD, SLOPE_STD], dtype=torch.float64)
    free = torch.tensor([0.0 if seen else 1.0, 1.0], dtype=torch.float64)
    base, slope = _fit(rows, free, spread, lambda own: start * own[0] + SLOPE * own[1] * rows.variance)
    base, slope = start * base, SLOPE * slope
    slopes = slope.repeat(num_experts)
    if local:
        free = (torch.bincount(rows.expert, minlength=num_experts) >= MIN_EXPERT_ROWS).double()
        spread = torch.full_like(free, EXPERT_STD)
        own = _fit(rows, free, spread, lambda own: base + slope * own[rows.expert] * rows.variance)
        slopes = slopes * own
    return Temperature(base, slope, slopes)


def _fit(rows: ClassCalibrationRows, free: Tensor, spread: Tensor, squared: Callable[..., Tensor]) -> Tensor:
    """The factors of the best T^2 = `squared(factors)` [n], 1 where they are not `free`; never worse than
    with all of them 1."""

    def factors(steps: Tensor) -> Tensor:
        return (free * steps.clamp(-MAX_LOG_STEP, MAX_LOG_STEP)).exp()

    def loss(steps: Tensor) -> Tensor:
        fit = tempered_nll(rows, squared(factors(steps)).sqrt()).sum()
        return (fit + 0.5 * (steps / spread).square().sum()) / len(rows)

    steps = minimise_from_zero(with_gradient(loss), len(free), max_iter=100, tolerance=1e-14)
    return factors(torch.zeros_like(free) if steps is None else torch.from_numpy(steps))
