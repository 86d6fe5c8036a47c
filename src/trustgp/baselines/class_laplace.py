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
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from ..data import Inputs, Rows, as_inputs, chunks, count, take, to_device
from ..metrics import class_nll
from ..tangents.gradients import Gradients
from ..tangents.network import choose_parameters, prepare
from .class_answer import ClassAnswer, answer_classes, check_labels, read_labels
from .kron_variance import KronCollector, blocks_of
from .laplace_posterior import BATCH, MISSING
from .running import own_randomness, run_network

HALF_DECADES = range(-8, 9)  # powers of the root of ten, times the evidence's prior precision
CHUNK = 512  # rows whose signals stand side by side
ALIKE = {torch.float64: 1e-8}  # of our variance and laplace-torch's, relative
ROUGHLY = 0.1  # in other precisions: convolutions on a GPU round to three digits, what is wrong is so by far


@dataclass(frozen=True)
class LaplaceClassifier:
    """A classifier linearised in its weights, whose posterior is Gaussian. Made by `fit`.

    Args:
        network: A private copy in eval mode.
        names: Of the parameters that vary.
        laplace: laplace-torch's object, around a second copy.
        evidence: The prior precision of the largest evidence.
        prior: The one that is used.
        gradients: Hands out the logits' gradients.
    """

    network: nn.Module
    names: tuple[str, ...]
    laplace: Any
    evidence: float
    prior: float
    gradients: Gradients

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
        if not isinstance(rows.inputs, Tensor):
            raise ValueError("laplace-torch takes one tensor of inputs; these are a tuple or a dict.")
        still = copy.deepcopy(network).eval()
        check_labels(run_network(still, rows.inputs[:2]), labels, name="train")
        with torch.enable_grad(), own_randomness(0, next(still.parameters()).device):
            laplace = _curvature(still, rows, labels, last_layer)
        if last_layer:
            layer = laplace.model._last_layer_name
            names = tuple(f"{layer}.{name}" for name, _ in laplace.model.last_layer.named_parameters())
        else:
            names = tuple(choose_parameters(still, "all"))
        prior = float(laplace.prior_precision)
        tangents = prepare(still, names, None)
        mix = torch.eye(laplace.n_outputs, dtype=torch.float64)
        fitted = cls(still, names, laplace, prior, prior, Gradients(tangents, mix))
        fitted._check(rows.inputs[:3])
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

    @torch.no_grad()
    def variances(self, inputs: Inputs, priors: Sequence[float]) -> Tensor:
        """Of each logit under each of D prior precisions, chunk by chunk, shape [n, C, D].

        Args:
            inputs: Shape [n, ...].
            priors: To look at in one pass.
        """
        place = next(self.network.parameters()).device
        rows = to_device(as_inputs(inputs), place)
        rows = torch.nan_to_num(rows)  # in a joint backward pass a broken row would break its neighbours
        blocks = blocks_of(self.laplace.H, self.names, priors)
        parts = []
        for index in chunks(count(rows), CHUNK):
            shape = len(index), self.laplace.n_outputs, len(priors)
            parts.append(torch.zeros(shape, dtype=self.laplace.mean.dtype, device=place))
            self.gradients(take(rows, index), KronCollector(blocks, parts[-1]))
        return torch.cat(parts)

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

    @torch.no_grad()
    def _check(self, few: Tensor) -> None:
        """Our variances must be laplace-torch's own on a few rows."""
        few = few.to(next(self.network.parameters()).device)
        backend = self.laplace.backend
        jacobians, _ = (backend.last_layer_jacobians if backend.last_layer else backend.jacobians)(few)
        expected = self.laplace.functional_variance(jacobians).diagonal(dim1=1, dim2=2)
        found = self.variances(few, [self.evidence])[..., 0]
        if not (found - expected).norm() <= ALIKE.get(found.dtype, ROUGHLY) * expected.norm():
            raise ValueError(
                "the network's layers do not match their Kronecker factors; use one whose layers are each "
                "called with inputs of one size, or last_layer=True."
            )


def probit(logits: Tensor, variance: Tensor) -> Tensor:
    r""":math:`\mathrm{softmax}(z_c / \sqrt{1 + \tfrac\pi8 v_c})`, all of shape [n, C]."""
    return (logits / torch.sqrt(1.0 + math.pi / 8 * variance)).softmax(dim=1)


def _curvature(network: nn.Module, rows: Rows, labels: Tensor, last_layer: bool) -> Any:
    """laplace-torch's posterior on a copy of the network, with the prior of the largest evidence."""
    try:
        from laplace import KronLaplace, KronLLLaplace
    except ImportError as error:
        raise ImportError(MISSING.format(error=error)) from error
    own = copy.deepcopy(network)  # laplace-torch leaves its marks on the network
    laplace = (KronLLLaplace if last_layer else KronLaplace)(own, "classification")
    place = next(own.parameters()).device
    data = TensorDataset(rows.inputs.to(place), labels.to(place))
    batches = BatchSampler(SequentialSampler(data), BATCH, drop_last=False)  # whole batches, not row by row
    laplace.fit(DataLoader(data, sampler=batches, batch_size=None))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="By default `link_approx` is `probit`")  # so it is
        laplace.optimize_prior_precision(pred_type="glm", method="marglik")
    return laplace
