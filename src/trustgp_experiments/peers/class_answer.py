"""What a peer says about classes: probabilities, and how far its members or weights disagree."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trustgp.data.rows import Rows, finite_rows, read_rows
from trustgp.data.trees import Inputs, as_inputs
from trustgp.metrics import entropy


@dataclass(frozen=True)
class ClassAnswer:
    """A prediction of classes; it reads as that of a model fitted with `trustgp.Classification()` does.

    Args:
        mean: Logits: those of the network, or the mean over members, shape [n, C].
        probabilities: Of the classes, shape [n, C].
        valid: False for rows with NaN or infinite inputs or logits, shape [n].
        variance: Of each logit, over members or weights, shape [n, C]; None: the peer knows none.
        mutual_information: Of the class and the member, in nats, shape [n]; None: there are no members.
    """

    mean: Tensor
    probabilities: Tensor
    valid: Tensor
    variance: Tensor | None = None
    mutual_information: Tensor | None = None

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def classes(self) -> Tensor:
        """The most probable class of each row, shape [n]."""
        return self.probabilities.argmax(dim=1)

    @property
    def score(self) -> Tensor | None:
        """The mean variance of the logits as one novelty score a row, shape [n]; None: the peer has none."""
        return None if self.variance is None else self.variance.mean(dim=1)


def read_labels(data: object, *, name: str) -> tuple[Rows, Tensor]:
    """Rows and their class numbers, int64, shape [n].

    Args:
        data: (inputs, labels), a Dataset or a DataLoader.
        name: For messages.
    """
    rows = read_rows(data, name=name)
    labels = rows.targets
    if labels.shape[1] != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"{name} targets are {labels.dtype} of shape {tuple(labels.shape)}; class numbers are needed, "
            "int64 of shape [n]."
        )
    return rows, labels[:, 0].long()


def check_labels(logits: Tensor, labels: Tensor, *, name: str) -> None:
    """Raise unless there is a logit for every label.

    Args:
        logits: Shape [n, C].
        labels: Shape [n].
        name: For messages.
    """
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(f"the network gives {tuple(logits.shape)}; logits [n, C] with C >= 2 are needed.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= logits.shape[1]:
        raise ValueError(f"{name} labels lie in {low}..{high}; 0..{logits.shape[1] - 1} are allowed.")


def answer_classes(
    inputs: Inputs, logits: Tensor, probabilities: Tensor, variance: Tensor | None = None
) -> ClassAnswer:
    """A prediction of one network; the variance is infinite in rows that are not valid."""
    valid = finite_rows(as_inputs(inputs)).to(logits.device) & torch.isfinite(logits).all(dim=1)
    if variance is not None:
        variance = torch.where(valid[:, None], variance, torch.inf)
    return ClassAnswer(logits, probabilities, valid, variance)


def answer_members(inputs: Inputs, logits: Tensor) -> ClassAnswer:
    r"""What several networks say together: the mean of their probabilities.

    .. math:: I = H(\bar p) - \tfrac1S \sum_s H(p_s), \qquad v_c = \tfrac1S \sum_s (z_{sc} - \bar z_c)^2

    Args:
        inputs: Of n rows.
        logits: Of each member, shape [S, n, C].
    """
    probabilities = logits.softmax(dim=2)
    mean = probabilities.mean(dim=0)
    within = torch.stack([entropy(one) for one in probabilities]).mean(dim=0)
    information = (entropy(mean) - within).clamp_min(0.0)  # rounding may take it below zero
    found = answer_classes(inputs, logits.mean(dim=0), mean, logits.var(dim=0, correction=0))
    most = math.log(logits.shape[2])
    information = torch.where(found.valid, information, most).to(mean.dtype)
    return ClassAnswer(found.mean, mean, found.valid, found.variance, information)
