"""Batches that hold more than inputs: pairs, dicts with labels, texts padded to the longest of a batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler

from .frames import is_frame
from .trees import Inputs, as_inputs, check_dimensions, count, structure

TARGETS = ("labels", "label", "label_ids")  # names of targets in a batch
MASK, WORDS = "attention_mask", "input_ids"
IGNORED = -100  # label of a position without a class

BATCH_KINDS = (tuple, list, Mapping, str, bytes, Tensor, np.ndarray)  # types of one batch, or of a pair
Pair = tuple[Inputs, Inputs]
Unpack = Callable[[Any], tuple[Any, Any]]
"""Function that returns (inputs, targets) of a batch of another form, such as a dict or a triple."""


def is_stream(source: Any) -> bool:
    """Whether `source` yields batches, rather than being a batch itself."""
    if isinstance(source, (DataLoader, Dataset)):
        return True
    if isinstance(source, list) and source and all(map(split_targets, source)):
        return True
    return isinstance(source, Iterable) and not isinstance(source, BATCH_KINDS) and not is_frame(source)


def batches_of(source: Any, size: int) -> tuple[Iterable[Any], bool]:
    """Batches of a loader, of a Dataset (`size` rows each) or of another iterable; and whether the rows keep
    the order of the data."""
    if isinstance(source, DataLoader):
        # with a batch sampler of the user's own, the order is decided there and not by `sampler`
        sampler = source.sampler if source.batch_sampler is None else source.batch_sampler
        sampler = getattr(sampler, "sampler", sampler)
        return source, isinstance(sampler, SequentialSampler) or isinstance(source.dataset, IterableDataset)
    return (DataLoader(source, batch_size=size) if isinstance(source, Dataset) else source), True


def as_pair(source: Any, name: str, unpack: Unpack | None = None) -> tuple[Any, Any]:
    """Pair (inputs, targets) from a batch, by `unpack` if it is given; raise if there is no such pair."""
    given, pair = _described(source), source
    if unpack is not None:
        try:
            pair = unpack(source)
        except Exception as error:
            raise ValueError(f"unpack= failed on {name}, {given}: {error!r}.") from error
    elif (split := split_targets(source)) is not None:
        return split
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        return pair[0], pair[1]
    if unpack is not None:
        raise TypeError(f"unpack= gave {_described(pair)} for {name}; a pair (inputs, targets) is needed.")
    raise TypeError(
        f"{name} is {given}; pass (inputs, targets), a Dataset, a DataLoader or an iterable of batches "
        "(inputs, targets), or dicts with 'labels'; or pass unpack=lambda batch: (inputs, targets)."
    )


def _described(source: Any) -> str:
    """Type of `source` with its length, keys or columns, for error messages."""
    kind = f"a {type(source).__name__}"
    if isinstance(source, (tuple, list)):
        return f"{kind} of {len(source)}"
    names = source.keys() if isinstance(source, Mapping) else getattr(source, "columns", None)
    return kind if names is None else f"{kind} with {', '.join(repr(name) for name in names)}"


def split_targets(batch: Any) -> tuple[dict[str, Any], Any] | None:
    """Pair (inputs, targets) from a dict that holds both; None for anything else."""
    names = [name for name in TARGETS if isinstance(batch, Mapping) and name in batch]
    if not names or len(batch) < 2:
        return None
    return {name: value for name, value in batch.items() if name != names[0]}, batch[names[0]]


def inputs_like(batch: Any, network: nn.Module, wanted: str, kinds: Sequence[str]) -> Inputs:
    """Inputs of a batch, with or without targets in it. Raise ValueError unless they have the structure
    `wanted`, the dimensions of `kinds`, and at least one row."""
    inputs = as_inputs(batch, network)
    given = structure(inputs)
    if given != wanted:
        pair = isinstance(inputs, (tuple, list)) and len(inputs) in (1, 2)
        inner = inputs[0] if pair else next(iter(split_targets(inputs) or [None]))
        if inner is None or structure(inner) != wanted:
            raise ValueError(
                f"inputs have the structure {given}; the model was fitted on {wanted}. Pass them as the "
                "network takes them, or pass unpack=lambda batch: (inputs, targets)."
            )
        inputs = inner
    check_dimensions(inputs, kinds, "inputs")
    if count(inputs) == 0:
        raise ValueError("inputs hold no rows.")
    return inputs


def equal_lengths(pairs: Iterable[Pair], network: nn.Module | None = None) -> Iterator[Pair]:
    """Yield the batches; those with an attention mask are padded to the longest of all.

    Every tensor as long as the mask is padded, on the side on which the batches have their padding: tokens
    with the padding token, labels with `IGNORED`, real targets with NaN, all else with 0.
    """
    stream = iter(pairs)
    for first in stream:
        if not (isinstance(first, tuple) and isinstance(first[0], dict) and MASK in first[0]):
            yield first
            continue
        batches = [first, *stream]
        lengths = [_length(inputs) for inputs, _ in batches]
        texts = [inputs for inputs, _ in batches]
        names = [name for name in first[0] if all(map(_as_long, (t[name] for t in texts), lengths))]
        by_word = all(map(_as_long, (targets for _, targets in batches), lengths))
        filler = {WORDS: _padding_word(texts, network)}
        left = any(bool((t[MASK][:, 0] == 0).any()) for t in texts)
        left = left and not any(bool((t[MASK][:, -1] == 0).any()) for t in texts)
        for inputs, targets in batches:
            longer = {k: _padded(inputs[k], max(lengths), filler.get(k, 0), left) for k in names}
            if by_word:
                blank = torch.nan if targets.is_floating_point() else IGNORED
                targets = _padded(targets, max(lengths), blank, left)
            yield {**inputs, **longer}, targets


def _length(inputs: dict[str, Tensor]) -> int:
    return inputs[MASK].shape[1] if MASK in inputs else 0


def _as_long(leaf: Any, length: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 1 and leaf.shape[1] == length


def _padding_word(texts: list[dict[str, Tensor]], network: nn.Module | None) -> int:
    """Padding token: that of masked positions; without any, that of the network's config, or 0."""
    masked = [t[WORDS][t[MASK] == 0] for t in texts if WORDS in t and t[WORDS].shape == t[MASK].shape]
    words = torch.cat(masked) if masked else torch.zeros(0)
    config = getattr(network, "config", None)
    return int(words[0]) if len(words) else getattr(config, "pad_token_id", None) or 0


def _padded(leaf: Tensor, length: int, value: float, left: bool) -> Tensor:
    filler = leaf.new_full((leaf.shape[0], length - leaf.shape[1], *leaf.shape[2:]), value)
    return torch.cat([filler, leaf] if left else [leaf, filler], dim=1)
