"""What a peer says about classes: probabilities, and how far its members or weights disagree."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trustgp.data.rows import Rows, finite_rows, read_rows
from trustgp.data.trees import Inputs, as_inputs
from trustgp.metrics import entropy


@dataclass(frozen=True)
class ClassAnswer:
    """A prediction of classes; it reads as that of a model fitted with `trustgp.Classification()` does."""

    mean: Tensor  # logits: those of the network, or the mean over members  [n, C]
    probabilities: Tensor  # of the classes  [n, C]
    valid: Tensor  # False for rows with NaN or infinite inputs or logits  [n]
    variance: Tensor | None = None  # of each logit, over members or weights; None: not known  [n, C]
    mutual_information: Tensor | None = None  # of class and member, in nats; None: no members  [n]

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
    """Rows and their class numbers, int64, shape [n]; messages call them by the name."""
    rows = read_rows(data, name=name)
    labels = rows.targets
    if labels.shape[1] != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"{name} targets are {labels.dtype} of shape {tuple(labels.shape)}; class numbers are needed, "
            "int64 of shape [n]."
        )
    return rows, labels[:, 0].long()


def check_labels(logits: Tensor, labels: Tensor, *, name: str) -> None:
    """Raise unless there is a logit [n, C] for every label [n]."""
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
    r"""What several networks with logits [S, n, C] say together: the mean of their probabilities.

    .. math:: I = H(\bar p) - \tfrac1S \sum_s H(p_s), \qquad v_c = \tfrac1S \sum_s (z_{sc} - \bar z_c)^2
    """
    probabilities = logits.softmax(dim=2)
    mean = probabilities.mean(dim=0)
    within = torch.stack([entropy(one) for one in probabilities]).mean(dim=0)
    information = (entropy(mean) - within).clamp_min(0.0)  # rounding may take it below zero
    found = answer_classes(inputs, logits.mean(dim=0), mean, logits.var(dim=0, correction=0))
    information = torch.where(found.valid, information, math.log(logits.shape[2])).to(mean.dtype)
    return replace(found, mutual_information=information)
