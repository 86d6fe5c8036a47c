"""trustgp itself among its peers: one fit, and the three ways in which its answer may be read."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from trustgp.api import fit
from trustgp.data.trees import Inputs
from trustgp.likelihoods.prediction import Prediction
from trustgp.model import UncertaintyModel

READINGS = ("own", "corrected", "plain")


@dataclass(frozen=True)
class TrustGP:
    """A fitted model, read in one of three ways. Made by `fit` or `fit_paper`.

    Args:
        model: From `trustgp.fit`.
        reading: "own": about the network's output; "corrected": about the corrected mean; "plain": about
            the network's output with the variance of the evidence alone.
    """

    model: UncertaintyModel
    reading: str = "own"

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise ValueError(f"reading={self.reading!r}; allowed are {', '.join(READINGS)}.")

    @classmethod
    def fit(
        cls,
        network: nn.Module,
        train: Any,
        validation: Any,
        *,
        seed: int = 0,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> TrustGP:
        """trustgp as it comes: shared outputs, calibrated on the validation rows.

        Args:
            network: Trained, in eval mode.
            train: The rows it was trained on: (inputs, targets), a Dataset or a DataLoader.
            validation: Rows it was not trained on.
            seed: Of the fit.
            device: Where to work; None: where the network is.
            options: Further ones of `trustgp.fit`.
        """
        settings: dict[str, Any] = {"seed": seed, "device": device, "progress": False, **options}
        return cls(fit(network, train, validation=validation, **settings))

    @classmethod
    def fit_paper(
        cls,
        network: nn.Module,
        train: Any,
        *,
        seed: int = 0,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> TrustGP:
        """The paper's form: a kernel, a gate and experts for each output, the evidence's variance alone.

        There is no witness, and no validation rows are taken. It says nothing about time series: the plain
        variance does not come from leaving rows out.

        Args:
            network, train, seed, device, options: See `fit`.
        """
        settings: dict[str, Any] = {"seed": seed, "device": device, "progress": False, **options}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="the rows look like a time series")
            model = fit(network, train, outputs="separate", witness=None, **settings)
        return cls(model, "plain")

    @property
    def corrected(self) -> TrustGP:
        """The same model, read about the corrected mean."""
        return replace(self, reading="corrected")

    def predict(self, inputs: Inputs) -> Prediction:
        """The reading's prediction.

        Args:
            inputs: A tensor, tuple or dict, as the network takes them.
        """
        found = self.model.predict(inputs)
        return found if self.reading == "own" else getattr(found, self.reading)
