"""Inputs of the methods: networks, rows, the recipe to train more networks, and the cost of that."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trustgp.tangents.network import as_matrix

from ..training.train import now, own_randomness, run_network, train, train_many

Rows = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Wrap = Callable[[nn.Module], nn.Module] | None


@dataclass
class Meter:
    """Corrections to the clock for the current fit, in seconds."""

    extra: float = 0.0  # shared work done earlier, minus training, which the clock includes
    training: float = 0.0  # training of networks during the fit


@dataclass(frozen=True)
class Bundle:
    """Inputs of the methods. Networks are on `device`; rows, (inputs, targets), may be on any device."""

    network: nn.Module  # trained, in eval mode: the one network of every training-free method
    members: Sequence[nn.Module]  # same training, other starts; with `network` they are the ensemble
    dropout_network: nn.Module | None  # trained with dropout; None: methods that need one cannot be fitted
    train: Rows
    validation: Rows
    seed: int = 0  # of everything random in a fit
    device: str = "cpu"  # where to fit
    # how the network was trained: options of `train`, and "together" for `train_many`; empty: not known
    training: dict[str, Any] = field(default_factory=dict)
    # to train "network", "ensemble" (without the network) and "dropout"; a missing entry is not known
    seconds: dict[str, float] = field(default_factory=dict)
    _made: dict[str, tuple[Any, float, float]] = field(default_factory=dict, repr=False)
    _meter: Meter = field(default_factory=Meter, repr=False)

    @property
    def ensemble(self) -> list[nn.Module]:
        return [self.network, *self.members]

    @property
    def dropping(self) -> nn.Module:
        if self.dropout_network is None:
            raise ValueError("this method needs a network that was trained with dropout: dropout_network=...")
        return self.dropout_network

    @property
    def rows(self) -> tuple[Any, Any, Any]:
        return self.network, self.train, self.validation

    @property
    def single(self) -> bool:
        """Whether the network gives outputs [n], not [n, C]."""
        return run_network(self.network, self.validation[0][:1]).ndim == 1

    @property
    def outputs(self) -> int:
        return as_matrix(run_network(self.network, self.validation[0][:1])).shape[1]

    @property
    def held(self) -> tuple[Any, Any]:
        """Rows that peers are tuned on: validation rows, and training rows, whose inputs are not used."""
        return self.validation, self.train

    @property
    def place(self) -> dict[str, Any]:
        return {"seed": self.seed, "device": self.device}

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        """Result of the shared `work()`, computed once; its time counts in every fit that asks for it."""
        meter = self._meter
        if name in self._made:
            value, seconds, training = self._made[name]
            meter.extra += seconds
            meter.training += training
            return value
        before, start = copy.copy(meter), now(self.device)
        value = work()
        seconds = now(self.device) - start + meter.extra - before.extra
        self._made[name] = value, seconds, meter.training - before.training
        return value

    def timed(self, work: Callable[[], Any]) -> tuple[Any, float, float]:
        """Result of `work()`, its seconds with shared work, and separately those of training networks."""
        meter = self._meter
        meter.extra = meter.training = 0.0
        start = now(self.device)
        value = work()
        return value, now(self.device) - start + meter.extra, meter.training

    def trains(self, work: Callable[[], Any]) -> Any:
        """Result of `work()`, which trains networks; its seconds count as training, not as fit."""
        start = now(self.device)
        value = work()
        seconds = now(self.device) - start
        self._meter.extra -= seconds
        self._meter.training += seconds
        return value

    def trained_like(
        self, *, seeds: list[int], outputs: int | None = None, loss: Loss | None = None, wrap: Wrap = None
    ) -> list[nn.Module]:
        """Networks of the same architecture, trained by the same recipe on the same rows, one for each seed.

        All weights are reinitialised. If `outputs` is given, the last Linear layer has that many and the loss
        gets targets [n, C], otherwise targets are unchanged; `wrap` may wrap a network before it is trained.
        The loss, of outputs and targets of a batch, is the recipe's unless it is given.
        """
        how = {**self.training, **({} if loss is None else {"loss": loss})}
        if "epochs" not in how:
            recipe = "training={'epochs': ..., 'batch_size': ..., 'learning_rate': ...}"
            raise ValueError(f"this method trains networks as the given one was: pass Bundle(..., {recipe}).")
        together, record = how.pop("together", False), how.pop("record", True)
        fresh = [fresh_like(self.network, seed=seed, outputs=outputs) for seed in seeds]
        fresh = fresh if wrap is None else [wrap(one) for one in fresh]
        inputs, targets = self.train
        targets = targets.to(next(self.network.parameters()).dtype)
        if outputs is not None and targets.ndim == 1:
            targets = targets[:, None]

        def work() -> list[nn.Module]:
            if together and len(fresh) > 1:
                return train_many(fresh, inputs, targets, seeds=seeds, device=self.device, **how)
            options = {"device": self.device, "record": record, **how}
            each = zip(fresh, seeds, strict=True)
            return [train(one, inputs, targets, seed=seed, **options) for one, seed in each]

        return self.trains(work)


def fresh_like(network: nn.Module, *, seed: int, outputs: int | None = None) -> nn.Module:
    """Copy of a network with reinitialised weights and, if given, `outputs` outputs of its last Linear."""
    fresh = copy.deepcopy(network).cpu()
    last = last_linear(fresh)
    with own_randomness(seed, torch.device("cpu")):
        for name, module in fresh.named_modules():
            reset: Any = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
            elif next(module.parameters(recurse=False), None) is not None:
                kind = type(module).__name__
                raise ValueError(f"'{name}', a {kind}, has no reset_parameters to draw its weights anew.")
        layer: Any = fresh.get_submodule(last)
        if outputs not in (None, layer.out_features):
            fresh.set_submodule(last, nn.Linear(layer.in_features, outputs, dtype=layer.weight.dtype))
    return fresh.to(next(network.parameters()).device)


def last_linear(network: nn.Module) -> str:
    """Name of the last Linear layer, in the order of the network's modules."""
    names = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not names or not names[-1]:
        raise ValueError("the network has no Linear layer inside whose outputs could be changed.")
    return names[-1]
