"""The simplest peers of classification: the network's own softmax, and the same with a temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from trustgp.data.trees import Inputs

from ..training.inference import run_network
from .class_answer import ClassAnswer, answer_classes, check_labels, read_labels
from .tuning import zoom_minimum

COLDEST, HOTTEST = 1e-2, 1e2  # temperatures looked at


@dataclass(frozen=True)
class SoftmaxClassifier:
    """A network whose logits are divided by a temperature. Made by `fit`.

    Args:
        network: Trained, in eval mode.
        temperature: T in softmax(z / T); 1: the network as it is.
    """

    network: nn.Module
    temperature: float = 1.0

    @classmethod
    def fit(cls, network: nn.Module, validation: Any = None) -> SoftmaxClassifier:
        """The network as it is, or, with validation rows, with the temperature that suits them best.

        Args:
            network: Trained, in eval mode, that maps rows to logits [n, C].
            validation: Rows it was not trained on: (inputs, labels), a Dataset or a DataLoader. None: T = 1.
        """
        if validation is None:
            return cls(network)
        rows, labels = read_labels(validation, name="validation")
        return cls(network, likeliest_temperature(run_network(network, rows.inputs), labels))

    def predict(self, inputs: Inputs) -> ClassAnswer:
        """Softmax of the network's logits over the temperature.

        Args:
            inputs: A tensor, tuple or dict, as the network takes them.
        """
        logits = run_network(self.network, inputs)
        return answer_classes(inputs, logits, (logits / self.temperature).softmax(dim=1))


def likeliest_temperature(logits: Tensor, labels: Tensor) -> float:
    r"""T by maximum likelihood (Guo et al. 2017), by zooming in on a grid of its logarithm.

    .. math:: \arg\min_T -\sum_i \log \mathrm{softmax}(z_i / T)_{y_i}

    The sum is convex in 1/T, so it has one minimum, and the grid cannot miss it.

    Args:
        logits: z, shape [n, C].
        labels: y, shape [n].
    """
    check_labels(logits, labels, name="validation")
    logits, labels = logits.double(), labels.to(logits.device)

    def loss(log_temperature: Tensor) -> Tensor:
        return cross_entropy(logits / log_temperature.exp(), labels)[None]

    low, high = (logits.new_tensor([end]).log() for end in (COLDEST, HOTTEST))
    return float(zoom_minimum(loss, low, high).exp())
