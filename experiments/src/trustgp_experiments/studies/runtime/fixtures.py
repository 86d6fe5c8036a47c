"""One network of the runtime study with every method fitted to it, and their quality and size."""

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from trustgp import metrics
from trustgp.api import fit
from trustgp.likelihoods import Classification, Regression
from trustgp.tangents.network import as_matrix

from ...core.cases import IN_DOMAIN, Case
from ...peers import CLASS_METHODS, METHODS, Bundle, DropoutClassifier, MCDropout, TrustGP, train
from ...peers.size import shipped_bytes
from .networks import Budgets, Kind, dropping
from .rows import NEW
from .timing import reason_of

MEMBERS, SAMPLES = 5, 20
DEFAULT = "default"
PLAIN, SERIAL, BATCHED, ENSEMBLE = "network", "MC-dropout 20", "MC-dropout 20, batched", "ensemble of 5"
LAPLACE = LAST, KFAC = "Laplace last layer", "Laplace KFAC"
PEERS = {PLAIN: ("network + noise", "softmax"), KFAC: ("Laplace GLM", "Laplace KFAC")}
"""Names of these methods among the peers, for a regression and for classes, where they differ."""


def ours(budget: str) -> str:
    """Name of trustgp at a budget."""
    return f"trustgp {budget}"


class FittedCase:
    """A trained network and its error bars, each made when it is first needed; files go to the folder."""

    def __init__(self, kind: Kind, *, seed: int, device: str, folder: Path) -> None:
        self.kind, self.seed, self.device, self.folder = kind, seed, device, folder
        self._fits: dict[str, Any] = {}

    @cached_property
    def rows(self) -> Case:
        return self.kind.rows(self.kind.size, self.seed)

    @cached_property
    def network(self) -> nn.Module:
        """Network trained with dropout, in eval mode, where it drops nothing."""
        return self._member(0, trained=True)

    @cached_property
    def noisy(self) -> nn.Module:
        return dropping(self.network)

    @cached_property
    def members(self) -> list[nn.Module]:
        """Ensemble of the network and others from other seeds, trained only if `kind.members` is true."""
        return [self.network, *(self._member(k, trained=self.kind.members) for k in range(1, MEMBERS))]

    @property
    def budgets(self) -> Budgets:
        """Options of `trustgp.fit` by method: the defaults first, then the largest."""
        budgets = {DEFAULT: {}, **self.kind.budgets(self.network)}
        return {ours(name): options for name, options in budgets.items()}

    @property
    def methods(self) -> list[str]:
        return [PLAIN, SERIAL, ENSEMBLE, *LAPLACE, *self.budgets]

    def method(self, name: str) -> Any:
        """Method of this name, fitted once; one that cannot be fitted raises the same error every time."""
        if name not in self._fits:
            try:
                self._fits[name] = self._fitted(name)
            except Exception as error:  # it is needed again at every timing
                self._fits[name] = error
        if isinstance(self._fits[name], Exception):
            raise self._fits[name]
        return self._fits[name]

    def file(self, name: str, suffix: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{name.removeprefix(ours(''))}{suffix}"

    def inputs(self, batch: int) -> Tensor:
        """Batch of test inputs on the device, repeated if there are fewer."""
        test = self.rows.tests[IN_DOMAIN][0]
        return test[torch.arange(batch) % len(test)].to(self.device)

    def _fitted(self, name: str) -> Any:
        """Method fitted to the first `kind.size.fitted` training rows and to the validation rows."""
        pairs = [part[: self.kind.size.fitted] for part in self.rows.train], self.rows.validation
        rows, validation = ((inputs.to(self.device), targets.to(self.device)) for inputs, targets in pairs)
        if name == SERIAL:  # without the `fit` of these two: it takes dropout by layers, not by functions
            if self.kind.classes:
                return DropoutClassifier(self.noisy, SAMPLES, self.seed)
            return MCDropout(self.noisy, SAMPLES, self.seed).fitted(validation)
        if name in self.budgets:
            options = {**self.budgets[name], "seed": self.seed, "device": self.device}
            options["likelihood"] = Classification() if self.kind.classes else Regression()
            return fit(self.network, rows, validation=validation, progress=False, **options)
        peers = {method.name: method for method in (CLASS_METHODS if self.kind.classes else METHODS)}
        members = self.members[1:] if name == ENSEMBLE else []
        bundle = Bundle(self.network, members, None, rows, validation, self.seed, self.device)
        return peers[PEERS.get(name, (name, name))[self.kind.classes]].fit(bundle)

    def _member(self, member: int, *, trained: bool) -> nn.Module:
        kind, size, seed = self.kind, self.kind.size, 100 * self.seed + member
        network = kind.network(seed)
        if trained:
            recipe: dict[str, Any] = {"batch_size": size.batch, "learning_rate": size.rate, "seed": seed}
            recipe["epochs"] = max(1, round(size.steps * size.batch / len(self.rows.train[0])))
            recipe["loss"] = cross_entropy if kind.classes else mse_loss
            # no recording: not every layer here can be recorded
            network = train(network, *self.rows.train, device=self.device, record=False, **recipe)
        return network.to(self.device).eval()


def quality(case: FittedCase) -> dict[str, dict[str, Any]]:
    """NLL of the test rows, AUROC of new rows and bytes by method, or the reason why they are missing."""
    scores: dict[str, dict[str, Any]] = {}
    for name in case.methods:
        try:
            scores[name] = {**_scores(case, case.method(name)), "bytes": held_bytes(case, name), "reason": ""}
        except Exception as error:  # of any kind: the others are still scored
            scores[name] = {"nll": None, "auroc": None, "bytes": None, "reason": reason_of(error)}
    if not case.kind.members:  # not trained, only timed
        scores[ENSEMBLE] |= {"nll": None, "auroc": None}
    return scores


def held_bytes(case: FittedCase, name: str) -> int:
    """Bytes that a robot must store for a method: all networks, and the error bar."""
    method = case.method(name)
    return shipped_bytes(TrustGP(method) if name in case.budgets else method)


def _scores(case: FittedCase, method: Any) -> dict[str, float | None]:
    (inputs, targets), (new, _) = (case.rows.tests[name] for name in (IN_DOMAIN, NEW))
    familiar, novel = (method.predict(rows.to(case.device)) for rows in (inputs, new))
    assert targets is not None
    targets = targets.to(case.device)
    if case.kind.classes:
        nll = metrics.class_nll(familiar.probabilities, targets).mean()
    else:
        nll = -familiar.log_prob(targets).mean()

    def novelty(prediction: Any) -> Tensor:
        """Novelty [n]: the mean epistemic variance; for classes the score, or the entropy without one."""
        if not case.kind.classes:
            return as_matrix(prediction.epistemic).double().mean(dim=1)
        score = prediction.score
        return metrics.entropy(prediction.probabilities) if score is None else score.double()

    area = metrics.auroc(novelty(familiar), novelty(novel))
    return {"nll": float(nll) if math.isfinite(nll) else None, "auroc": float(area)}
