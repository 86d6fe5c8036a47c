"""Ways to predict with a Laplace posterior: linearised (rLaplace), by sampling the weights, and for classes.

All choose the prior precision by the likelihood of the validation rows, on a grid around the one of the
largest evidence; in regression they also choose the noises of the posterior and of the outputs.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from trustgp.data.rows import Rows, read_rows
from trustgp.data.trees import Inputs
from trustgp.metrics import class_nll

from ..training.train import errors, run_network
from . import tuning
from .laplace_posterior import KronPosterior
from .members import at_least_two
from .sampled import SampledWeights
from .tuning import ClassAnswer, NoisyPeer

DECADES = range(-4, 5)  # powers of ten times the evidence's prior precision
HALF_DECADES = range(-8, 9)  # powers of the root of ten, likewise
SAMPLED_DECADES = range(-2, 5)  # a weaker prior makes sampled networks useless
SAMPLED_SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
TUNING_ROWS = 1000  # of the validation rows, for the grid of sampled networks


@dataclass(frozen=True)
class LaplaceGLM(NoisyPeer):
    """A network linearised in its weights, whose posterior is Gaussian. Made by `fit`."""

    posterior: KronPosterior
    precision: Any  # the chosen P, laplace-torch's `KronDecomposed`

    @classmethod
    def fit(cls, posterior: KronPosterior, validation: Any, train: Any = None, *, tune: bool = True) -> Self:
        r"""Choose prior, posterior noise and output noise by the validation likelihood, then fit tails.

        A factor c on the variance is equivalent to another noise of the posterior:
        :math:`c (H / \sigma^2 + \delta)^{-1} = (H / (c \sigma^2) + \delta / c)^{-1}`. Without `tune`, the
        evidence's prior and its noise are kept, and only the outputs' noise is fitted, without tails.
        """
        if not tune:
            return cls(posterior, posterior.precision(posterior.prior, posterior.noise)).noisy(validation)
        rows, trials = read_rows(validation, name="validation"), []
        error = errors(run_network(posterior.network, rows.inputs), rows)
        for decade in DECADES:
            prior = posterior.prior * 10.0**decade
            precision = posterior.precision(prior, posterior.noise)
            spread = posterior.variances(rows.inputs, precision)[..., 0].double()
            scale, noise = tuning.likeliest_scale(error, spread)
            trials.append((tuning.held_out_nll(error, scale * spread + noise), prior, scale, noise))
        _, prior, scale, noise = min(trials, key=lambda trial: trial[0])
        precision = posterior.precision(prior / scale, posterior.noise * scale)
        return cls(posterior, precision, noise=noise).tailed(validation, train)

    def shipped(self) -> Any:
        factors = self.precision.eigenvectors, self.precision.eigenvalues  # all that is kept of the rows
        return self.posterior.network, factors, self.noise, self.tails

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        r"""The network's own output, and the diagonal of :math:`J P^{-1} J^\top`."""
        mean = run_network(self.posterior.network, inputs)
        return mean, self.posterior.variances(inputs, self.precision).reshape(mean.shape)


@dataclass(frozen=True)
class LaplaceSampled(SampledWeights):
    """Networks whose weights are drawn from the posterior. Made by `fit`."""

    @classmethod
    def fit(
        cls,
        posterior: KronPosterior,
        validation: Any,
        train: Any = None,
        *,
        samples: int = 20,
        seed: int = 0,
        tune: bool = True,
    ) -> Self:
        """Choose prior and posterior noise by the validation likelihood of samples, then fit scale, noise
        and tails. Without `tune`, keep those of the evidence and fit only the outputs' noise."""
        at_least_two(samples, "samples")
        if not tune:
            drawn = posterior.deviations(posterior.prior, posterior.noise, samples, seed)
            plain = cls(posterior.network, posterior.names, posterior.laplace.mean + drawn)
            plain._finite(validation)
            return plain.noisy(validation)
        rows = read_rows(validation, name="validation")
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:TUNING_ROWS]
        few = Rows(rows.take(chosen), rows.targets[chosen.to(rows.targets.device)])

        def trials() -> Iterator[Self]:
            for decade in SAMPLED_DECADES:
                prior = posterior.prior * 10.0**decade
                deviations = posterior.deviations(prior, posterior.noise, samples, seed)
                for scale in SAMPLED_SCALES:
                    weights = posterior.laplace.mean + scale**0.5 * deviations
                    yield cls(posterior.network, posterior.names, weights)

        return min(trials(), key=lambda trial: trial._loss(few)).fitted(rows, train)

    def _loss(self, rows: Rows) -> float:
        """Mean negative log likelihood of rows at their most likely noise; infinite after an overflow."""
        error, spread = self.against(rows)
        if not bool(torch.isfinite(spread).all() and torch.isfinite(error).all()):
            return math.inf
        return tuning.held_out_nll(error, spread + tuning.likeliest_noise(error, spread))


@dataclass(frozen=True)
class LaplaceClassifier:
    """A classifier linearised in its weights, whose posterior is Gaussian. Made by `fit`."""

    posterior: KronPosterior
    prior: float  # the prior precision that is used
    temperature: float = 1.0  # T, by which logits are divided after the probit

    @classmethod
    def fit(cls, network: nn.Module, train: Any, validation: Any = None, *, last_layer: bool = False) -> Self:
        """Fit KFAC to all training rows, and prior and temperature to the validation rows; without these,
        keep the evidence's prior."""
        rows, labels = tuning.read_labels(train, name="train")
        still = copy.deepcopy(network).eval()
        if isinstance(rows.inputs, Tensor):
            tuning.check_labels(run_network(still, rows.inputs[:2]), labels, name="train")
        posterior = KronPosterior.of(still, rows.inputs, labels, noise=None, last_layer=last_layer)
        fitted = cls(posterior, posterior.prior)
        return fitted if validation is None else fitted.tuned(validation)

    def shipped(self) -> Any:
        kron = self.posterior.laplace.H
        return self.posterior.network, kron.eigenvectors, kron.eigenvalues

    def predict(self, inputs: Inputs) -> ClassAnswer:
        r"""Class probabilities by MacKay's probit approximation: less certain where logits vary more.

        .. math:: \mathrm{softmax}_c \Bigl( \frac{z_c}{T \sqrt{1 + \pi v_c / 8}} \Bigr), \;
                  v = \mathrm{diag}(J P^{-1} J^\top)
        """
        logits = run_network(self.posterior.network, inputs)
        variance = self.variances(inputs, [self.prior])[..., 0]
        chances = (_probit(logits, variance) / self.temperature).softmax(dim=1)
        return tuning.answer_classes(inputs, logits, chances, variance)

    def variances(self, inputs: Inputs, priors: Sequence[float]) -> Tensor:
        """Variance of each logit under each of D prior precisions, chunk by chunk, shape [n, C, D]."""
        return self.posterior.variances(inputs, self.posterior.laplace.H, priors)

    def tuned(self, validation: Any, *, prior: bool = True) -> Self:
        """Copy with the most likely temperature and prior on held-out rows, each prior with its own best
        temperature; without `prior`, the prior is kept."""
        rows, labels = tuning.read_labels(validation, name="validation")
        logits = run_network(self.posterior.network, rows.inputs)
        tuning.check_labels(logits, labels, name="validation")
        labels, steps = labels.to(logits.device), HALF_DECADES if prior else (0,)
        priors = [self.prior * math.sqrt(10.0) ** step for step in steps]
        trials = []
        for one, variance in zip(priors, self.variances(rows.inputs, priors).unbind(dim=2), strict=True):
            scaled = _probit(logits, variance)
            temperature = tuning.likeliest_temperature(scaled, labels)
            loss = float(class_nll((scaled / temperature).softmax(dim=1), labels).mean())
            trials.append((loss, one, temperature))
        _, best, temperature = min(trials)
        return replace(self, prior=best, temperature=temperature)


def _probit(logits: Tensor, variance: Tensor) -> Tensor:
    r""":math:`z_c / \sqrt{1 + \tfrac\pi8 v_c}`, all of shape [n, C]."""
    return logits / torch.sqrt(1.0 + math.pi / 8 * variance)
