"""How the networks of a study are made and trained: one recipe for the network, its siblings and dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ..peers import mlp, train, train_many
from ..peers.bundle import Bundle

MEMBERS = 5  # networks of an ensemble, the one network among them

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class NetworkRecipe:
    """An architecture, and how every network of it is trained: AdamW, one cycle.

    A study has one for a full run and one for a quick one::

        FULL, QUICK = mlp_recipe([21, *[200] * 5, 7], epochs=100), mlp_recipe([21, 32, 32, 7], epochs=3)
        network = recipe.train(rows, seed=0, device="cpu")
        bundle = recipe.bundle(train, validation, seed=0, device="cpu", dropout_network=None)

    Args:
        make: Makes a network with fresh weights: `make(seed=...)`, also `dropout=` if asked.
        shape: The architecture, in words.
        epochs, batch_size, learning_rate, loss, record: See `trustgp_experiments.peers.train`.
        together: Whether the members are trained as one vectorised network; small ones gain by it.
        ending: What the words add after the batches.
    """

    make: Callable[..., nn.Module]
    shape: str
    epochs: int
    batch_size: int = 128
    learning_rate: float = 3e-3
    loss: Callable[[Tensor, Tensor], Tensor] = mse_loss
    record: bool = True
    together: bool = False
    ending: str = ""

    def words(self) -> str:
        """For the protocol."""
        return (
            f"{self.shape}, AdamW, one cycle to {self.learning_rate:g}, {self.epochs} epochs of batches of "
            f"{self.batch_size}{self.ending}"
        )

    def train(
        self, rows: Pair, *, seed: int, device: str, progress: bool = False, dropout: float = 0.0
    ) -> nn.Module:
        """A network of this seed.

        Args:
            rows: Inputs and targets.
            seed: Of the weights and the shuffling.
            device: Where to train.
            progress: Whether to show a bar in a terminal.
            dropout: Share of units that are dropped; 0: a network without such layers.
        """
        fresh = self.make(seed=seed, dropout=dropout) if dropout else self.make(seed=seed)
        return train(fresh, *rows, seed=seed, record=self.record, **self._options(device, progress))

    def bundle(
        self,
        rows: Pair,
        validation: Pair,
        *,
        seed: int,
        device: str,
        progress: bool = False,
        dropout_network: nn.Module | None = None,
    ) -> Bundle:
        """What the methods of a study are given: the network and its siblings, and the rows.

        Args:
            rows, validation: Inputs and targets.
            seed: Of this repetition; members take 100 seed + 0, 1, 2, ...
            device, progress: See `train`.
            dropout_network: Trained with dropout, for methods that need one.
        """
        seeds = [100 * seed + member for member in range(MEMBERS)]
        if self.together:
            fresh = [self.make(seed=number) for number in seeds]
            networks = train_many(fresh, *rows, seeds=seeds, **self._options(device, progress))
        else:
            networks = [self.train(rows, seed=number, device=device, progress=progress) for number in seeds]
        return Bundle(
            network=networks[0],
            members=networks[1:],
            dropout_network=dropout_network,
            train=rows,
            validation=validation,
            seed=seed,
            device=device,
        )

    def _options(self, device: str, progress: bool) -> dict[str, Any]:
        return {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "loss": self.loss,
            "device": device,
            "progress": progress,
        }


def mlp_recipe(widths: list[int], *, epochs: int, together: bool = False) -> NetworkRecipe:
    """Of a fully connected ReLU network.

    Args:
        widths: Of the inputs, the hidden layers and the outputs.
        epochs, together: See `NetworkRecipe`.
    """

    def make(**options: Any) -> nn.Module:
        return mlp(widths, **options)

    return NetworkRecipe(make, f"{'-'.join(map(str, widths))} ReLU", epochs, together=together)
