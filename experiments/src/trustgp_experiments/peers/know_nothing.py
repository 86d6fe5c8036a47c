"""Baselines of every zero-shot table: a distribution that ignores the row, and the network with a gate."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs, count
from trustgp.likelihoods.prediction import Prediction

from .bundle import Bundle
from .fmgp import centre_and_spread, vectors
from .members import ConstantNoise
from .tails import Tails
from .tuning import NoisyPeer

DF = 3.0  # of the Student-t: heavy tails, with a variance
GATE = 0.99  # share of the validation rows that the gate lets pass
CHUNK = 1024  # rows whose distances are computed at a time
ROW_WISE = ("mean", "epistemic", "aleatoric", "excess", "rare", "df")


@dataclass(frozen=True)
class KnowNothing(NoisyPeer):
    """A Student-t with the mean and the variance of the training targets, for every row. Made by `fit`."""

    centre: Tensor  # mean of the training targets, in the network's dtype  [C]
    single: bool  # whether outputs are [n], not [n, C]

    @classmethod
    def fit(cls, bundle: Bundle) -> Self:
        """Fit to the training targets alone; of the validation rows only the shape is checked."""
        first = next(bundle.network.parameters())
        targets = read_rows(bundle.train, name="train").targets.double()
        variance = targets.var(dim=0).clamp_min(1e-12)
        one, none = torch.ones_like(variance), torch.zeros((), dtype=torch.float64)
        tails = Tails(one, DF * one, none, none.expand_as(variance))
        plain = cls(targets.mean(dim=0).to(first), bundle.single, noise=variance, tails=tails)
        plain.against(bundle.validation)  # refuses targets of another shape
        return plain

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        mean = self.centre.repeat(count(inputs), 1)
        mean = mean[:, 0] if self.single else mean
        return mean, torch.zeros_like(mean)


@dataclass(frozen=True)
class GatedKnowNothing:
    """The network with constant noise and tails; `KnowNothing` beyond a distance to the training rows."""

    inner: ConstantNoise
    outer: KnowNothing
    rows: Tensor  # training inputs, scaled  [n, d]
    offset: Tensor  # their mean             [d]
    spread: Tensor  # their deviation        [d]
    threshold: float = 0.0  # distance that the share `GATE` of the validation rows does not exceed

    @classmethod
    def fit(cls, bundle: Bundle) -> Self:
        """Set the gate to a quantile of the validation rows' distances to their nearest training rows."""
        inner = ConstantNoise.fit(bundle.network, *bundle.held, tails=True)
        inputs = vectors(bundle.train[0], next(bundle.network.parameters()).device)
        offset, spread = centre_and_spread(inputs)
        gate = cls(inner, KnowNothing.fit(bundle), (inputs - offset) / spread, offset, spread)
        return replace(gate, threshold=float(gate.distances(bundle.validation[0]).double().quantile(GATE)))

    def distances(self, inputs: Inputs) -> Tensor:
        """Distance to the nearest training row, in units of the inputs' deviations, shape [n]."""
        scaled = (vectors(inputs, self.offset.device) - self.offset) / self.spread
        return torch.cat([torch.cdist(part, self.rows).amin(dim=1) for part in scaled.split(CHUNK)])

    def predict(self, inputs: Inputs) -> Prediction:
        """Prediction by one of the two for each row; the novelty is 1/2 at the gate."""
        inner, outer = self.inner.predict(inputs), self.outer.predict(inputs)
        distance = self.distances(inputs)
        beyond = (distance > self.threshold).reshape((-1,) + (1,) * (inner.mean.ndim - 1))
        parts = {name: torch.where(beyond, getattr(outer, name), getattr(inner, name)) for name in ROW_WISE}
        novelty = torch.nan_to_num(distance / (distance + self.threshold), nan=1.0).to(inner.novelty)
        return replace(inner, **parts, novelty=novelty)
