"""The toy's network, and its error bar with and without patchwork: for the demo and for the study."""

from __future__ import annotations

from torch import Tensor, nn

from ..baselines import mlp, train
from ..fit import fit
from ..gating import Division
from ..model import UncertaintyModel
from ..patchwork import Patchwork
from ..witness import Witness

NUM_EXPERTS = 7
WIDTH = 200
EPOCHS = 1500
# Seven experts share 200 rows, about 29 each: a tenth of that would be three rows, so a neighbour may
# lend as many as an expert has.
PATCHWORK = Patchwork(neighbours=2, fraction=1.0)
INDEPENDENT = Patchwork(neighbours=0)


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
