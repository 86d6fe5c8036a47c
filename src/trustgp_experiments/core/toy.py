"""The toy's rows, its network, and its error bar with and without patchwork."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from trustgp.api import fit
from trustgp.experts.gate import Division
from trustgp.experts.neighbours import Patchwork
from trustgp.experts.witness import Witness
from trustgp.model import UncertaintyModel

from ..datasets import load, snelson_like, standardise
from ..peers import mlp, train

NUM_EXPERTS = 7
WIDTH = 200
EPOCHS, QUICK_EPOCHS = 1500, 300
# Seven experts share 200 rows, about 29 each: a tenth of that would be three rows, so a neighbour may
# lend as many as an expert has.
PATCHWORK = Patchwork(neighbours=2, fraction=1.0)
INDEPENDENT = Patchwork(neighbours=0)


@dataclass(frozen=True)
class ToyData:
    """Rows of one input and one output.

    Args:
        inputs, targets: Shape [n, 1].
        gap: The interval without rows.
        source: Name of the data.
        about: In words.
    """

    inputs: Tensor
    targets: Tensor
    gap: tuple[float, float]
    source: str
    about: str

    @property
    def scaled(self) -> Tensor:
        """The inputs, standardised."""
        return standardise(self.inputs, self.targets).inputs(self.inputs)


def toy_data() -> ToyData:
    """Snelson's rows with the paper's gap cut into them, or generated ones where those are not there."""
    try:
        recording = load("snelson")
    except FileNotFoundError:
        gap = (2.4, 3.6)
        about = "generated rows in the manner of Snelson's (his own are not here)"
        return ToyData(*snelson_like(gap=gap), gap, "snelson_like", about)
    gap = (1.5, 3.0)  # as in the paper
    x = recording.inputs
    kept = ((x < gap[0]) | (x > gap[1])).flatten()
    about = f"Snelson's rows; the {int((~kept).sum())} of them between {gap[0]:g} and {gap[1]:g} are left out"
    return ToyData(x[kept].float(), recording.targets[kept].float(), gap, "snelson", about)


def train_toy(
    inputs: Tensor,
    targets: Tensor,
    *,
    seed: int = 0,
    epochs: int = EPOCHS,
    device: str | None = None,
    progress: bool = False,
) -> nn.Module:
    """A trained 1-200-1 tanh network.

    Args:
        inputs, targets: Shape [n, 1].
        seed: Of the weights and the shuffling.
        epochs: Of all rows at once.
        device: Where to train; None: on the CPU.
        progress: Whether to show a bar in a terminal.
    """
    return train(
        mlp([1, WIDTH, 1], activation=nn.Tanh, seed=seed),
        inputs,
        targets,
        epochs=epochs,
        batch_size=len(inputs),
        learning_rate=0.03,
        seed=seed,
        device=device,
        progress=progress,
    )


def fit_toy(
    network: nn.Module,
    rows: tuple[Tensor, Tensor],
    patchwork: Patchwork,
    *,
    witness: Witness | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: bool = False,
) -> UncertaintyModel:
    """The network's error bar; the division does not depend on the patchwork.

    Args:
        network: From `train_toy`.
        rows: Inputs and targets it was trained on.
        patchwork: How many neighbours lend how many rows.
        witness: None: the experts speak alone, as in the paper.
        seed: Of the division.
        device: Where to fit; None: where the network is.
        progress: Whether to show bars in a terminal.
    """
    return fit(
        network,
        rows,
        num_experts=NUM_EXPERTS,
        patchwork=patchwork,
        witness=witness,
        division=Division(components=4),
        device=device,
        seed=seed,
        progress=progress,
    )
