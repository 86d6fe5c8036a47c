"""One exact Gaussian process with the tangent kernel on a random subset of the rows: no experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trustgp.api import fit
from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs
from trustgp.experts.neighbours import Patchwork
from trustgp.likelihoods.prediction import Prediction
from trustgp.model import UncertaintyModel


@dataclass(frozen=True)
class SubsetGP:
    """trustgp with one expert, which holds a random subset of the rows. Made by `fit`.

    Kernel, evidence, leave-one-out scale and the calibration on validation rows are trustgp's own, so what
    is left of a difference comes from the experts (and from the witness, which is not asked).

    Args:
        model: With one expert.
    """

    model: UncertaintyModel

    @classmethod
    def fit(
        cls,
        network: nn.Module,
        train: Any,
        validation: Any,
        *,
        rows: int = 2000,
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> SubsetGP:
        """An exact GP on `rows` training rows, its scale fitted to the validation rows.

        Args:
            network: Trained, in eval mode.
            train: The rows it was trained on: (inputs, targets), a Dataset or a DataLoader.
            validation: Rows it was not trained on.
            rows: How many to keep, at random; all of them if there are fewer.
            seed: Of the choice.
            device: Where to work; None: where the network is.
        """
        every = read_rows(train, name="train")
        kept = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))[:rows]
        subset = every.take(kept), every.targets[kept.to(every.targets.device)]
        model = fit(
            network,
            subset,
            validation=validation,
            num_experts=1,
            patchwork=Patchwork(neighbours=0),
            witness=None,
            seed=seed,
            device=device,
            progress=False,
        )
        return cls(model)

    def predict(self, inputs: Inputs) -> Prediction:
        """The network's own output, with the GP's error bar; `corrected` adds the GP's residual mean.

        Args:
            inputs: A tensor, tuple or dict, as the network takes them.
        """
        return self.model.predict(inputs)
