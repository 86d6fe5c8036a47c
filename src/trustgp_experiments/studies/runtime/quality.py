"""How good are the error bars whose time is taken, and how large are they?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trustgp import metrics
from trustgp.data.rows import Rows
from trustgp.data.trees import state_tensors
from trustgp.tangents.network import as_matrix

from ...peers import (
    ConstantNoise,
    DropoutClassifier,
    Ensemble,
    EnsembleClassifier,
    MCDropout,
    SoftmaxClassifier,
)
from ...peers.tuning import likeliest_noise
from ...training.inference import errors
from .fixtures import FittedCase
from .timing import reason_of

SAMPLES = 20
PLAIN, SERIAL, BATCHED, ENSEMBLE = "network", "MC-dropout 20", "MC-dropout 20, batched", "ensemble of 5"
LAST, KFAC = "Laplace last layer", "Laplace KFAC"
LAPLACE = {LAST: True, KFAC: False}


def ours(budget: str) -> str:
    """The name of trustgp at a budget."""
    return f"trustgp {budget}"


def quality(case: FittedCase) -> dict[str, dict[str, Any]]:
    """NLL of the test rows, AUROC of new ones, bytes, or a reason why not, by method."""
    makers: dict[str, Callable[[], Any]] = {
        PLAIN: lambda: _plain(case),
        SERIAL: lambda: _dropout(case),
        ENSEMBLE: lambda: _ensemble(case),
        **{name: lambda last=last: case.laplace(last_layer=last) for name, last in LAPLACE.items()},
        **{ours(budget): lambda budget=budget: case.model(budget) for budget in case.budgets},
    }
    found: dict[str, dict[str, Any]] = {}
    for name, make in makers.items():
        try:
            found[name] = {**_scores(case, make()), "bytes": held_bytes(case, name), "reason": ""}
        except Exception as error:  # of any kind: the others are judged all the same
            found[name] = {"nll": None, "auroc": None, "bytes": None, "reason": reason_of(error)}
    if not case.kind.members:  # not trained, only timed
        found[ENSEMBLE] |= {"nll": None, "auroc": None}
    return found


def held_bytes(case: FittedCase, name: str) -> int:
    """What a robot must hold for a method: all networks, and what stands beside them."""
    network = _tensor_bytes([*case.network.parameters(), *case.network.buffers()])
    if name == ENSEMBLE:
        return len(case.members) * network
    if name in LAPLACE:
        found = case.laplace(last_layer=LAPLACE[name])
        kron = (found.laplace if hasattr(found, "laplace") else found.posterior.laplace).H
        return network + _tensor_bytes(state_tensors([kron.eigenvalues, kron.eigenvectors]))
    for budget in case.budgets:
        if name == ours(budget):
            case.model(budget)
            return network + (case.folder / f"{budget}.trustgp").stat().st_size
    return network


def _tensor_bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _scores(case: FittedCase, method: Any) -> dict[str, float | None]:
    inputs, targets = case.near(case.rows.test)
    known, new = method.predict(inputs), method.predict(case.rows.novel.to(case.device))
    if case.kind.classes:
        nll = metrics.class_nll(known.probabilities, targets).mean()
    else:
        nll = metrics.gaussian_nll(known.mean, known.variance, targets).mean()
    here, there = (_novelty(said, case.kind.classes) for said in (known, new))
    told = float(metrics.auroc(here, there))
    return {"nll": float(nll) if math.isfinite(nll) else None, "auroc": told}


def _novelty(said: Any, classes: bool) -> Tensor:
    """One number a row: the mean epistemic variance; of classes the score, else the entropy."""
    if not classes:
        return as_matrix(said.epistemic).double().mean(dim=1)
    return metrics.entropy(said.probabilities) if said.score is None else said.score.double()


def _plain(case: FittedCase) -> Any:
    if case.kind.classes:
        return SoftmaxClassifier.fit(case.network)
    return ConstantNoise.fit(case.network, case.near(case.rows.validation))


def _ensemble(case: FittedCase) -> Any:
    if case.kind.classes:
        return EnsembleClassifier.fit(case.members)
    return Ensemble.fit(case.members, case.near(case.rows.validation))


def _dropout(case: FittedCase) -> Any:
    """Without the `fit` of these two, which takes dropout by layers only, and not by functions."""
    if case.kind.classes:
        return DropoutClassifier(case.noisy, SAMPLES, case.seed)
    noiseless = MCDropout(case.noisy, SAMPLES, case.seed, noise=torch.zeros(1))
    rows = Rows(*case.near(case.rows.validation))
    said = noiseless.predict(rows.inputs)
    spread = as_matrix(said.epistemic).double()
    return replace(noiseless, noise=likeliest_noise(errors(said.mean, rows), spread))
