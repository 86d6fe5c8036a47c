r"""Networks that predict a variance for each output, alone and as an ensemble.

They are trained by the beta-NLL of Seitzer et al. (2022), where no gradient goes through the term in
:math:`\lfloor \cdot \rfloor`:

.. math:: \tfrac12 \lfloor \sigma^{2\beta} \rfloor \big( \log \sigma^2 + (y - \mu)^2 / \sigma^2 \big) .

At beta = 0 it is the likelihood, which neglects rows that are hard to fit; at 1 means are trained as with the
squared error. Validation rows choose among 0, 0.5 and 1.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from trustgp.data.trees import Inputs
from trustgp.likelihoods.prediction import Prediction

from ..training.train import answer, moments, run_network
from .bundle import Bundle
from .tuning import Diverged, NoisyPeer

BETAS = (0.0, 0.5, 1.0)
LOG_VARIANCE_RANGE = (-20.0, 10.0)


def beta_nll(outputs: Tensor, targets: Tensor, *, beta: float) -> Tensor:
    """Scalar beta-NLL of outputs [b, 2C], means and then logarithms of variances, and targets [b, C]."""
    mean, log_variance = halves(outputs)
    nll = 0.5 * (log_variance + (targets - mean).square() * torch.exp(-log_variance))
    return (torch.exp(beta * log_variance).detach() * nll).mean()


def halves(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and logarithms of variances, each [..., C]."""
    mean, raw = outputs.chunk(2, dim=-1)
    return mean, raw.clamp(*LOG_VARIANCE_RANGE)


@dataclass(frozen=True)
class Heteroscedastic(NoisyPeer):
    """One network with variances, or several whose means and variances are averaged. Made by `fit`."""

    networks: tuple[nn.Module, ...]  # each gives [n, 2C]
    single: bool = False  # whether outputs are [n], not [n, 1]

    @classmethod
    def fit(
        cls, networks: Sequence[nn.Module], validation: Any, train: Any = None, *, single: bool = False
    ) -> Self:
        """Fit a scale, which includes the noise, and tails to trained networks."""
        return cls(tuple(networks), single).scaled(validation, train)

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        mean, spread, noise = self.parts(inputs)
        return mean, spread + noise

    def parts(self, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        """The members' mean, the variance of their means, and the mean of their variances, [n] or [n, C]."""
        means, logs = halves(torch.stack([run_network(one, inputs) for one in self.networks]))
        parts = (*moments(means), logs.exp().mean(dim=0))
        return tuple(each[:, 0] for each in parts) if self.single else parts  # pyright: ignore

    def predict(self, inputs: Inputs) -> Prediction:
        """Prediction whose epistemic variance is that of the means; the mean variance is its noise."""
        mean, spread, noise = self.parts(inputs)
        prediction = answer(inputs, mean, self.scale * spread, self.noise)
        # some rows may not be finite
        prediction = replace(prediction, aleatoric=self.scale * torch.nan_to_num(noise))
        return prediction if self.tails is None else self.tails.on(prediction)


def heteroscedastic(bundle: Bundle, members: int = 1) -> Heteroscedastic:
    """Peer of `members` networks trained by the bundle's recipe, at the best beta of the first of them."""
    outputs, single = bundle.outputs, bundle.single
    seeds = [100 * bundle.seed + 10 + member for member in range(members)]

    def trained(beta: float, seeds: list[int]) -> list[nn.Module]:
        loss = partial(beta_nll, beta=beta)
        return bundle.trained_like(seeds=seeds, outputs=2 * outputs, loss=loss)

    def fitted(networks: Sequence[nn.Module]) -> Heteroscedastic:
        return Heteroscedastic.fit(networks, *bundle.held, single=single)

    def chosen() -> tuple[float, list[nn.Module]]:
        trials = []
        for beta in BETAS:
            networks = trained(beta, seeds[:1])
            with suppress(Diverged):
                trials.append((fitted(networks).loss_on(bundle.validation), beta, networks))
        if not trials:
            raise Diverged(f"no network that gives variances could be trained, with a beta of {BETAS}.")
        return min(trials, key=lambda trial: trial[0])[1:]

    beta, networks = bundle.once("heteroscedastic", chosen)
    return fitted([*networks, *(trained(beta, seeds[1:]) if members > 1 else [])])
