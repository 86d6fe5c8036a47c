"""How the networks of a study are made and trained: one recipe for single, ensemble and dropout networks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ..peers import Bundle, mlp, train, train_many
from ..training.train import now

MEMBERS = 5  # networks of an ensemble, the one network among them

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class NetworkRecipe:
    """An architecture, and the training of its networks: AdamW with a one-cycle learning rate."""

    make: Callable[..., nn.Module]  # a network with fresh weights: make(seed=...), also dropout=
    shape: str  # the architecture, in words
    epochs: int  # this and what follows: see `trustgp_experiments.peers.train`
    batch_size: int = 128
    learning_rate: float = 3e-3
    loss: Callable[[Tensor, Tensor], Tensor] = mse_loss
    record: bool = True
    together: bool = False  # whether members train as one vectorised network, which helps small ones
    ending: str = ""  # of the description, after the batches

    def words(self) -> str:
        cycle = f"AdamW, one cycle to {self.learning_rate:g}, {self.epochs} epochs"
        return f"{self.shape}, {cycle} of batches of {self.batch_size}{self.ending}"

    def train(self, rows: Pair, *, seed: int, dropout: float = 0.0, **place: Any) -> nn.Module:
        """Network trained with this seed and dropout rate; `place` has further options of `train`."""
        fresh = self.make(seed=seed, dropout=dropout) if dropout else self.make(seed=seed)
        return train(fresh, *rows, seed=seed, record=self.record, **self._options, **place)

    def bundle(
        self, rows: Pair, validation: Pair, *, seed: int, dropout: float = 0.0, **place: Any
    ) -> Bundle:
        """Input of all methods: members of seeds 100 seed + 0, 1, ..., a network with dropout, and the rows.

        Members that are trained together each count an equal share of the seconds.
        """
        seeds, device = [100 * seed + member for member in range(MEMBERS)], place["device"]
        start = now(device)
        if self.together:
            fresh = [self.make(seed=number) for number in seeds]
            networks = train_many(fresh, *rows, seeds=seeds, device=device, **self._options)
            seconds = {"network": (now(device) - start) / MEMBERS}
            seconds["ensemble"] = (MEMBERS - 1) * seconds["network"]
        else:
            networks = [self.train(rows, seed=seeds[0], **place)]
            seconds = {"network": now(device) - start}
            networks += [self.train(rows, seed=number, **place) for number in seeds[1:]]
            seconds["ensemble"] = now(device) - start - seconds["network"]
        dropping = None
        if dropout:
            start = now(device)
            dropping = self.train(rows, seed=seeds[0], dropout=dropout, **place)
            seconds["dropout"] = now(device) - start
        how = {**self._options, "record": self.record, "together": self.together}
        parts = networks[0], networks[1:], dropping, rows, validation, seed, device
        return Bundle(*parts, training=how, seconds=seconds)

    @property
    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("epochs", "batch_size", "learning_rate", "loss")}


def mlp_recipe(
    widths: list[int], *, activation: type[nn.Module] = nn.ReLU, epochs: int, **options: Any
) -> NetworkRecipe:
    """Recipe of a fully connected network with these widths: inputs, hidden layers and outputs."""
    shape = f"{'-'.join(map(str, widths))} {activation.__name__}"
    return NetworkRecipe(partial(mlp, widths, activation=activation), shape, epochs, **options)
