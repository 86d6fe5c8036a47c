"""Which rows train, which validate, which test?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .recording import Recording

_TEST_EVERY = 5  # every fifth block of time is tested on


@dataclass(frozen=True)
class Split:
    """Row numbers, int64, ascending; the three parts share no row."""

    train: Tensor  # [n_train]
    validation: Tensor  # [n_validation]
    test: Tensor  # [n_test]


def split_random(n: int, *, test: float = 0.2, validation: float = 0.1, seed: int = 0) -> Split:
    """Split rows at random; easy on time series, whose neighbours land on both sides.

    Args:
        n: Number of rows.
        test: Share of test rows.
        validation: Share of validation rows.
        seed: Seed of the permutation.
    """
    sizes = round(test * n), round(validation * n)
    if min(test, validation) < 0 or sum(sizes) >= n:
        raise ValueError(
            f"test={test} and validation={validation} of {n} rows leave none to train on; "
            "pass shares >= 0 whose sum is below 1."
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    parts = order.split([*sizes, n - sum(sizes)])
    tested, validated, trained = (part.sort().values for part in parts)
    return Split(trained, validated, tested)


def block_labels(n: int, *, blocks: int = 30) -> Tensor:
    """Number of the contiguous block of each row; block sizes differ by at most one row.

    Also usable as the ``groups`` of a recording without trajectories.

    Returns:
        Labels 0 .. blocks - 1, int64, shape [n].
    """
    if not 1 <= blocks <= n:
        raise ValueError(f"blocks={blocks} for {n} rows; pass 1 <= blocks <= rows.")
    return torch.arange(n) * blocks // n


def split_blocks(n: int, *, blocks: int = 30, validation: float = 0.12, seed: int = 0) -> Split:
    """Split rows, ordered in time, by contiguous blocks: honest where neighbours resemble.

    Blocks 4, 9, 14, ... test, whatever the seed; a random choice of the others validates.

    Args:
        n: Number of rows.
        blocks: Number of blocks.
        validation: Share of the blocks that validate, rounded, at least one.
        seed: Seed of the choice of the validation blocks.
    """
    return _every_fifth(block_labels(n, blocks=blocks), blocks, validation, seed)


def split_repeats(places: Tensor, *, blocks: int = 30, validation: float = 0.12, seed: int = 0) -> Split:
    """The same for motions that are repeated: every repeat of a block falls on the same side.

    By blocks of time alone, a block would be tested whose twin, one period later, was trained on.

    Args:
        places: Where on its motion each row stands, `Recording.places`, shape [n].
        blocks: Into which the motions, one after another, are cut.
        validation, seed: See `split_blocks`.
    """
    return _every_fifth(_blocks_of(places, blocks), blocks, validation, seed)


def split_groups(
    groups: Tensor,
    *,
    test: Sequence[int] | None = None,
    test_share: float = 0.2,
    validation_share: float = 0.12,
    seed: int = 0,
) -> Split:
    """Split rows by whole groups: runs, motions or trajectories; others validate than train or test.

    Args:
        groups: Label of each row, `Recording.motions` or ``groups``, shape [n].
        test: Labels that test; None: a random choice.
        test_share: Of the labels, rounded, at least one; where ``test`` is None.
        validation_share: Of all labels, rounded, at least one.
        seed: Seed of the choices.
    """
    labels = groups.unique()
    order = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    count = max(1, round(test_share * len(labels)))
    tested = order[:count] if test is None else _known(test, labels)
    others = order[~torch.isin(order, tested)]
    held = max(1, round(validation_share * len(labels)))
    if min(test_share, validation_share) < 0 or held >= len(others):
        raise ValueError(
            f"{len(labels)} groups, {len(tested)} of them to test and {held} to validate, leave none to "
            "train on; ask for smaller shares >= 0, or take split_new_motion where groups are few."
        )
    is_test, is_held = torch.isin(groups, tested), torch.isin(groups, others[:held])
    return _split(is_test.long() + 2 * is_held.long())


def split_new_motion(
    recording: Recording, *, test: Sequence[int], blocks: int = 30, validation: float = 0.12, seed: int = 0
) -> Split:
    """Whole motions test; blocks of the other motions, in all their repeats, validate.

    For recordings with too few motions to hold one back for validation. No validation row comes from a
    test motion, so what it takes to be calibrated on a new motion is NOT in the validation rows.

    Args:
        recording: One with ``motions`` and ``places``, such as `kuka`.
        test: Numbers of the motions that test.
        blocks: Into which the other motions, one after another, are cut.
        validation: Share of these blocks that validate, rounded, at least one.
        seed: Seed of the choice of the validation blocks.
    """
    if recording.motions is None or recording.places is None:
        raise ValueError(f"{recording.name!r} has no motions that repeat; use split_groups or split_blocks.")
    is_test = torch.isin(recording.motions, _known(test, recording.motions.unique()))
    held = max(1, round(validation * blocks))
    if validation < 0 or held >= blocks or bool(is_test.all()):
        raise ValueError(
            f"test={list(test)} and validation={validation} of {blocks} blocks leave none to train on."
        )
    labels = torch.full_like(recording.motions, -1)
    labels[~is_test] = _blocks_of(recording.places[~is_test], blocks)
    chosen = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed))[:held]
    return _split(is_test.long() + 2 * torch.isin(labels, chosen).long())


def split_unseen(recording: Recording, *, seed: int = 0) -> Split:
    """The split that no row of the recording answers from memory, by what is known of it.

    Motions that repeat: blocks of them, all repeats together (`split_repeats`). Several motions: whole ones
    (`split_groups`). One recording in time: blocks of it (`split_blocks`).
    """
    if recording.places is not None:
        return split_repeats(recording.places, seed=seed)
    runs = recording.groups if recording.motions is None else recording.motions
    if runs is not None:
        return split_groups(runs, seed=seed)
    return split_blocks(len(recording.inputs), seed=seed)


def recorded_split(recording: Recording, *, validation: float = 0.1, seed: int = 0) -> Split:
    """The split of the source, with random training rows taken for validation.

    Args:
        recording: One with ``recorded_test``, such as `barrett`.
        validation: Share of all rows that validate.
        seed: Seed of the choice of validation rows.
    """
    if recording.recorded_test is None:
        raise ValueError(
            f"{recording.name!r} has no split of its own without common rows; "
            "use split_random or split_blocks."
        )
    others = (~recording.recorded_test).nonzero()[:, 0]
    share = validation * len(recording.recorded_test) / len(others)
    inner = split_random(len(others), test=0.0, validation=share, seed=seed)
    test = recording.recorded_test.nonzero()[:, 0]
    return Split(others[inner.train], others[inner.validation], test)


def _every_fifth(labels: Tensor, blocks: int, validation: float, seed: int) -> Split:
    """Blocks 4, 9, 14, ... test; a random choice of the others validates."""
    if blocks < _TEST_EVERY:
        raise ValueError(f"blocks={blocks} leaves no test block; pass at least {_TEST_EVERY}.")
    number = torch.arange(blocks)
    is_test = number % _TEST_EVERY == _TEST_EVERY - 1
    others = number[~is_test]
    chosen = max(1, round(validation * blocks))
    if validation < 0 or chosen >= len(others):
        raise ValueError(
            f"validation={validation} takes {chosen} of the {len(others)} blocks that do not "
            "test; pass a smaller share >= 0."
        )
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))
    is_validation = torch.isin(number, others[order[:chosen]])
    part = is_test.long() + 2 * is_validation.long()  # [blocks]
    return _split(part[labels])


def _blocks_of(places: Tensor, blocks: int) -> Tensor:
    """Block of each place, shape [n]: the line from the first to the last place, cut evenly."""
    start, stop = places.min(), places.max()
    return ((places - start) / (stop - start) * blocks).long().clamp(max=blocks - 1)


def _split(part: Tensor) -> Split:
    """From the part of each row, 0 train, 1 test, 2 validation, shape [n]."""
    train, test, held = ((part == kind).nonzero()[:, 0] for kind in range(3))
    return Split(train, held, test)


def _known(test: Sequence[int], labels: Tensor) -> Tensor:
    found = torch.tensor(list(test), dtype=labels.dtype)
    if len(found) == 0 or not bool(torch.isin(found, labels).all()):
        raise ValueError(f"test={list(test)}; choose from the groups {labels.tolist()}.")
    return found
