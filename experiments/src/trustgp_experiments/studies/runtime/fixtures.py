"""One network of the runtime study with every method fitted to it, and how good and how large they are."""

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from trustgp import metrics
from trustgp.api import fit, load
from trustgp.data.atomic_file import atomic_file
from trustgp.data.trees import state_tensors
from trustgp.likelihoods import Classification, Regression
from trustgp.model import UncertaintyModel
from trustgp.tangents.network import as_matrix

from ...core.cases import IN_DOMAIN, Case, Pair
from ...peers import CLASS_METHODS, METHODS, Bundle, DropoutClassifier, MCDropout, train
from .networks import Budgets, Kind, dropping
from .rows import NEW
from .timing import reason_of

MEMBERS, SAMPLES = 5, 20
DEFAULT = "default"
PLAIN, SERIAL, BATCHED, ENSEMBLE = "network", "MC-dropout 20", "MC-dropout 20, batched", "ensemble of 5"
LAST, KFAC = "Laplace last layer", "Laplace KFAC"
PEERS = {PLAIN: ("network + noise", "softmax"), KFAC: ("Laplace GLM", "Laplace KFAC")}
"""Their names among the peers, of a regression and of classes, where these are others."""


def ours(budget: str) -> str:
    """The name of trustgp at a budget."""
    return f"trustgp {budget}"


class FittedCase:
    """A trained network and its error bars, kept in a folder that is of this network, seed and code alone."""

    def __init__(self, kind: Kind, *, seed: int, device: str, folder: Path) -> None:
        self.kind, self.seed, self.device, self.folder = kind, seed, device, folder
        self._made: dict[str, Any] = {}

    @cached_property
    def rows(self) -> Case:
        """What it is trained and judged on."""
        return self.kind.rows(self.kind.size, self.seed)

    @cached_property
    def network(self) -> nn.Module:
        """Trained with dropout, in eval mode, which drops nothing."""
        return self._weights(0, trained=True)

    @cached_property
    def noisy(self) -> nn.Module:
        """The same network, dropping."""
        return dropping(self.network)

    @cached_property
    def members(self) -> list[nn.Module]:
        """The ensemble: the network and others from other starts, trained where `kind.members` says so."""
        others = [self._weights(number, trained=self.kind.members) for number in range(1, MEMBERS)]
        return [self.network, *others]

    @property
    def budgets(self) -> Budgets:
        """Options of `trustgp.fit` by method: first as it comes, then from quality to small."""
        budgets = {DEFAULT: {}, **self.kind.budgets(self.network)}
        return {ours(name): options for name, options in budgets.items()}

    @property
    def methods(self) -> list[str]:
        """Names of all methods that are fitted."""
        return [PLAIN, SERIAL, ENSEMBLE, LAST, KFAC, *self.budgets]

    def method(self, name: str) -> Any:
        """One of the `methods`, fitted once; one that cannot be raises the same error every time."""
        if name not in self._made:
            try:
                self._made[name] = self._fitted(name)
            except Exception as error:  # it is asked for again at every timing
                self._made[name] = error
        if isinstance(self._made[name], Exception):
            raise self._made[name]
        return self._made[name]

    def model_file(self, name: str) -> Path:
        """Where trustgp at a budget, by the name of that method, is kept."""
        return self.folder / f"{name.removeprefix(ours(''))}.trustgp"

    def inputs(self, batch: int) -> Tensor:
        """Test inputs on the device, so many; the first ones come again where they are too few."""
        test = self.rows.tests[IN_DOMAIN][0]
        return test[torch.arange(batch) % len(test)].to(self.device)

    @cached_property
    def _known(self) -> tuple[Pair, Pair]:
        """On the device, the training rows that error bars are fitted on, and the validation rows."""
        pairs = [part[: self.kind.size.fitted] for part in self.rows.train], self.rows.validation
        known, validation = ((inputs.to(self.device), targets.to(self.device)) for inputs, targets in pairs)
        return known, validation

    def _fitted(self, name: str) -> Any:
        if name == SERIAL:  # without the `fit` of these two: it takes dropout by layers, not by functions
            if self.kind.classes:
                return DropoutClassifier(self.noisy, SAMPLES, self.seed)
            return MCDropout(self.noisy, SAMPLES, self.seed).fitted(self._known[1])
        if name in self.budgets:
            return self._model(name)
        known = {method.name: method for method in (CLASS_METHODS if self.kind.classes else METHODS)}
        members = self.members[1:] if name == ENSEMBLE else []
        bundle = Bundle(self.network, members, None, *self._known, self.seed, self.device)
        return known[PEERS.get(name, (name, name))[self.kind.classes]].fit(bundle)

    def _model(self, name: str) -> UncertaintyModel:
        file, options = self.model_file(name), dict(self.budgets[name])
        if file.exists():
            return load(file, self.network)
        known, validation = self._known
        options |= {"seed": self.seed, "device": self.device}
        options["likelihood"] = Classification() if self.kind.classes else Regression()
        model = fit(self.network, known, validation=validation, progress=False, **options)
        self.folder.mkdir(parents=True, exist_ok=True)
        model.save(file)
        return model

    def _weights(self, member: int, *, trained: bool) -> nn.Module:
        """Of a member of the ensemble, in eval mode on the device."""
        kind, size, number = self.kind, self.kind.size, 100 * self.seed + member
        network, file = kind.network(number), self.folder / f"member-{member}.safetensors"
        if trained and file.exists():
            network.load_state_dict(load_tensors(file.read_bytes()))
        elif trained:
            recipe: dict[str, Any] = {"batch_size": size.batch, "learning_rate": size.rate, "seed": number}
            recipe["epochs"] = max(1, round(size.steps * size.batch / len(self.rows.train[0])))
            recipe["loss"] = cross_entropy if kind.classes else mse_loss
            # no recording: not every layer here can be recorded
            network = train(network, *self.rows.train, device=self.device, record=False, **recipe)
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(file) as temporary:
                save_file({n: value.contiguous() for n, value in network.state_dict().items()}, temporary)
        return network.to(self.device).eval()


def quality(case: FittedCase) -> dict[str, dict[str, Any]]:
    """NLL of the test rows, AUROC of new ones, bytes, or a reason why not, by method."""
    found: dict[str, dict[str, Any]] = {}
    for name in case.methods:
        try:
            scores = _scores(case, case.method(name))
            found[name] = {**scores, "bytes": held_bytes(case, name), "reason": ""}
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
    if name in (LAST, KFAC):
        found = case.method(name)
        kron = (found.laplace if hasattr(found, "laplace") else found.posterior.laplace).H
        return network + _tensor_bytes(state_tensors([kron.eigenvalues, kron.eigenvectors]))
    file = case.model_file(name)
    return network + (file.stat().st_size if file.exists() else 0)


def _tensor_bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _scores(case: FittedCase, method: Any) -> dict[str, float | None]:
    (inputs, targets), (new, _) = (case.rows.tests[name] for name in (IN_DOMAIN, NEW))
    known, said = method.predict(inputs.to(case.device)), method.predict(new.to(case.device))
    assert targets is not None
    targets = targets.to(case.device)
    if case.kind.classes:
        nll = metrics.class_nll(known.probabilities, targets).mean()
    else:
        nll = -known.log_prob(targets).mean()
    told = float(metrics.auroc(*(_novelty(rows, case.kind.classes) for rows in (known, said))))
    return {"nll": float(nll) if math.isfinite(nll) else None, "auroc": told}


def _novelty(said: Any, classes: bool) -> Tensor:
    """One number a row: the mean epistemic variance; of classes the score, else the entropy."""
    if not classes:
        return as_matrix(said.epistemic).double().mean(dim=1)
    return metrics.entropy(said.probabilities) if said.score is None else said.score.double()
