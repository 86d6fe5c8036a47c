"""Which rows train, which validate, which test?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trustgp.datasets.recordings import Recording

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
    if blocks < _TEST_EVERY:
        raise ValueError(f"blocks={blocks} leaves no test block; pass at least {_TEST_EVERY}.")
    labels = block_labels(n, blocks=blocks)
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
    part = is_test.long() + 2 * is_validation.long()  # 0 train, 1 test, 2 validation  [blocks]
    train, test, held = ((part[labels] == kind).nonzero()[:, 0] for kind in range(3))
    return Split(train, held, test)


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
