"""What a detector's queries have found: a class, or, the last one, no object."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..experts.mixture import LatentPrediction
from ..tangents.base import output_mixes
from .classification import Classification


@dataclass(frozen=True)
class Finding(Classification):
    """Classes of which the last is "no object", of logits that add up to the log odds of an object.

    All logits of a row may be shifted so that they do (`detection.splitting.ClassTail`), which changes no
    probability. The kernel is that of their sum: how much the weights know about whether there is anything.
    """

    def mixes(
        self, outputs: str, num_outputs: int, generator: torch.Generator
    ) -> list[tuple[Tensor, Tensor]]:
        if outputs != "pseudo":
            return output_mixes(outputs, num_outputs, generator, contrast=True)
        return [(torch.ones(1, num_outputs, dtype=torch.float64), torch.arange(num_outputs))]

    def warn(self, num_outputs: int, targets: Tensor) -> None:
        """Of classes without a training row; "no object" needs none: a good detector finds nothing else."""
        if num_outputs > 2:
            super().warn(num_outputs - 1, targets[targets != num_outputs - 1])

    def score(self, raw: LatentPrediction) -> Tensor:
        """The latent variance over that of the prior, in [0, 1], shape [n].

        Queries that see little have small gradients, and with them a small variance: what counts is the
        share of it that the training rows leave.
        """
        return raw.novelty.mean(dim=1)
