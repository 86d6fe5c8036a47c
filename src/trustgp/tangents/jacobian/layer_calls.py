"""What a layer was given and what came back to it, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .accumulators import Collector
from .layout import Layout


def _always(given: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True)
class LayerKind:
    """How torch calls a layer, and how its gradient is made; one line of `layer_gradients.LAYERS`.

    Args:
        gradient: Hands a layer's gradients to a collector.
        arguments: Names of the operation's arguments, in order.
        applies: Whether a call with these arguments has this gradient.
        factor: Of an elementwise layer, output = weight * x + bias: makes x, from the operation and its
            arguments. None: the layer is not elementwise.
        adjoint: Whether it unfolds the signal instead of the input, as a transposed convolution does.
    """

    gradient: Callable[[Signals, Collector], None]
    arguments: tuple[str, ...]
    applies: Callable[[Mapping[str, Any]], bool] = _always
    factor: Callable[[Callable, Mapping[str, Any]], Tensor] | None = None
    adjoint: bool = False

    @property
    def elementwise(self) -> bool:
        """Whether output = weight * x + bias, entry by entry."""
        return self.factor is not None


@dataclass(frozen=True)
class LayerCall:
    """One application of a layer.

    Args:
        kind: Which gradient it has.
        weight_name, bias_name: Its parameters, where they were chosen.
        input: What went in; of an elementwise layer what its weight is multiplied by.
        probe: The zero that was added to what came out.
        given: Its arguments, by name.
    """

    kind: LayerKind
    weight_name: str | None
    bias_name: str | None
    input: Tensor
    probe: Tensor
    given: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        """The same for every call of a layer."""
        return self.kind.gradient.__name__, self.weight_name, self.bias_name

    @property
    def layer(self) -> str:
        """Its name."""
        return (self.weight_name or self.bias_name or "").rpartition(".")[0]

    @property
    def reduces(self) -> bool:
        """Whether its gradients are sums over positions: they are made at once, and the signals let go."""
        return self.kind.elementwise or self.weight_name is None


@dataclass(frozen=True)
class Signals:
    """A layer's calls in one pass, rows first.

    Args:
        call: One of the calls; they differ in their inputs only.
        inputs: [n, q, ...], the calls' positions side by side.
        back: Gradients with respect to the outputs, [n, K, q, ...].
    """

    call: LayerCall
    inputs: Tensor
    back: Tensor

    def block(self, rows: slice) -> Signals:
        """Some of the rows."""
        return Signals(self.call, self.inputs[rows], self.back[rows])

    def room(self) -> int:
        """Numbers a row that the gradient needs on the way, beside what its collector needs."""
        ahead, back, weight = self.inputs[0].numel(), self.back[0].numel(), self.call.given["weight"]
        kernel = 1 if weight is None else weight.shape[2:].numel()
        return 2 * ahead + back * kernel if self.call.kind.adjoint else ahead * kernel + 2 * back

    def hand_on(self, into: Collector) -> None:
        """Give the layer's gradients to a collector."""
        self.call.kind.gradient(self, into)


def gather(calls: Sequence[LayerCall], backs: Sequence[Tensor], layout: Layout, n: int) -> Signals:
    """Calls of one layer together: those of an unrolled recurrent layer are many and small.

    Args:
        calls: With inputs and outputs of one shape each.
        backs: For each call, [K, *output].
        layout: Where the rows are in both.
        n: How many rows.
    """
    inputs = [layout.rows(call.input, n) for call in calls]
    back = [layout.rows(signal, n, skip=1).transpose(0, 1) for signal in backs]
    if len(calls) == 1:
        return Signals(calls[0], inputs[0], back[0])
    return Signals(calls[0], torch.cat(inputs, dim=1), torch.cat(back, dim=2))
