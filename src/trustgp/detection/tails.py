"""The second part of a detector: the decoder's last layer and the head, for single queries."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

PICTURE = "picture"  # what enters `Whole`


class Silence(nn.Module):
    """In place of attention among queries, whose answer has been added to what enters: nothing more.

    Args:
        like: Its answer, a tensor or a tuple that begins with one.
    """

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.more = len(like) - 1 if isinstance(like, tuple) else None

    def forward(self, hidden_states: Tensor, *arguments: Any, **named: Any) -> Any:
        nothing = torch.zeros_like(hidden_states)
        return nothing if self.more is None else (nothing, *[None] * self.more)


class Tail(nn.Module):
    """The decoder's last layer and the normalisation after it, for one query of each picture.

    Args:
        layer: The decoder's last.
        norm: Of the decoder; None: there is none.
        times: How often it is applied.
        fixed: Arguments of the layer that are no tensors.
        alike: Those that are the same for all pictures of a size, such as positions, [1, ...] each.
        each: Names of arguments with a row for each query; empty: the layer takes all queries.
    """

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
        alike = {name: self.get_buffer(f"alike_{name}") for name in self.alike}
        known = {
            name: value[0, query][:, None]
            if name in self.each
            else value.expand(query.shape[0], *value.shape[1:])
            for name, value in alike.items()
        }
        given = {**self.fixed, **known, **entering}
        places = sorted(
            (name for name in given if name.startswith("argument")), key=lambda name: int(name[8:])
        )
        named = {name: value for name, value in given.items() if not name.startswith("argument")}
        found = self.layer(*(given[name] for name in places), **named)
        found = found[0] if isinstance(found, tuple) else found
        for _ in range(self.times):
            assert self.norm is not None
            found = self.norm(found)
        if self.each:
            return found[:, 0]
        return found.gather(1, query[:, None, None].expand(-1, 1, found.shape[2]))[:, 0]


class Whole(nn.Module):
    """In place of the last layer: all that comes before the head, from the picture itself.

    Args:
        model: The detector without its heads.
    """

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
        found = self.model(entering[PICTURE]).last_hidden_state
        return found.gather(1, query[:, None, None].expand(-1, 1, found.shape[2]))[:, 0]


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

    def __init__(self, tail: Tail | Whole, head: nn.Module, *, background: bool) -> None:
        super().__init__()
        self.tail, self.head, self.background = copy.deepcopy(tail), copy.deepcopy(head), background

    def forward(self, query: Tensor, **entering: Tensor) -> Tensor:
        found = self.head(self.tail(query, entering))
        found = nn.functional.pad(found, (0, 1)) if self.background else found
        odds = found[:, :-1].logsumexp(dim=1, keepdim=True) - found[:, -1:]
        return found + (odds - found.sum(dim=1, keepdim=True)) / found.shape[1]
