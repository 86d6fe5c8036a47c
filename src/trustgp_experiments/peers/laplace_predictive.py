"""Ways to predict with a Laplace posterior: linearised (rLaplace), by sampling the weights, and for classes.

All choose the prior precision by the likelihood of the validation rows, on a grid around the one that the
evidence prefers; in regression the posterior's noise and the outputs' too.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from trustgp.data.chunking import chunks
from trustgp.data.rows import Rows, read_rows
from trustgp.data.trees import Inputs, as_inputs, count, take, to_device
from trustgp.metrics import class_nll
from trustgp.tangents.network import call_with

from ..training.train import errors, moments, run_network
from . import tuning
from .laplace_posterior import KronPosterior
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
    def fit(cls, posterior: KronPosterior, validation: Any, *, tune: bool = True) -> Self:
        r"""Prior, posterior noise and output noise of the largest validation likelihood.

        A factor c on the variance is a choice of the posterior's noise:
        :math:`c (H / \sigma^2 + \delta)^{-1} = (H / (c \sigma^2) + \delta / c)^{-1}`. Without tuning, the
        evidence's prior and its noise are kept, and only the outputs' noise is fitted.
        """
        if not tune:
            return cls(posterior, posterior.precision(posterior.prior, posterior.noise)).fitted(validation)
        rows, found = read_rows(validation, name="validation"), []
        error = errors(run_network(posterior.network, rows.inputs), rows)
        for decade in DECADES:
            prior = posterior.prior * 10.0**decade
            precision = posterior.precision(prior, posterior.noise)
            spread = posterior.variances(rows.inputs, precision)[..., 0].double()
            scale, noise = tuning.likeliest_scale(error, spread)
            found.append((tuning.held_out_nll(error, scale * spread + noise), prior, scale, noise))
        _, prior, scale, noise = min(found, key=lambda entry: entry[0])
        return cls(posterior, posterior.precision(prior / scale, posterior.noise * scale), noise=noise)

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        r"""The network's own output, and :math:`J P^{-1} J^\top`."""
        mean = run_network(self.posterior.network, inputs)
        return mean, self.posterior.variances(inputs, self.precision).reshape(mean.shape)


@dataclass(frozen=True)
class LaplaceSampled(NoisyPeer):
    """Networks whose weights are drawn from the posterior. Made by `fit`."""

    network: nn.Module
    names: tuple[str, ...]  # of the parameters that vary
    weights: Tensor  # their drawn values, one vector a network, [S, P]

    @classmethod
    def fit(cls, posterior: KronPosterior, validation: Any, *, samples: int = 20, seed: int = 0) -> Self:
        """Prior, posterior noise and output noise of the largest validation likelihood, by sampling."""
        if samples < 2:
            raise ValueError(f"samples={samples}; at least 2 are needed to see a spread.")
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

        return min(trials(), key=lambda trial: trial._loss(few)).fitted(rows)

    def _loss(self, rows: Rows) -> float:
        """Negative log likelihood of rows at the noise that suits them best; infinite after an overflow."""
        error, spread = self.against(rows)
        if not bool(torch.isfinite(spread).all() and torch.isfinite(error).all()):
            return math.inf
        return tuning.held_out_nll(error, spread + tuning.likeliest_noise(error, spread))

    @torch.no_grad()
    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The drawn networks' mean, and their variance over the draws themselves."""
        rows = to_device(as_inputs(inputs), self.weights.device)
        own = {name: value for name, value in self.network.named_parameters() if name in self.names}
        split = [row.split([value.numel() for value in own.values()]) for row in self.weights]
        draws = [{n: part.view_as(own[n]) for n, part in zip(own, row, strict=True)} for row in split]
        parts = []
        for chunk in (take(rows, index) for index in chunks(count(rows), 8192)):
            parts.append(moments(torch.stack([call_with(self.network, drawn, chunk) for drawn in draws])))
        means, spreads = zip(*parts, strict=True)
        return torch.cat(means), torch.cat(spreads)


@dataclass(frozen=True)
class LaplaceClassifier:
    """A classifier linearised in its weights, whose posterior is Gaussian. Made by `fit`."""

    posterior: KronPosterior
    prior: float  # the prior precision that is used

    @classmethod
    def fit(cls, network: nn.Module, train: Any, validation: Any = None, *, last_layer: bool = False) -> Self:
        """KFAC of all training rows, and the prior that validation rows, or else the evidence, prefer."""
        rows, labels = tuning.read_labels(train, name="train")
        still = copy.deepcopy(network).eval()
        if isinstance(rows.inputs, Tensor):
            tuning.check_labels(run_network(still, rows.inputs[:2]), labels, name="train")
        posterior = KronPosterior.of(still, rows.inputs, labels, noise=None, last_layer=last_layer)
        if posterior.gradients is None:
            raise ValueError(
                "the network's layers do not match their Kronecker factors; use one whose layers are each "
                "called with inputs of one size, or last_layer=True."
            )
        fitted = cls(posterior, posterior.prior)
        return fitted if validation is None else replace(fitted, prior=fitted._likeliest(validation))

    def predict(self, inputs: Inputs) -> ClassAnswer:
        r"""The network's logits, less sure where their variance is large: MacKay's probit approximation.

        .. math:: \mathrm{softmax}_c ( z_c / \sqrt{1 + \pi v_c / 8} ), \; v = \mathrm{diag}(J P^{-1} J^\top)
        """
        logits = run_network(self.posterior.network, inputs)
        variance = self.variances(inputs, [self.prior])[..., 0]
        return tuning.answer_classes(inputs, logits, _probit(logits, variance), variance)

    def variances(self, inputs: Inputs, priors: Sequence[float]) -> Tensor:
        """Of each logit under each of D prior precisions, chunk by chunk, shape [n, C, D]."""
        return self.posterior.variances(inputs, self.posterior.laplace.H, priors)

    def _likeliest(self, validation: Any) -> float:
        """The prior of the highest likelihood of held-out rows."""
        rows, labels = tuning.read_labels(validation, name="validation")
        logits = run_network(self.posterior.network, rows.inputs)
        tuning.check_labels(logits, labels, name="validation")
        priors = [self.posterior.prior * math.sqrt(10.0) ** step for step in HALF_DECADES]
        labels = labels.to(logits.device)
        variances = self.variances(rows.inputs, priors).unbind(dim=2)
        losses = [float(class_nll(_probit(logits, one), labels).mean()) for one in variances]
        return priors[losses.index(min(losses))]


def _probit(logits: Tensor, variance: Tensor) -> Tensor:
    r""":math:`\mathrm{softmax}(z_c / \sqrt{1 + \tfrac\pi8 v_c})`, all of shape [n, C]."""
    return (logits / torch.sqrt(1.0 + math.pi / 8 * variance)).softmax(dim=1)
