"""Networks of the transfer study: five alike, and one with dropout, all by one recipe."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ..baselines import MCDropout, mlp, train, train_many
from ..baselines.bundle import Bundle
from ..metrics import gaussian_nll
from .transfer_rows import Case

MEMBERS = 5
RATES = (0.02, 0.1)  # of dropout; the better on the validation rows of seed 0 is taken


@dataclass(frozen=True)
class Recipe:
    """How every network is trained.

    Args:
        hidden: Widths of the hidden layers.
        epochs, batch_size, learning_rate: See `trustgp.baselines.train`.
    """

    hidden: tuple[int, ...]
    epochs: int
    batch_size: int = 128
    learning_rate: float = 3e-3

    @property
    def widths(self) -> list[int]:
        """Of all layers."""
        return [21, *self.hidden, 7]

    def words(self) -> str:
        """For the protocol."""
        return (
            f"{'-'.join(map(str, self.widths))} ReLU, AdamW, one cycle to {self.learning_rate:g}, "
            f"{self.epochs} epochs of batches of {self.batch_size}"
        )


FULL, QUICK = Recipe((200,) * 5, 100), Recipe((32, 32), 3)


def train_bundle(
    case: Case, recipe: Recipe, *, rate: float, seed: int, device: str, progress: bool
) -> Bundle:
    """All networks of one training set.

    Args:
        case: Its rows.
        recipe: How.
        rate: Of the dropout network.
        seed: Of this repetition; members take 100 seed + 0, 1, 2, ...
        device: Where to train.
        progress: Whether to show a bar in a terminal.
    """
    seeds = [100 * seed + member for member in range(MEMBERS)]
    networks = train_many(
        [mlp(recipe.widths, seed=number) for number in seeds],
        *case.train,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        seeds=seeds,
        device=device,
        progress=progress,
    )
    dropout = train_dropout(case, recipe, rate=rate, seed=seed, device=device, progress=progress)
    return Bundle(
        network=networks[0],
        members=networks[1:],
        dropout_network=dropout,
        train=case.train,
        validation=case.validation,
        seed=seed,
        device=device,
    )


def train_dropout(
    case: Case, recipe: Recipe, *, rate: float, seed: int, device: str, progress: bool
) -> nn.Module:
    """The dropout network; arguments as of `train_bundle`."""
    return train(
        mlp(recipe.widths, dropout=rate, seed=100 * seed),
        *case.train,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        seed=100 * seed,
        device=device,
        progress=progress,
    )


def choose_rate(case: Case, recipe: Recipe, *, device: str, progress: bool) -> dict[str, float]:
    """Validation NLL of MC-dropout by rate, for seed 0; the peers get their best fair settings."""
    found = {}
    inputs, targets = case.validation
    for rate in RATES:
        network = train_dropout(case, recipe, rate=rate, seed=0, device=device, progress=progress)
        said = MCDropout.fit(network, case.validation, samples=20, seed=0).predict(inputs)
        nll = gaussian_nll(said.mean, said.variance, targets.to(said.mean.device))
        found[str(rate)] = float(nll.mean())
    return found
