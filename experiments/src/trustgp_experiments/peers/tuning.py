"""Parameters that the peers fit to the validation rows, and their predictions of classes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from trustgp.data.rows import Rows, read_rows
from trustgp.data.trees import Inputs
from trustgp.likelihoods.prediction import Prediction
from trustgp.math.calibration_fit import PRIOR_STD
from trustgp.metrics import entropy
from trustgp.tangents.network import as_matrix

from ..training.train import answer, errors, valid_rows
from .tails import Tails, rare_of

GRID, ZOOMS = 41, 5  # five zooms of 41 points: a logarithm to better than 1e-5
LOWEST = 1e-8  # least noise, over the largest squared error
COARSE = 17  # points per axis of the table that starts the search for scale and noise
COLDEST, HOTTEST = 1e-2, 1e2  # range of temperatures


class Diverged(ValueError):
    """The training of a peer's network has diverged."""


@dataclass(frozen=True)
class NoisyPeer:
    """A regression peer: mean and epistemic variance by its `moments`, and parameters fitted to validation
    rows, which are the scale of that variance, a constant noise, and tails."""

    # of each output, [C], float64
    noise: Tensor = field(default_factory=lambda: torch.zeros(1), kw_only=True)
    scale: float = field(default=1.0, kw_only=True)  # of the variance
    tails: Tails | None = field(default=None, kw_only=True)  # None: Gaussian

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs without their noise, each [n] or [n, C]."""
        raise NotImplementedError

    def predict(self, inputs: Inputs) -> Prediction:
        """Prediction with the scaled variance as epistemic, and the same noise for every row."""
        mean, spread = self.moments(inputs)
        prediction = answer(inputs, mean, self.scale * spread, self.noise)
        return prediction if self.tails is None else self.tails.on(prediction)

    def against(self, rows: Any) -> tuple[Tensor, Tensor]:
        """Errors and unscaled variances on rows with targets, each [n, C], float64."""
        rows = read_rows(rows, name="validation")
        mean, spread = self.moments(rows.inputs)
        return errors(mean, rows), as_matrix(spread).double()

    def noisy(self, validation: Any) -> Self:
        """Copy with the noise that makes the validation rows most likely; nothing else changes."""
        return replace(self, noise=likeliest_noise(*self.against(validation)))

    def fitted(self, validation: Any, train: Any = None) -> Self:
        """Copy with the scale and the noise, then the tails, that make the validation rows most likely.

        Only the targets of training rows are used: see `trustgp.math.calibration.OutlierPrior`.
        """
        error, spread = self.against(validation)
        if bool((spread > 0).any()):
            scale, noise = likeliest_scale(error, spread, pull=PRIOR_STD)
        else:
            scale, noise = 1.0, likeliest_noise(error, spread)
        return replace(self, scale=scale, noise=noise)._tailed(error, spread, validation, train)

    def tailed(self, validation: Any, train: Any = None) -> Self:
        """Copy with fitted tails, and the same scale and noise."""
        return self._tailed(*self.against(validation), validation, train)

    def _tailed(self, error: Tensor, spread: Tensor, validation: Any, train: Any) -> Self:
        variance = self.scale * spread + self.noise.to(spread)
        rare = rare_of(validation if train is None else train)
        return replace(self, tails=Tails.fit(error, variance, rare))

    def scaled(self, validation: Any, train: Any = None) -> Self:
        """Copy without noise, with the most likely scale, then tails; raise `Diverged` if not finite."""
        error, spread = self._finite(validation)
        noise, scale = torch.zeros(error.shape[1]).to(error), float((error.square() / spread).mean())
        return replace(self, noise=noise, scale=scale)._tailed(error, spread, validation, train)

    def likelier(self, validation: Any, train: Any) -> Self:
        """Copy by `tailed` or `fitted`, the more likely on validation rows; `Diverged` if not finite."""
        self._finite(validation)
        forms = self.tailed(validation, train), self.fitted(validation, train)
        return min(forms, key=lambda form: form.loss_on(validation))

    def _finite(self, validation: Any) -> tuple[Tensor, Tensor]:
        error, spread = self.against(validation)
        if not bool(torch.isfinite(error).all() & torch.isfinite(spread).all()):
            raise Diverged(f"{type(self).__name__} has diverged: it is not finite on the validation rows.")
        return error, spread

    def loss_on(self, rows: Any) -> float:
        """Mean negative log likelihood of rows; infinity if it is not finite."""
        rows = read_rows(rows, name="validation")
        prediction = self.predict(rows.inputs)
        targets = rows.targets.to(prediction.mean.device).reshape(prediction.mean.shape)
        loss = -float(prediction.log_prob(targets).mean())
        return loss if math.isfinite(loss) else math.inf


def zoom_minimum(loss: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Minimisers [C] of C functions, [C] to [C], with one minimum each, by zooming in on a grid."""
    left, right, best = low, high, low
    for _ in range(ZOOMS):
        step = (right - left) / (GRID - 1)
        losses = torch.stack([loss(left + i * step) for i in range(GRID)])  # [GRID, C]
        best = left + losses.argmin(dim=0) * step
        left, right = torch.maximum(best - step, low), torch.minimum(best + step, high)
    return best


def squared_errors(error: Tensor) -> Tensor:
    """Squared errors [n, C]; raise ValueError if an output has no error, since it has no noise to fit."""
    squared = error.square()
    if not bool((squared > 0).any(dim=0).all()):
        raise ValueError("an output has no error on the validation rows; pass rows it was not fitted to.")
    return squared


def likeliest_noise(error: Tensor, spread: Tensor) -> Tensor:
    r"""The constant noise of each output by maximum likelihood, by zooming in on a grid of its logarithm.

    .. math:: \arg\min_{\sigma^2} \sum_i \log(v_i + \sigma^2) + e_i^2 / (v_i + \sigma^2)

    It lies below the largest squared error, where the derivative is positive. Errors e and variances v are
    [n, C], noise variances [C].
    """
    squared = squared_errors(error)
    largest = squared.amax(dim=0)

    def loss(log_noise: Tensor) -> Tensor:
        total = spread + log_noise.exp()
        return (total.log() + squared / total).mean(dim=0)

    return zoom_minimum(loss, (LOWEST * largest).log(), largest.log()).exp()


def likeliest_scale(error: Tensor, spread: Tensor, *, pull: float = math.inf) -> tuple[float, Tensor]:
    r"""One factor on the variance and a constant noise for each output, by maximum likelihood.

    .. math:: \arg\min_{c, \sigma^2} \sum_{ij} \log w_{ij} + e_{ij}^2 / w_{ij}, \quad
              w_{ij} = c v_{ij} + \sigma_j^2

    L-BFGS in logarithms starts from the best entry of a coarse table. Errors e and variances v are [n, C],
    with v above zero somewhere; the result is c and noise variances [C]. A finite `pull` is the standard
    deviation of a prior of log c about 0: it keeps c from running to 0 where v is not related to e.
    """
    squared = squared_errors(error)
    size = squared.mean(dim=0)
    ratio = float(size.sum() / spread.mean(dim=0).sum())
    if not math.isfinite(ratio):
        raise ValueError("the variance on the validation rows is zero or not finite: nothing to scale.")
    shares = torch.logspace(-6, 1, COARSE, dtype=error.dtype, device=error.device)

    def loss(log_scale: Tensor, log_noise: Tensor) -> Tensor:
        total = spread * log_scale.exp() + log_noise.exp()
        return (total.log() + squared / total).mean(dim=0)  # [C]

    lines = [torch.stack([loss((ratio * c).log(), (size * s).log()) for s in shares]) for c in shares]
    table = torch.stack(lines)  # [scales, noises, C]
    weight = 1.0 / (pull**2 * error.numel())
    best = int((table.amin(dim=1).mean(dim=1) + weight * (ratio * shares).log().square()).argmin())
    noise = shares[table[best].argmin(dim=0)] * size
    free = torch.cat([(ratio * shares[best]).log()[None], noise.log()]).requires_grad_(True)
    optimiser = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        total = loss(free[0], free[1:]).mean() + weight * free[0].square()
        total.backward()
        return total

    with torch.enable_grad():
        optimiser.step(closure)
    values = free.detach().exp()
    return float(values[0]), values[1:].clamp_min(LOWEST * squared.amax(dim=0))


def held_out_nll(error: Tensor, variance: Tensor) -> float:
    """Mean negative log likelihood of Gaussian errors, both of shape [n, C]."""
    return float(0.5 * (torch.log(2 * math.pi * variance) + error.square() / variance).mean())


def likeliest_temperature(logits: Tensor, labels: Tensor) -> float:
    r"""Temperature T by maximum likelihood (Guo et al. 2017), by zooming in on a grid of its logarithm.

    .. math:: \arg\min_T -\sum_i \log \tfrac1S \sum_s \mathrm{softmax}(z_{si} / T)_{y_i}

    Logits z are [n, C], or [S, n, C] of members whose probabilities are averaged; labels y are [n]. With one
    network the sum is convex in 1/T, so the grid cannot miss its minimum; with several it need not be, and of
    several minima the lowest on the first grid is followed.
    """
    logits, labels = logits.double().reshape(-1, *logits.shape[-2:]), labels.to(logits.device)
    check_labels(logits[0], labels, name="validation")
    places = labels[None, :, None].expand(len(logits), -1, 1)

    def loss(log_temperature: Tensor) -> Tensor:
        chances = (logits / log_temperature.exp()).log_softmax(dim=2).gather(2, places)[..., 0]
        return -chances.logsumexp(dim=0).mean()[None]  # without log S, which is the same for all

    low, high = (logits.new_tensor([end]).log() for end in (COLDEST, HOTTEST))
    return float(zoom_minimum(loss, low, high).exp())


@dataclass(frozen=True)
class ClassAnswer:
    """A class prediction, with the attribute names of a model's with `trustgp.Classification()`."""

    mean: Tensor  # logits: those of the network, or the mean over members  [n, C]
    probabilities: Tensor  # of the classes  [n, C]
    valid: Tensor  # False for rows with NaN or infinite inputs or logits  [n]
    variance: Tensor | None = None  # of each logit, over members or weights; None: not known  [n, C]
    mutual_information: Tensor | None = None  # of class and member, in nats; None: no members  [n]

    @property
    def score(self) -> Tensor | None:
        """Mean variance of the logits as one novelty score per row, shape [n]; None: the peer has none."""
        return None if self.variance is None else self.variance.mean(dim=1)


def read_labels(data: object, *, name: str) -> tuple[Rows, Tensor]:
    """Rows and their class numbers, int64, shape [n]; error messages use `name`."""
    rows = read_rows(data, name=name)
    labels = rows.targets
    if labels.shape[1] != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        given = f"{name} targets are {labels.dtype} of shape {tuple(labels.shape)}"
        raise ValueError(f"{given}; class numbers are needed, int64 of shape [n].")
    return rows, labels[:, 0].long()


def check_labels(logits: Tensor, labels: Tensor, *, name: str) -> None:
    """Raise ValueError unless there is a logit [n, C] for every label [n]."""
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(f"the network gives {tuple(logits.shape)}; logits [n, C] with C >= 2 are needed.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= logits.shape[1]:
        raise ValueError(f"{name} labels lie in {low}..{high}; 0..{logits.shape[1] - 1} are allowed.")


def answer_classes(
    inputs: Inputs, logits: Tensor, probabilities: Tensor, variance: Tensor | None = None
) -> ClassAnswer:
    """Prediction of one network; the variance is infinite in invalid rows."""
    valid = valid_rows(inputs, logits)
    if variance is not None:
        variance = torch.where(valid[:, None], variance, torch.inf)
    return ClassAnswer(logits, probabilities, valid, variance)


def answer_members(inputs: Inputs, logits: Tensor) -> ClassAnswer:
    r"""Prediction of several networks with logits [S, n, C]: the mean of their probabilities.

    .. math:: I = H(\bar p) - \tfrac1S \sum_s H(p_s), \qquad v_c = \tfrac1S \sum_s (z_{sc} - \bar z_c)^2
    """
    probabilities = logits.softmax(dim=2)
    mean = probabilities.mean(dim=0)
    within = torch.stack([entropy(one) for one in probabilities]).mean(dim=0)
    information = (entropy(mean) - within).clamp_min(0.0)  # rounding may take it below zero
    plain = answer_classes(inputs, logits.mean(dim=0), mean, logits.var(dim=0, correction=0))
    information = torch.where(plain.valid, information, math.log(logits.shape[2])).to(mean.dtype)
    return replace(plain, mutual_information=information)
