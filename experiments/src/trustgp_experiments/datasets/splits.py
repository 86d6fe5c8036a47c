"""Splits into training, validation and test rows by seed, scaling by training rows, and time windows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .recordings import Recording

BLOCKS = 30  # of a recording
VALIDATED = 0.12  # share of the blocks, or of groups
_TEST_EVERY = 5  # every fifth block of time is tested on
_ALIKE = 0.5  # rows next to held-out ones are purged while their inputs correlate by more
_MAX_PURGED_SHARE = 0.25  # of a block, at each of its ends: else short blocks would leave nothing to train on


@dataclass(frozen=True)
class Split:
    """Row numbers, int64, ascending; the three parts share no row."""

    train: Tensor  # [n_train]
    validation: Tensor  # [n_validation]
    test: Tensor  # [n_test]


def split_random(n: int, *, test: float = 0.2, validation: float = 0.1, seed: int = 0) -> Split:
    """Split n rows at random, by shares; too easy for time series, as neighbours land in different parts."""
    sizes = round(test * n), round(validation * n)
    if min(test, validation) < 0 or sum(sizes) >= n:
        fault = f"test={test} and validation={validation} of {n} rows leave none to train on"
        raise ValueError(f"{fault}; pass shares >= 0 whose sum is below 1.")
    parts = _shuffled(torch.arange(n), seed).split([*sizes, n - sum(sizes)])
    tested, validated, trained = (part.sort().values for part in parts)
    return Split(trained, validated, tested)


def split_blocks(n: int, *, purge: int, seed: int) -> Split:
    """Split n rows, ordered in time, by contiguous blocks, since neighbours are similar.

    Every fifth block is a test block, rotating with the seed: five seeds test every block once. A random
    choice of the others is for validation. Rows within ``purge`` of a test block are in no other part, and
    rows within ``purge`` of a validation block are not for training.
    """
    if n < BLOCKS:
        raise ValueError(f"{n} rows cannot be split into {BLOCKS} blocks of time; use split_random.")
    return _every_fifth(torch.arange(n) * BLOCKS // n, torch.arange(n), purge, seed)


def split_repeats(places: Tensor, *, purge: int, seed: int) -> Split:
    """Split repeated motions as `split_blocks` does, with every repeat of a block in the same part.

    With blocks of time alone, the repeat of a test block, one period later, could be in the training rows.
    The line from the first to the last of the places [n], see `Recording`, is cut evenly into blocks;
    ``purge`` is a distance between places.
    """
    start, stop = places.min(), places.max()
    labels = ((places - start) / (stop - start) * BLOCKS).long().clamp(max=BLOCKS - 1)
    return _every_fifth(labels, places, purge, seed)


def rows_alike(inputs: Tensor) -> int:
    """Least number of steps in time after which inputs [n, d] correlate by at most a half on average."""
    rows = inputs.double() - inputs.double().mean(dim=0)
    spread = rows.square().mean(dim=0).sqrt()
    rows = rows[:, spread > 0] / spread[spread > 0]
    for step in range(1, len(rows) // 2):
        if float((rows[:-step] * rows[step:]).mean()) <= _ALIKE:
            return step
    return len(rows) // 2


def split_groups(
    groups: Tensor, *, test_share: float = 0.2, validation_share: float = VALIDATED, seed: int = 0
) -> Split:
    """Split rows by whole groups, labels [n]; shares are of all labels, rounded, at least one label."""
    labels = groups.unique()
    tested, validated = (max(1, round(share * len(labels))) for share in (test_share, validation_share))
    if min(test_share, validation_share) < 0 or tested + validated >= len(labels):
        parts = f"{len(labels)} groups, {tested} of them to test, {validated} to validate,"
        advice = "pass smaller shares >= 0, or use split_blocks where groups are few."
        raise ValueError(f"{parts} leave none to train on; {advice}")
    parts = _shuffled(labels, seed).split([tested, validated, len(labels) - tested - validated])
    return Split(*(torch.isin(groups, part).nonzero()[:, 0] for part in parts[::-1]))


def split_unseen(recording: Recording, *, seed: int = 0) -> Split:
    """Split a recording, by the fields it has, so that memorised training rows do not answer held-out ones.

    Repeated motions are split by blocks, all repeats together (`split_repeats`), several motions by whole
    ones (`split_groups`), one recording in time by blocks (`split_blocks`). Blocks are purged at their ends
    by as many rows as are correlated (`rows_alike`), at most a quarter of a block.
    """

    def purge(length: float) -> int:
        return min(rows_alike(recording.inputs), int(_MAX_PURGED_SHARE * length / BLOCKS))

    if recording.places is not None:
        length = float(recording.places.max() - recording.places.min())
        return split_repeats(recording.places, purge=purge(length), seed=seed)
    runs = recording.groups if recording.motions is None else recording.motions
    if runs is not None:
        return split_groups(runs, seed=seed)
    n = len(recording.inputs)
    return split_blocks(n, purge=purge(n), seed=seed)


def _every_fifth(labels: Tensor, places: Tensor, purge: int, seed: int) -> Split:
    """Split by block labels [n]: every fifth block to test, a random choice of the others to validate."""
    number = torch.arange(BLOCKS)
    is_test = number % _TEST_EVERY == (_TEST_EVERY - 1 - seed) % _TEST_EVERY
    chosen = _shuffled(number[~is_test], seed)[: round(VALIDATED * BLOCKS)]
    is_test, is_validation = is_test[labels], torch.isin(labels, chosen)
    tested, validated = (_around(places, labels, part, purge) for part in (is_test, is_validation))
    parts = (~(tested | validated), is_validation & ~tested, is_test)
    return Split(*(part.nonzero()[:, 0] for part in parts))


def _around(places: Tensor, labels: Tensor, part: Tensor, distance: float) -> Tensor:
    """Mask [n] of the rows within a distance of the blocks of a part, including the part itself."""
    around = part.clone()
    for block in labels[part].unique():
        inside = places[labels == block]
        around |= (places >= inside.min() - distance) & (places <= inside.max() + distance)
    return around


def _shuffled(values: Tensor, seed: int) -> Tensor:
    return values[torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))]


@dataclass(frozen=True)
class Standardiser:
    """Means and scales of the training rows, float64; results keep the dtype of the argument."""

    input_mean: Tensor  # [d]
    input_scale: Tensor  # [d]
    target_mean: Tensor  # [C]
    target_scale: Tensor  # [C]

    def inputs(self, x: Tensor) -> Tensor:
        return _apply(x, self.input_mean, self.input_scale)

    def targets(self, y: Tensor) -> Tensor:
        return _apply(y, self.target_mean, self.target_scale)

    def restore_targets(self, y: Tensor) -> Tensor:
        """Standardised targets or means back in the units of the data, shape [n, C]."""
        mean, scale = self.target_mean.to(y.device), self.target_scale.to(y.device)
        return (y.double() * scale + mean).to(y.dtype)


def standardise(train_inputs: Tensor, train_targets: Tensor) -> Standardiser:
    """Standardiser of training rows, [n, d] and [n, C]; the scale of a constant column is 1."""
    return Standardiser(*_statistics(train_inputs), *_statistics(train_targets))


def _statistics(rows: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows.detach().double()
    mean, scale = rows.mean(0), rows.std(0, correction=0)
    # Rounding leaves a constant column a tiny spread; dividing by it would make noise of it.
    constant = scale <= 1e-10 * rows.abs().amax(0)
    return mean, torch.where(constant, torch.ones_like(scale), scale)


def _apply(rows: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return ((rows.double() - mean.to(rows.device)) / scale.to(rows.device)).to(rows.dtype)


# Over a joint's spread: on the real arms, steps of a motion stay below 0.04 and seams are above 0.13.
SEAM = 0.1


def seams(recording: Recording) -> Tensor:
    r"""Mask [n - 1] of jumps of the arm: steps that the joints' velocities do not explain.

    .. math:: \max_j | \Delta q_j - \Delta t\, \bar{\dot q}_j | / \mathrm{std}(q_j)

    with the time step that explains the row's step best, between 0 and twice the usual one. Recordings
    are concatenated runs whose ends are not marked: `sarcos` has eight such places. The inputs of a recording
    begin with the positions and velocities of as many joints as there are torques.
    """
    joints = recording.targets.shape[1]
    position, velocity = recording.inputs[:, :joints], recording.inputs[:, joints : 2 * joints]
    step, mean = position.diff(dim=0), (velocity[1:] + velocity[:-1]) / 2
    usual = (step * mean).sum() / mean.square().sum().clamp_min(1e-300)
    time = (step * mean).sum(dim=1) / mean.square().sum(dim=1).clamp_min(1e-300)
    time = time.clamp(min=torch.zeros_like(usual), max=2 * usual)  # [n - 1]
    spread = position.std(dim=0, correction=0).clamp_min(1e-300)
    jumps = ((step - time[:, None] * mean).abs() / spread).amax(dim=1) > SEAM
    if recording.groups is not None:
        jumps |= recording.groups.diff() != 0
    return jumps


def window_ends(labels: Tensor, borders: Tensor, length: int) -> Tensor:
    """Last rows [m] of all windows whose rows share a label and contain no border, ascending.

    Labels [n] are the parts of a split; borders [n - 1] mark rows whose next row does not follow in time.
    """
    n = len(labels)
    broken = borders | (labels.diff() != 0)
    before = torch.cat([broken.new_zeros(1, dtype=torch.int64), broken.cumsum(0)])  # breaks up to each row
    ends = torch.arange(length - 1, n, device=labels.device)
    return ends[before[ends] == before[ends - length + 1]]


def windows_at(rows: Tensor, ends: Tensor, length: int) -> Tensor:
    """Windows of rows [n, d], in the order of time, that end at rows [m], shape [m, length, d]."""
    return rows[ends[:, None] + torch.arange(1 - length, 1, device=ends.device)]
