"""The second part of a detector: the decoder's last layer and the head, for single queries."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

PICTURE = "picture"  # what enters a `WholeDetector`
PLACED = "argument"  # and a number: what a layer's arguments without a name are called


def first_of(output: Any) -> Tensor:
    """What a layer gives: the first of several tensors."""
    return output[0] if isinstance(output, tuple) else output


def of_query(hidden: Tensor, query: Tensor) -> Tensor:
    """One query's state of each picture, [m, Q, d] to [m, d]; which one is int64, [m]."""
    return hidden.gather(1, query[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]


class ZeroAttention(nn.Module):
    """In place of attention among queries, whose answer has been added to what enters: zeros like it."""

    FINGERPRINT = "Silence"

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.more = len(like) - 1 if isinstance(like, tuple) else None

    def forward(self, hidden_states: Tensor, *arguments: Any, **named: Any) -> Any:
        nothing = torch.zeros_like(hidden_states)
        return nothing if self.more is None else (nothing, *[None] * self.more)


class DecoderTail(nn.Module):
    """The decoder's last layer and the norm that comes so many times after it, for one query a picture."""

    FINGERPRINT = "Tail"

    def __init__(
        self,
        layer: nn.Module,
        norm: nn.Module | None,
        times: int,
        fixed: dict[str, Any],  # arguments of the layer that are no tensors
        alike: Mapping[str, Tensor],  # those that are the same for all pictures of a size, [1, ...] each
        each: frozenset[str],  # names of those with a row for each query; empty: it takes all queries
    ) -> None:
        super().__init__()
        self.layer, self.norm, self.times, self.fixed, self.each = layer, norm, times, fixed, each
        self.alike = tuple(alike)
        for name, value in alike.items():
            self.register_buffer(f"alike_{name}", value)

    def forward(self, query: Tensor, entering: dict[str, Tensor]) -> Tensor:
        """What the heads are given of one query [m] of each row, [m, d]; what enters is [m, ...], by name."""
        named = {**self.fixed, **{name: self._constant(name, query) for name in self.alike}, **entering}
        count = sum(name.startswith(PLACED) for name in named)
        arguments = [named.pop(f"{PLACED}{place}") for place in range(count)]
        hidden = first_of(self.layer(*arguments, **named))
        for _ in range(self.times):
            assert self.norm is not None
            hidden = self.norm(hidden)
        return hidden[:, 0] if self.each else of_query(hidden, query)

    def _constant(self, name: str, query: Tensor) -> Tensor:
        """An argument that is the same for all pictures, for each row, [m, ...]."""
        value = self.get_buffer(f"alike_{name}")
        if name in self.each:
            return value[0, query][:, None]
        return value.expand(query.shape[0], *value.shape[1:])


class WholeDetector(nn.Module):
    """In place of the last layer: the detector without its heads, from the picture itself."""

    FINGERPRINT = "Whole"
    alike: tuple[str, ...] = ()
    each: frozenset[str] = frozenset()

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, query: Tensor, entering: Mapping[str, Tensor]) -> Tensor:
        """As of `DecoderTail`; what enters is the picture, [m, channels, height, width]."""
        return of_query(self.model(entering[PICTURE]).last_hidden_state, query)


class ClassTail(nn.Module):
    """Logits of one query's classes and, last, of no object, [m, C + 1].

    They are shifted, which changes no probability, so that they add up to the log odds of an object: what
    `likelihoods.Finding` makes its kernel of. Where the head has no logit for no object (`background`), since
    each is that of a yes or no, its place is taken by 0, which leaves the odds of each class as they are.
    """

    def __init__(self, tail: DecoderTail | WholeDetector, head: nn.Module, *, background: bool) -> None:
        super().__init__()
        self.tail, self.head, self.background = copy.deepcopy(tail), copy.deepcopy(head), background

    def forward(self, query: Tensor, **entering: Tensor) -> Tensor:
        logits = self.head(self.tail(query, entering))
        logits = nn.functional.pad(logits, (0, 1)) if self.background else logits
        odds = logits[:, :-1].logsumexp(dim=1, keepdim=True) - logits[:, -1:]
        return logits + (odds - logits.sum(dim=1, keepdim=True)) / logits.shape[1]
