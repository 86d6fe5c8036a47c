"""Networks whose weights are drawn from a distribution: their mean and spread, and SWAG's distribution.

SWAG (Maddox et al. 2019) continues training at a constant rate and records the weights on the way. Given
their mean, their variance v and the last K deviations D from the running mean, weights are drawn from

.. math:: N \\big( \\bar\\theta, \\; \\tfrac12 \\mathrm{diag}(v) + \\tfrac{1}{2 (K - 1)} D D^\\top \\big) .
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from typing_extensions import Self

from trustgp.data.chunking import chunks
from trustgp.data.trees import Inputs, as_inputs, count, take, to_device
from trustgp.metrics import class_nll
from trustgp.tangents.network import call_with

from ..training.train import moments, train
from .bundle import Bundle
from .classifiers import MemberClassifier
from .tuning import NoisyPeer

RANK, SAMPLES = 20, 20  # deviations kept, networks drawn
RATES = (0.03, 0.1, 0.3)  # learning rates of the continued training, over the network's peak rate
LEAST_STEPS = 10  # between two recorded weight vectors


@torch.no_grad()
def drawn_outputs(
    network: nn.Module, names: Sequence[str], weights: Tensor, inputs: Inputs
) -> Iterator[Tensor]:
    """Outputs of networks whose parameters `names` have drawn weights [S, P], one chunk of rows at a time:
    each [S, b] or [S, b, C]."""
    rows = to_device(as_inputs(inputs), weights.device)
    own = {name: value for name, value in network.named_parameters() if name in names}
    split = [row.split([value.numel() for value in own.values()]) for row in weights]
    draws = [{n: part.view_as(own[n]) for n, part in zip(own, row, strict=True)} for row in split]
    for chunk in (take(rows, index) for index in chunks(count(rows), 8192)):
        yield torch.stack([call_with(network, drawn, chunk) for drawn in draws])


@dataclass(frozen=True)
class SampledWeights(NoisyPeer):
    """Networks whose weights were drawn from a distribution."""

    network: nn.Module
    names: tuple[str, ...]  # of the parameters that vary
    weights: Tensor  # their drawn values, one vector per network, [S, P]

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        parts = [moments(part) for part in drawn_outputs(self.network, self.names, self.weights, inputs)]
        means, spreads = zip(*parts, strict=True)
        return torch.cat(means), torch.cat(spreads)


@dataclass
class WeightMoments:
    """Running mean and second moment of weight vectors, and the last deviations from the mean."""

    every: int = 1  # one in so many calls of `look` counts
    looks: int = 0
    n: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))  # [P]
    square: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    deviations: list[Tensor] = field(default_factory=list)

    def look(self, network: nn.Module) -> None:
        self.looks += 1
        if self.looks % self.every == 0:
            self.add(torch.cat([value.detach().double().flatten() for value in network.parameters()]))

    def add(self, vector: Tensor) -> None:
        self.mean = (self.n * self.mean + vector) / (self.n + 1)
        self.square = (self.n * self.square + vector.square()) / (self.n + 1)
        self.n += 1
        self.deviations = [*self.deviations, vector - self.mean][-RANK:]

    def draw(self, samples: int, seed: int) -> Tensor:
        """Draws [S, P] from SWAG's distribution; the normals come from the CPU, the same on all devices."""
        if len(self.deviations) < 2:
            raise ValueError("SWAG needs at least 2 looks at the weights.")
        generator, rank = torch.Generator().manual_seed(seed), len(self.deviations)
        variance = (self.square - self.mean.square()).clamp_min(0.0)
        apart = torch.randn(samples, len(self.mean), generator=generator, dtype=torch.float64)
        along = torch.randn(samples, rank, generator=generator, dtype=torch.float64)
        wide = along.to(self.mean) @ torch.stack(self.deviations) / math.sqrt(2.0 * (rank - 1))
        return self.mean + math.sqrt(0.5) * variance.sqrt() * apart.to(self.mean) + wide


def wander(bundle: Bundle, rate: float) -> WeightMoments:
    """Moments of the weights while training continues at a constant share `rate` of the peak rate."""
    norms = [module for module in bundle.network.modules() if isinstance(module, _NormBase)]
    if any(norm.track_running_stats for norm in norms):
        raise ValueError("SWAG is not made for batch normalisation here: drawn weights have no statistics.")
    if "epochs" not in bundle.training:
        raise ValueError("SWAG goes on training: Bundle(..., training={'epochs': ..., ...}) must say how.")
    how = {key: value for key, value in bundle.training.items() if key != "together"}
    inputs, targets = bundle.train
    batches = -(-len(inputs) // how.get("batch_size", 128))
    seen = WeightMoments(every=-(-LEAST_STEPS // batches))
    how |= {"epochs": RANK * seen.every, "learning_rate": rate * how.get("learning_rate", 1e-3)}
    if targets.is_floating_point():
        targets = targets.to(next(bundle.network.parameters()).dtype)
    place = {"seed": 100 * bundle.seed, "device": bundle.device, "constant": True, "watch": seen.look}
    bundle.trains(lambda: train(bundle.network, inputs, targets, **place, **how))
    return seen


def draws_of(bundle: Bundle) -> list[tuple[nn.Module, tuple[str, ...], Tensor]]:
    """Network, parameter names and drawn weights, for each rate at which training does not diverge."""
    names, parameters = zip(*bundle.network.named_parameters(), strict=True)
    every = [wander(bundle, rate).draw(SAMPLES, bundle.seed).to(parameters[0]).detach() for rate in RATES]
    draws = [(bundle.network, names, weights) for weights in every if bool(torch.isfinite(weights).all())]
    if not draws:
        raise ValueError(f"training on diverges at every rate of {RATES} of its own.")
    return draws


@dataclass(frozen=True)
class Swag(SampledWeights):
    """Networks with weights drawn from SWAG's distribution. Made by `fit`."""

    @classmethod
    def fit(cls, bundle: Bundle) -> Self:
        """Choose the rate by the validation likelihood, after fitting scale, noise and tails."""
        peers = [cls(*draws).fitted(*bundle.held) for draws in draws_of(bundle)]
        return min(peers, key=lambda peer: peer.loss_on(bundle.validation))


@dataclass(frozen=True)
class SwagClassifier(MemberClassifier):
    """SWAG for classes: probabilities averaged over the draws, at one temperature. Made by `fit`."""

    network: nn.Module
    names: tuple[str, ...]
    weights: Tensor

    @classmethod
    def fit(cls, bundle: Bundle) -> Self:
        inputs, labels = bundle.validation

        def loss(peer: Self) -> float:
            probabilities = peer.predict(inputs).probabilities
            return float(class_nll(probabilities, labels.to(probabilities.device)).mean())

        return min((cls(*draws).tempered(bundle.validation) for draws in draws_of(bundle)), key=loss)

    def members(self, inputs: Inputs) -> Tensor:
        return torch.cat(list(drawn_outputs(self.network, self.names, self.weights, inputs)), dim=1)
