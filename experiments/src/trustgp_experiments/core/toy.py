"""The toy's rows, its network, and its error bar with and without patchwork."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from trustgp.api import PAPER, fit
from trustgp.experts.gate import Division
from trustgp.experts.neighbours import Patchwork
from trustgp.model import UncertaintyModel

from ..datasets import load, snelson_like, standardise
from .recipes import Pair, mlp_recipe

NUM_EXPERTS = 7
WIDTH = 200
# trained on all rows at once; of a full run, and of a quick one
NETWORK = mlp_recipe([1, WIDTH, 1], activation=nn.Tanh, epochs=1500, batch_size=10_000, learning_rate=0.03)
NETWORKS = NETWORK, replace(NETWORK, epochs=300)
PATCHWORK: Patchwork = PAPER["patchwork"]
INDEPENDENT = Patchwork(neighbours=0)


@dataclass(frozen=True)
class ToyData:
    """Rows with one input and one output, [n, 1] each, the interval without rows, name and description."""

    inputs: Tensor
    targets: Tensor
    gap: tuple[float, float]
    source: str
    about: str

    @property
    def train(self) -> Pair:
        """The rows with their inputs standardised."""
        return standardise(self.inputs, self.targets).inputs(self.inputs), self.targets


def toy_data() -> ToyData:
    """Snelson's rows without those in the paper's gap, or generated rows if the data is missing."""
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


def fit_toy(network: nn.Module, rows: Pair, **options: Any) -> UncertaintyModel:
    """Model fitted to the network, as in the paper without a witness unless the options have one."""
    own = {"division": Division(components=4), "num_experts": NUM_EXPERTS, "witness": None, "budget": "none"}
    return fit(network, rows, **{**own, **options})
