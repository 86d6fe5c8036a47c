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
    """One query's state of each picture, [m, Q, d] to [m, d].

    Args:
        hidden: Of all queries.
        query: Which is meant, int64, [m].
    """
    return hidden.gather(1, query[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]


class ZeroAttention(nn.Module):
    """In place of attention among queries, whose answer has been added to what enters: nothing more.

    Args:
        like: Its answer, a tensor or a tuple that begins with one.
    """

    FINGERPRINT = "Silence"

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.more = len(like) - 1 if isinstance(like, tuple) else None

    def forward(self, hidden_states: Tensor, *arguments: Any, **named: Any) -> Any:
        nothing = torch.zeros_like(hidden_states)
        return nothing if self.more is None else (nothing, *[None] * self.more)


class DecoderTail(nn.Module):
    """The decoder's last layer and the normalisation after it, for one query of each picture.

    Args:
        layer: The decoder's last.
        norm: Of the decoder; None: there is none.
        times: How often it is applied.
        fixed: Arguments of the layer that are no tensors.
        alike: Those that are the same for all pictures of a size, such as positions, [1, ...] each.
        each: Names of arguments with a row for each query; empty: the layer takes all queries.
    """

    FINGERPRINT = "Tail"

    def __init__(
        self,
        layer: nn.Module,
        norm: nn.Module | None,
        times: int,
        fixed: dict[str, Any],
        alike: Mapping[str, Tensor],
        each: frozenset[str],
    ) -> None:
        super().__init__()
        self.layer, self.norm, self.times, self.fixed, self.each = layer, norm, times, fixed, each
        self.alike = tuple(alike)
        for name, value in alike.items():
            self.register_buffer(f"alike_{name}", value)

    def forward(self, query: Tensor, entering: dict[str, Tensor]) -> Tensor:
        """What the heads are given, [m, d].

        Args:
            query: Which of each row's queries is meant, int64, [m].
            entering: By name, [m, ...] each.
        """
        named = {**self.fixed, **{name: self._constant(name, query) for name in self.alike}, **entering}
        places = sorted((name for name in named if name.startswith(PLACED)), key=_number)
        arguments = [named.pop(name) for name in places]
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


def _number(name: str) -> int:
    return int(name.removeprefix(PLACED))


class WholeDetector(nn.Module):
    """In place of the last layer: all that comes before the head, from the picture itself.

    Args:
        model: The detector without its heads.
    """

    FINGERPRINT = "Whole"
    alike: tuple[str, ...] = ()
    each: frozenset[str] = frozenset()

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, query: Tensor, entering: Mapping[str, Tensor]) -> Tensor:
        """What the heads are given, [m, d].

        Args:
            query: Which of each row's queries is meant, int64, [m].
            entering: "picture", [m, channels, height, width].
        """
        return of_query(self.model(entering[PICTURE]).last_hidden_state, query)


class ClassTail(nn.Module):
    """Logits of one query's classes and, last, of no object, [m, C + 1].

    They are shifted, which changes no probability, so that they add up to the log odds of an object: what
    `likelihoods.Finding` makes its kernel of.

    Args:
        tail: The layer, or all before it.
        head: Gives the logits.
        background: Whether they lack one for no object, since each is the logit of a yes or no: its place is
            taken by 0, which leaves the odds of each class as they are.
    """

    def __init__(self, tail: DecoderTail | WholeDetector, head: nn.Module, *, background: bool) -> None:
        super().__init__()
        self.tail, self.head, self.background = copy.deepcopy(tail), copy.deepcopy(head), background

    def forward(self, query: Tensor, **entering: Tensor) -> Tensor:
        logits = self.head(self.tail(query, entering))
        logits = nn.functional.pad(logits, (0, 1)) if self.background else logits
        odds = logits[:, :-1].logsumexp(dim=1, keepdim=True) - logits[:, -1:]
        return logits + (odds - logits.sum(dim=1, keepdim=True)) / logits.shape[1]
