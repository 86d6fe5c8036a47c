"""One network of the runtime study with everything fitted to it, made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trustgp.api import fit, load
from trustgp.fitting.compress import compress
from trustgp.model import UncertaintyModel

from ...peers import KronPosterior, LaplaceClassifier, LaplaceGLM
from .cases import Budgets, Kind
from .networks import dropping
from .rows import CaseRows, Pair

MEMBERS = 5
UNBOUNDED = "unbounded"


class FittedCase:
    """A trained network and its error bars. What takes long is kept in a folder, and read when it is there.

    Args:
        kind: The network.
        seed: Of its rows, weights and fits.
        device: Where to work.
        folder: Of weights and fitted models; it must belong to this network, seed and code alone.
    """

    def __init__(self, kind: Kind, *, seed: int, device: str, folder: Path) -> None:
        self.kind, self.seed, self.device, self.folder = kind, seed, device, folder
        self._made: dict[str, Any] = {}

    @cached_property
    def rows(self) -> CaseRows:
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
        """Options of `trustgp.fit` by name: first without a budget, then from quality to small."""
        return {UNBOUNDED: self.kind.unbounded, **self.kind.budgets(self.network)}

    def model(self, budget: str) -> UncertaintyModel:
        """trustgp at one of the `budgets`."""
        return self._once(budget, lambda: self._model(budget))

    def laplace(self, *, last_layer: bool) -> Any:
        """Laplace's GLM predictive, of the last layer's weights or of all; laplace-torch's curvature."""
        return self._once(f"laplace {last_layer}", lambda: self._laplace(last_layer))

    def inputs(self, batch: int) -> Tensor:
        """Test inputs on the device, so many; the first ones come again where they are too few."""
        test = self.rows.test[0]
        return test[torch.arange(batch) % len(test)].to(self.device)

    def near(self, pair: Pair) -> Pair:
        """On the device."""
        return pair[0].to(self.device), pair[1].to(self.device)

    def _once(self, name: str, work: Callable[[], Any]) -> Any:
        if name not in self._made:
            try:
                self._made[name] = work()
            except Exception as error:  # a method that cannot be fitted is asked for again at every timing
                self._made[name] = error
        if isinstance(self._made[name], Exception):
            raise self._made[name]
        return self._made[name]

    def _model(self, budget: str) -> UncertaintyModel:
        file, options = self.folder / f"{budget}.trustgp", dict(self.budgets[budget])
        if file.exists():
            return load(file, self.network)
        smaller = options.pop("compress", None)
        validation = self.near(self.rows.validation)
        options |= {"likelihood": self.kind.likelihood, "seed": self.seed, "device": self.device}
        known = self.near(self.rows.known)
        model = fit(self.network, known, validation=validation, progress=False, **options)
        if smaller is not None:
            model = compress(model, validation=validation, progress=False, **smaller)
        self.folder.mkdir(parents=True, exist_ok=True)
        model.save(file)
        return model

    def _laplace(self, last_layer: bool) -> Any:
        rows = self.near(self.rows.known), self.near(self.rows.validation)
        if self.kind.classes:
            return LaplaceClassifier.fit(self.network, *rows, last_layer=last_layer)
        return LaplaceGLM.fit(KronPosterior.fit(self.network, *rows, last_layer=last_layer), rows[1])

    def _weights(self, member: int, *, trained: bool) -> nn.Module:
        """Of a member of the ensemble, in eval mode on the device."""
        number = 100 * self.seed + member
        network, file = self.kind.network(number), self.folder / f"member-{member}.safetensors"
        if trained and file.exists():
            network.load_state_dict(load_file(file))
        elif trained:
            network = self.kind.trained(self.rows, seed=number, device=self.device)
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file({name: value.contiguous() for name, value in network.state_dict().items()}, file)
        return network.to(self.device).eval()
