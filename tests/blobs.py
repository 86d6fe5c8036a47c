"""A small classification case: Gaussian blobs on a circle, and networks trained on them."""

from dataclasses import dataclass
from functools import cache

import torch
from tiny_networks import adam
from torch import Tensor, nn

import trustgp


def draw(n: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points and their class numbers; neighbouring blobs overlap."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=generator)
    angle = 2 * torch.pi * labels / classes
    noise = 0.8 * torch.randn(n, 2, generator=generator)
    return 2 * torch.stack([angle.cos(), angle.sin()], dim=1) + noise, labels


@dataclass(frozen=True)
class Blobs:
    """Training, validation and test rows, and a network."""

    network: nn.Module
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@cache
def blobs(classes: int = 3, *, logits: int | None = None, flat: bool = False) -> Blobs:
    """A trained case; the network has one logit where `logits` is 1, of shape [n] where `flat`."""
    train, validation, test = (draw(n, classes, seed) for n, seed in ((300, 0), (400, 1), (400, 2)))
    outputs = classes if logits is None else logits
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, outputs)]

    def loss(net: nn.Module) -> Tensor:
        logits = net(train[0])
        if outputs > 1:
            return nn.functional.cross_entropy(logits, train[1])
        labels = train[1].float().reshape(logits.shape)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels)

    network = nn.Sequential(*layers, *([nn.Flatten(0)] if flat else []))
    return Blobs(adam(network, loss, 150, 2e-2), train, validation, test)


def fit(case: Blobs, **options) -> trustgp.UncertaintyModel:
    """A quiet fit with three experts and the validation rows, but for the options given."""
    options = {"num_experts": 3, "progress": False, "validation": case.validation, **options}
    network, train = options.pop("network", case.network), options.pop("train", case.train)
    return trustgp.fit(network, train, likelihood=trustgp.Classification(), **options)
