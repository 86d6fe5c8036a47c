"""What the methods of a study are given: networks, rows, and work that they may share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Bundle:
    """What the methods may use. Networks lie on `device`; rows may lie anywhere.

    Args:
        network: Trained, in eval mode: the one network of every training-free method.
        members: Further ones, trained alike from other starts; with `network` they are the ensemble.
        dropout_network: Trained with dropout; None: methods that need one cannot be fitted.
        train, validation: Pairs of inputs and targets.
        seed: Of everything random in a fit.
        device: Where to fit.
        options: Of the fit of "trustgp", for example {"num_experts": 16}; the paper's form gets the same.
    """

    network: nn.Module
    members: Sequence[nn.Module]
    dropout_network: nn.Module | None
    train: Rows
    validation: Rows
    seed: int = 0
    device: str = "cpu"
    options: dict[str, Any] = field(default_factory=dict)
    _made: dict[str, tuple[Any, float]] = field(default_factory=dict, repr=False)
    _lent: list[float] = field(default_factory=list, repr=False)

    @property
    def ensemble(self) -> list[nn.Module]:
        """The network and its siblings."""
        return [self.network, *self.members]

    @property
    def dropping(self) -> nn.Module:
        """The dropout network, for those who need it."""
        if self.dropout_network is None:
            raise ValueError("this method needs a network that was trained with dropout: dropout_network=...")
        return self.dropout_network

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        """What `work()` gives, done for the first method that asks; each pays for it in its fit time.

        Args:
            name: Of the shared work.
            work: Does it.
        """
        if name in self._made:
            self._lent.append(self._made[name][1])
        else:
            start = self._now()
            value = work()
            self._made[name] = value, self._now() - start
        return self._made[name][0]

    def timed(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """What `work()` gives, and its seconds: those it took, and those of shared work done before."""
        self._lent.clear()
        start = self._now()
        value = work()
        return value, self._now() - start + sum(self._lent)

    def _now(self) -> float:
        if torch.device(self.device).type == "cuda":
            torch.cuda.synchronize(self.device)  # work on a GPU may still be under way
        return time.perf_counter()
