"""Few combinations of many choices, in which any two choices still meet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def every_pair(*choices: Sequence[Any]) -> list[tuple]:
    """Combinations of one choice of each list: any two choices of two lists are together in one at least.

    Greedy, and the same every time: the next one is the first that brings most pairs not seen before.
    """
    places = list(product(*(range(len(some)) for some in choices)))
    left = {pair for place in places for pair in _pairs(place)}
    found = []
    while left:
        found.append(max(places, key=lambda place: len(left & _pairs(place))))
        left -= _pairs(found[-1])
    return [tuple(some[i] for some, i in zip(choices, place, strict=True)) for place in found]


def _pairs(place: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(enumerate(place), 2))
