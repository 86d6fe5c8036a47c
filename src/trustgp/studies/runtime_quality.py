"""How good are the error bars whose time is taken, and how large are they?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import metrics
from ..baselines import ConstantNoise, Ensemble, EnsembleClassifier, SoftmaxClassifier
from ..baselines.class_answer import answer_members
from ..baselines.running import answer, errors, own_randomness, run_network
from ..baselines.tuning import likeliest_noise
from ..data import Rows
from ..model import state_tensors
from ..tangents.network import as_matrix
from .runtime_timing import reason_of
from .runtime_workshop import Workshop

SAMPLES = 20
PLAIN, SERIAL, BATCHED, ENSEMBLE = "network", "MC-dropout 20", "MC-dropout 20, batched", "ensemble of 5"
LAST, KFAC = "Laplace last layer", "Laplace KFAC"
LAPLACE = {LAST: True, KFAC: False}


def ours(budget: str) -> str:
    """The name of trustgp at a budget."""
    return f"trustgp {budget}"


def quality(shop: Workshop) -> dict[str, dict[str, Any]]:
    """NLL of the test rows, AUROC of new ones, bytes, or a reason why not, by method."""
    makers: dict[str, Callable[[], Any]] = {
        PLAIN: lambda: _plain(shop),
        SERIAL: lambda: _Sampled(shop),
        ENSEMBLE: lambda: _ensemble(shop),
        **{name: lambda last=last: shop.laplace(last_layer=last) for name, last in LAPLACE.items()},
        **{ours(budget): lambda budget=budget: shop.model(budget) for budget in shop.budgets},
    }
    found: dict[str, dict[str, Any]] = {}
    for name, make in makers.items():
        try:
            found[name] = {**_scores(shop, make()), "bytes": held_bytes(shop, name), "reason": ""}
        except Exception as error:  # of any kind: the others are judged all the same
            found[name] = {"nll": None, "auroc": None, "bytes": None, "reason": reason_of(error)}
    if not shop.kind.members:  # not trained, only timed
        found[ENSEMBLE] |= {"nll": None, "auroc": None}
    return found


def held_bytes(shop: Workshop, name: str) -> int:
    """What a robot must hold for a method: all networks, and what stands beside them."""
    network = parameter_bytes(shop.network)
    if name == ENSEMBLE:
        return len(shop.members) * network
    if name in LAPLACE:
        found = shop.laplace(last_layer=LAPLACE[name])
        kron = (found.laplace if hasattr(found, "laplace") else found.posterior.laplace).H
        return network + _tensor_bytes(state_tensors([kron.eigenvalues, kron.eigenvectors]))
    for budget in shop.budgets:
        if name == ours(budget):
            shop.model(budget)
            return network + (shop.folder / f"{budget}.trustgp").stat().st_size
    return network


def parameter_bytes(network: nn.Module) -> int:
    """Of its parameters and buffers."""
    return _tensor_bytes([*network.parameters(), *network.buffers()])


def _tensor_bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _scores(shop: Workshop, method: Any) -> dict[str, float | None]:
    inputs, targets = shop.near(shop.rows.test)
    known, new = method.predict(inputs), method.predict(shop.rows.novel.to(shop.device))
    if shop.kind.classes:
        nll = metrics.class_nll(known.probabilities, targets).mean()
    else:
        nll = metrics.gaussian_nll(known.mean, known.variance, targets).mean()
    here, there = (_novelty(said, shop.kind.classes) for said in (known, new))
    told = float(metrics.auroc(here, there))
    return {"nll": float(nll) if math.isfinite(nll) else None, "auroc": told}


def _novelty(said: Any, classes: bool) -> Tensor:
    """One number a row: the mean epistemic variance; of classes the score, else the entropy."""
    if not classes:
        return as_matrix(said.epistemic).double().mean(dim=1)
    return metrics.entropy(said.probabilities) if said.score is None else said.score.double()


def _plain(shop: Workshop) -> Any:
    if shop.kind.classes:
        return SoftmaxClassifier.fit(shop.network)
    return ConstantNoise.fit(shop.network, shop.near(shop.rows.validation))


def _ensemble(shop: Workshop) -> Any:
    if shop.kind.classes:
        return EnsembleClassifier.fit(shop.members)
    return Ensemble.fit(shop.members, shop.near(shop.rows.validation))


class _Sampled:
    """MC-dropout, of a network that may drop by functions as well as by layers."""

    def __init__(self, shop: Workshop) -> None:
        self._network, self._seed, self._classes = shop.noisy, shop.seed, shop.kind.classes
        self._noise = torch.zeros(1)
        if not self._classes:
            inputs, targets = shop.near(shop.rows.validation)
            outputs = self._outputs(inputs)
            spread = as_matrix(outputs.var(dim=0, correction=0)).double()
            self._noise = likeliest_noise(errors(outputs.mean(dim=0), Rows(inputs, targets)), spread)

    def predict(self, inputs: Tensor) -> Any:
        """Of the mean over all masks."""
        outputs = self._outputs(inputs)
        if self._classes:
            return answer_members(inputs, outputs)
        return answer(inputs, outputs.mean(dim=0), outputs.var(dim=0, correction=0), self._noise)

    def _outputs(self, inputs: Tensor) -> Tensor:
        with own_randomness(self._seed, inputs.device):
            return torch.stack([run_network(self._network, inputs) for _ in range(SAMPLES)])
