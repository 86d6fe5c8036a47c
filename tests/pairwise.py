"""Few combinations of many choices that contain every pair of two choices."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def every_pair(*choices: Sequence[Any]) -> list[tuple]:
    """Combinations of one choice of each list that contain every pair of choices of two lists; greedy: the
    next combination is the first with most new pairs."""
    indices = list(product(*(range(len(options)) for options in choices)))
    left, chosen = {pair for index in indices for pair in _pairs(index)}, []
    while left:
        chosen.append(max(indices, key=lambda index: len(left & _pairs(index))))
        left -= _pairs(chosen[-1])
    return [tuple(options[i] for options, i in zip(choices, index, strict=True)) for index in chosen]


def _pairs(index: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(enumerate(index), 2))
