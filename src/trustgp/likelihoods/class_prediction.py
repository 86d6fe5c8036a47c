"""What a user gets back from a classifier."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..math.cross_entropy import two_sided
from .prediction import Prediction


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    r"""Logits, the probabilities of the classes, and the latent variance of the logits.

    `mean` is the network's logits, to the bit, of shape [n, C], or [n] or [n, 1] where one logit stands for
    two classes. `epistemic`, which is also `variance`, is their latent variance, of the same shape: a
    view of one number a row unless each logit has a kernel of its own. `aleatoric` and `excess` are 0: that
    a label may fall out otherwise is in the probabilities.

    Args:
        temperature: T of each row, float64, shape [n].
    """

    temperature: Tensor = field(kw_only=True)

    @property
    def variance(self) -> Tensor:
        """The latent variance of the logits, the same as `epistemic`."""
        return self.epistemic

    @property
    def probabilities(self) -> Tensor:
        r"""Of the classes, softmax(z / T), shape [n, C]; with one logit [n, 2].

        All logits of a row are divided by the same number: the most probable class is the network's. Where
        nothing is known (`valid` is False) all classes are equally probable.
        """
        return torch.softmax(self.cooled, dim=1)

    @property
    def cooled(self) -> Tensor:
        """z / T, of which `probabilities` is the softmax, shape [n, C]; one logit z is the pair (0, z)."""
        logits = self.mean if self.mean.dtype in (torch.float32, torch.float64) else self.mean.float()
        logits = two_sided(logits.reshape(logits.shape[0], -1))
        inverse = torch.where(self.valid, 1.0 / self.temperature, 0.0).to(logits)[:, None]
        return torch.where(self.valid[:, None], logits, 0.0) * inverse

    @property
    def classes(self) -> Tensor:
        """The class of the network's largest logit, which no error bar changes, int64, shape [n]."""
        logits = self.mean.reshape(len(self.mean), -1)
        return (logits.squeeze(1) > 0).long() if logits.shape[1] == 1 else logits.argmax(dim=1)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Not for classes: `model.conformal(validation, level=...).sets(inputs)` gives sets of them."""
        raise TypeError(
            "a class has no interval; model.conformal(validation, level=0.95).sets(inputs) gives the classes "
            "among which the true one is."
        )
