"""Laplace for classifiers: laplace-torch's curvature, the network linearised, probit probabilities."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trustgp.data.trees import Inputs
from trustgp.metrics import class_nll

from ..training.inference import run_network
from .class_answer import ClassAnswer, answer_classes, check_labels, read_labels
from .kron_variance import KronVariance
from .laplace_posterior import curvature

HALF_DECADES = range(-8, 9)  # powers of the root of ten, times the evidence's prior precision


@dataclass(frozen=True)
class LaplaceClassifier:
    """A classifier linearised in its weights, whose posterior is Gaussian. Made by `fit`.

    Args:
        network: A private copy in eval mode.
        names: Of the parameters that vary.
        laplace: laplace-torch's object, around a second copy.
        evidence: The prior precision of the largest evidence.
        prior: The one that is used.
        kron: Makes variances.
    """

    network: nn.Module
    names: tuple[str, ...]
    laplace: Any
    evidence: float
    prior: float
    kron: KronVariance

    @classmethod
    def fit(
        cls, network: nn.Module, train: Any, validation: Any = None, *, last_layer: bool = False
    ) -> LaplaceClassifier:
        """The curvature of all training rows (KFAC of the Gauss-Newton matrix), and a prior precision.

        Args:
            network: Trained, in eval mode; layers that curvlinops knows; logits [n, C].
            train: The rows it was trained on: (inputs, labels), a Dataset or a DataLoader.
            validation: Rows it was not trained on: the prior of their highest likelihood is taken from a
                grid around the evidence's. None: the evidence's.
            last_layer: Whether the weights of the last layer alone vary.
        """
        rows, labels = read_labels(train, name="train")
        still = copy.deepcopy(network).eval()
        if isinstance(rows.inputs, Tensor):
            check_labels(run_network(still, rows.inputs[:2]), labels, name="train")
        laplace, names = curvature(still, rows.inputs, labels, "classification", last_layer=last_layer)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="By default `link_approx` is `probit`")  # so it is
            laplace.optimize_prior_precision(pred_type="glm", method="marglik")
        kron = KronVariance.fit(still, names, laplace, rows.inputs[:3])
        if kron.gradients is None:
            raise ValueError(
                "the network's layers do not match their Kronecker factors; use one whose layers are each "
                "called with inputs of one size, or last_layer=True."
            )
        prior = float(laplace.prior_precision)
        fitted = cls(still, names, laplace, prior, prior, kron)
        return fitted if validation is None else replace(fitted, prior=fitted._likeliest(validation))

    def predict(self, inputs: Inputs) -> ClassAnswer:
        r"""The network's logits, less sure where their variance is large: MacKay's probit approximation.

        .. math:: \mathrm{softmax}_c ( z_c / \sqrt{1 + \pi v_c / 8} ), \; v = \mathrm{diag}(J P^{-1} J^\top)

        Args:
            inputs: A tensor [n, ...].
        """
        logits = run_network(self.network, inputs)
        variance = self.variances(inputs, [self.prior])[..., 0]
        return answer_classes(inputs, logits, probit(logits, variance), variance)

    def variances(self, inputs: Inputs, priors: Sequence[float]) -> Tensor:
        """Of each logit under each of D prior precisions, chunk by chunk, shape [n, C, D].

        Args:
            inputs: Shape [n, ...].
            priors: To look at in one pass.
        """
        return self.kron(inputs, self.laplace.H, priors)

    def _likeliest(self, validation: Any) -> float:
        """The prior of the highest likelihood of held-out rows."""
        rows, labels = read_labels(validation, name="validation")
        logits = run_network(self.network, rows.inputs)
        check_labels(logits, labels, name="validation")
        priors = [self.evidence * math.sqrt(10.0) ** step for step in HALF_DECADES]
        variances = self.variances(rows.inputs, priors)
        labels = labels.to(logits.device)
        losses = [
            float(class_nll(probit(logits, variances[..., place]), labels).mean())
            for place in range(len(priors))
        ]
        return priors[min(range(len(priors)), key=losses.__getitem__)]


def probit(logits: Tensor, variance: Tensor) -> Tensor:
    r""":math:`\mathrm{softmax}(z_c / \sqrt{1 + \tfrac\pi8 v_c})`, all of shape [n, C]."""
    return (logits / torch.sqrt(1.0 + math.pi / 8 * variance)).softmax(dim=1)
