"""Two ways to predict with a Laplace posterior: linearised (rLaplace), and by sampling the weights.

Both choose the posterior's prior precision and noise, and the outputs' noise, by the likelihood of the
validation rows, on a grid around the prior that the evidence prefers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trustgp.data.chunking import chunks
from trustgp.data.rows import Rows, read_rows
from trustgp.data.trees import Inputs, as_inputs, count, take, to_device
from trustgp.likelihoods.prediction import Prediction
from trustgp.tangents.network import as_matrix, call_with

from ..training.inference import answer, errors, moments, run_network
from .laplace_posterior import KronPosterior
from .tuning import held_out_nll, likeliest_noise, likeliest_scale

DECADES = range(-4, 5)  # powers of ten times the evidence's prior precision
SAMPLED_DECADES = range(-2, 5)  # a weaker prior makes sampled networks useless
SAMPLED_SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
TUNING_ROWS = 1000  # of the validation rows, for the grid of sampled networks


@dataclass(frozen=True)
class LaplaceGLM:
    """A network linearised in its weights, whose posterior is Gaussian. Made by `fit`.

    Args:
        posterior: Of the weights.
        precision: Chosen P, laplace-torch's `KronDecomposed`.
        noise: Variance of the noise of each output, shape [C], float64.
    """

    posterior: KronPosterior
    precision: Any
    noise: Tensor

    @classmethod
    def fit(cls, posterior: KronPosterior, validation: Any, *, tune: bool = True) -> LaplaceGLM:
        r"""Prior, posterior noise and output noise of the largest validation likelihood.

        A factor c on the variance is a choice of the posterior's noise:
        :math:`c (H / \sigma^2 + \delta)^{-1} = (H / (c \sigma^2) + \delta / c)^{-1}`.

        Args:
            posterior: From `KronPosterior.fit`.
            validation: Rows the network was not trained on.
            tune: False keeps the evidence's prior and its noise; only the outputs' noise is fitted then.
        """
        rows = read_rows(validation, name="validation")
        error = errors(run_network(posterior.network, rows.inputs), rows)
        if not tune:
            precision = posterior.precision(posterior.prior, posterior.noise)
            spread = posterior.variance(rows.inputs, precision).double()
            return cls(posterior, precision, likeliest_noise(error, spread))
        found = []
        for decade in DECADES:
            prior = posterior.prior * 10.0**decade
            spread = posterior.variance(rows.inputs, posterior.precision(prior, posterior.noise)).double()
            scale, noise = likeliest_scale(error, spread)
            found.append((held_out_nll(error, scale * spread + noise), prior, scale, noise))
        _, prior, scale, noise = min(found, key=lambda entry: entry[0])
        return cls(posterior, posterior.precision(prior / scale, posterior.noise * scale), noise)

    def predict(self, inputs: Inputs) -> Prediction:
        r"""The network's own output; :math:`J P^{-1} J^\top` is epistemic.

        Args:
            inputs: A tensor [n, ...].
        """
        mean = run_network(self.posterior.network, inputs)
        spread = self.posterior.variance(inputs, self.precision)
        return answer(inputs, mean, spread.reshape(mean.shape), self.noise)


@dataclass(frozen=True)
class LaplaceSampled:
    """Networks whose weights are drawn from the posterior. Made by `fit`.

    Args:
        network: In eval mode.
        names: Of the parameters that vary.
        weights: Their drawn values, one vector a network, shape [S, P].
        noise: Variance of the noise of each output, shape [C], float64.
    """

    network: nn.Module
    names: tuple[str, ...]
    weights: Tensor
    noise: Tensor

    @classmethod
    def fit(
        cls, posterior: KronPosterior, validation: Any, *, samples: int = 20, seed: int = 0
    ) -> LaplaceSampled:
        """Prior, posterior noise and output noise of the largest validation likelihood, tried by sampling.

        Args:
            posterior: From `KronPosterior.fit`.
            validation: Rows the network was not trained on.
            samples: Networks to draw, at least 2.
            seed: Of the draws.
        """
        if samples < 2:
            raise ValueError(f"samples={samples}; at least 2 are needed to see a spread.")
        rows = read_rows(validation, name="validation")
        few = _some(rows, seed)

        def drawn(deviations: Tensor, scale: float) -> LaplaceSampled:
            weights = posterior.laplace.mean + scale**0.5 * deviations
            return cls(posterior.network, posterior.names, weights, weights[:0, 0])

        found: list[tuple[float, LaplaceSampled]] = []
        for decade in SAMPLED_DECADES:
            prior = posterior.prior * 10.0**decade
            deviations = posterior.deviations(prior, posterior.noise, samples, seed)
            trials = [drawn(deviations, scale) for scale in SAMPLED_SCALES]
            found.append(min(((trial._loss(few), trial) for trial in trials), key=lambda entry: entry[0]))
        _, best = min(found, key=lambda entry: entry[0])
        return replace(best, noise=likeliest_noise(*best._against(rows)))

    def predict(self, inputs: Inputs) -> Prediction:
        """The drawn networks' mean; their variance (over the draws themselves) is epistemic.

        Args:
            inputs: A tensor [n, ...].
        """
        mean, spread = self._answers(inputs)
        return answer(inputs, mean, spread, self.noise)

    def _against(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Errors and variances on rows with targets, each [n, C], float64."""
        mean, spread = self._answers(rows.inputs)
        return errors(mean, rows), as_matrix(spread).double()

    def _loss(self, rows: Rows) -> float:
        """Negative log likelihood of rows at the noise that suits them best; infinite after an overflow."""
        error, spread = self._against(rows)
        if not bool(torch.isfinite(spread).all() and torch.isfinite(error).all()):
            return math.inf
        return held_out_nll(error, spread + likeliest_noise(error, spread))

    @torch.no_grad()
    def _answers(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Mean and population variance of the drawn networks, each [n] or [n, C]."""
        rows = to_device(as_inputs(inputs), self.weights.device)
        parts = []
        for index in chunks(count(rows), 8192):
            chunk = take(rows, index)
            parts.append(moments(torch.stack([call_with(self.network, one, chunk) for one in self._draws()])))
        means, spreads = zip(*parts, strict=True)
        return torch.cat(means), torch.cat(spreads)

    def _draws(self) -> list[dict[str, Tensor]]:
        """The drawn parameters of each network, by name."""
        shapes = {name: value.shape for name, value in self.network.named_parameters() if name in self.names}
        sizes = [shape.numel() for shape in shapes.values()]
        return [
            {
                name: part.reshape(shape)
                for (name, shape), part in zip(shapes.items(), row.split(sizes), strict=True)
            }
            for row in self.weights
        ]


def _some(rows: Rows, seed: int) -> Rows:
    """At most `TUNING_ROWS` of the rows, at random."""
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:TUNING_ROWS]
    return Rows(rows.take(chosen), rows.targets[chosen.to(rows.targets.device)])
