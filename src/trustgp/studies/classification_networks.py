"""Networks of the classification study: five alike, and one with dropout, all by one recipe."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.functional import cross_entropy

from ..baselines import DropoutClassifier, cnn, train
from ..baselines.bundle import Bundle
from ..metrics import class_nll
from .classification_rows import ImageCase

MEMBERS = 5
RATES = (0.1, 0.3)  # of dropout; the better on the validation images is taken


@dataclass(frozen=True)
class Recipe:
    """How every network is trained.

    Args:
        channels, hidden: See `trustgp.baselines.cnn`.
        epochs, batch_size, learning_rate: See `trustgp.baselines.train`.
    """

    channels: tuple[int, ...]
    hidden: int
    epochs: int
    batch_size: int = 256
    learning_rate: float = 2e-3

    def network(self, *, dropout: float = 0.0, seed: int) -> nn.Module:
        """With fresh weights."""
        return cnn(channels=self.channels, hidden=self.hidden, dropout=dropout, seed=seed)

    def words(self) -> str:
        """For the protocol."""
        size = sum(parameter.numel() for parameter in self.network(seed=0).parameters())
        shape = "-".join(map(str, self.channels))
        return (
            f"convolutions 5 x 5 of stride 2 with {shape} channels, a hidden layer of {self.hidden}, ReLU "
            f"({size:,} parameters), AdamW, one cycle to {self.learning_rate:g}, {self.epochs} epochs of "
            f"batches of {self.batch_size}, cross entropy, no augmentation"
        )


FULL, QUICK = Recipe((32, 64), 128, 10), Recipe((4, 6), 12, 4, batch_size=32, learning_rate=1e-2)


def train_bundle(case: ImageCase, recipe: Recipe, *, seed: int, device: str, progress: bool) -> Bundle:
    """All networks of one training set; its images go to the device once.

    Args:
        case: The images.
        recipe: How.
        seed: Of this repetition; members take 100 seed + 0, 1, 2, ...
        device: Where to train.
        progress: Whether to show a bar in a terminal.
    """
    rows, held = ((inputs.to(device), labels.to(device)) for inputs, labels in (case.train, case.validation))

    def trained(network: nn.Module, number: int) -> nn.Module:
        return train(
            network,
            *rows,
            epochs=recipe.epochs,
            batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            loss=cross_entropy,
            seed=number,
            device=device,
            progress=progress,
        )

    seeds = [100 * seed + member for member in range(MEMBERS)]
    networks = [trained(recipe.network(seed=number), number) for number in seeds]
    dropping = [trained(recipe.network(dropout=rate, seed=seeds[0]), seeds[0]) for rate in RATES]

    def loss(network: nn.Module) -> float:
        said = DropoutClassifier.fit(network, samples=20, seed=seed).predict(held[0])
        return float(class_nll(said.probabilities, held[1]).mean())

    return Bundle(
        network=networks[0],
        members=networks[1:],
        dropout_network=min(dropping, key=loss),
        train=rows,
        validation=held,
        seed=seed,
        device=device,
    )


def rate_of(network: nn.Module | None) -> float:
    """The share of units that a dropout network drops."""
    layers = [] if network is None else [one for one in network.modules() if isinstance(one, nn.Dropout)]
    return layers[0].p if layers else 0.0
