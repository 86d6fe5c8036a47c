"""What the methods are given: networks, rows, how to train more networks alike, and what that costs."""

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
    """Seconds of the fit under way, beside those of the clock."""

    extra: float = 0.0  # of shared work done before, less those of training, which pass on the clock
    training: float = 0.0  # of networks trained on the way


@dataclass(frozen=True)
class Bundle:
    """What the methods may use. Networks lie on `device`; rows, (inputs, targets), may lie anywhere."""

    network: nn.Module  # trained, in eval mode: the one network of every training-free method
    members: Sequence[nn.Module]  # trained alike from other starts; with `network` they are the ensemble
    dropout_network: nn.Module | None  # trained with dropout; None: methods that need one cannot be fitted
    train: Rows
    validation: Rows
    seed: int = 0  # of everything random in a fit
    device: str = "cpu"  # where to fit
    # how the network was trained: options of `train`, and "together" for `train_many`; empty: not known
    training: dict[str, Any] = field(default_factory=dict)
    # of training "network", "ensemble" (without the network) and "dropout"; what is missing is not known
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
        """What peers are tuned on: validation rows, and training rows, of which only the targets count."""
        return self.validation, self.train

    @property
    def place(self) -> dict[str, Any]:
        return {"seed": self.seed, "device": self.device}

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        """What the shared `work()` gives, done for the first method that asks; each pays in its fit time."""
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
        """What `work()` gives, its seconds (of what it shares, too), and apart those of training networks."""
        meter = self._meter
        meter.extra = meter.training = 0.0
        start = now(self.device)
        value = work()
        return value, now(self.device) - start + meter.extra, meter.training

    def trains(self, work: Callable[[], Any]) -> Any:
        """What `work()` gives, which trains networks: its seconds are kept apart."""
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

        All weights are drawn anew. Where `outputs` is given, the last Linear layer has so many, and targets
        are [n, C] for the loss, else as they are; `wrap` may put something around a network before it is
        trained. The loss, of outputs and targets of a batch, is the recipe's unless it is given.
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
    """A copy of a network whose weights are drawn anew, and whose last Linear layer has so many outputs."""
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
    """The name of the last Linear layer, by the order in which layers are held."""
    names = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not names or not names[-1]:
        raise ValueError("the network has no Linear layer inside whose outputs could be changed.")
    return names[-1]
