"""Which rows train, validate, test? By seeds; the training rows scale them all; windows cross no border."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .recordings import Recording

BLOCKS = 30  # of a recording
VALIDATED = 0.12  # share of the blocks, or of groups
_TEST_EVERY = 5  # every fifth block of time is tested on
_ALIKE = 0.5  # rows whose inputs correlate by more are not left beside held-out ones
_MAX_PURGED_SHARE = 0.25  # of a block, at each of its ends: else short blocks would leave nothing to train on


@dataclass(frozen=True)
class Split:
    """Row numbers, int64, ascending; the three parts share no row."""

    train: Tensor  # [n_train]
    validation: Tensor  # [n_validation]
    test: Tensor  # [n_test]


def split_random(n: int, *, test: float = 0.2, validation: float = 0.1, seed: int = 0) -> Split:
    """Split n rows at random, by shares; easy on time series, whose neighbours land on both sides."""
    sizes = round(test * n), round(validation * n)
    if min(test, validation) < 0 or sum(sizes) >= n:
        fault = f"test={test} and validation={validation} of {n} rows leave none to train on"
        raise ValueError(f"{fault}; pass shares >= 0 whose sum is below 1.")
    parts = _shuffled(torch.arange(n), seed).split([*sizes, n - sum(sizes)])
    tested, validated, trained = (part.sort().values for part in parts)
    return Split(trained, validated, tested)


def split_blocks(n: int, *, purge: int, seed: int) -> Split:
    """Split n rows, ordered in time, by contiguous blocks: honest where neighbours resemble.

    Every fifth block tests, which ones turns with the seed: five seeds test every block once. A random choice
    of the others validates. Rows within ``purge`` of a block that tests are in no other part, and rows as
    near to one that validates do not train.
    """
    if n < BLOCKS:
        raise ValueError(f"{n} rows cannot be split into {BLOCKS} blocks of time; use split_random.")
    return _every_fifth(torch.arange(n) * BLOCKS // n, torch.arange(n), purge, seed)


def split_repeats(places: Tensor, *, purge: int, seed: int) -> Split:
    """The same for motions that are repeated: every repeat of a block falls on the same side.

    By blocks of time alone, a block would be tested whose twin, one period later, was trained on. The line
    from the first to the last of the places [n], see `Recording`, is cut evenly into blocks; ``purge`` is a
    distance of places.
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
    """Split rows by whole groups, labels [n]: shares are of all labels, rounded, at least one."""
    labels = groups.unique()
    tested, validated = (max(1, round(share * len(labels))) for share in (test_share, validation_share))
    if min(test_share, validation_share) < 0 or tested + validated >= len(labels):
        parts = f"{len(labels)} groups, {tested} of them to test, {validated} to validate,"
        advice = "pass smaller shares >= 0, or use split_blocks where groups are few."
        raise ValueError(f"{parts} leave none to train on; {advice}")
    parts = _shuffled(labels, seed).split([tested, validated, len(labels) - tested - validated])
    return Split(*(torch.isin(groups, part).nonzero()[:, 0] for part in parts[::-1]))


def split_unseen(recording: Recording, *, seed: int = 0) -> Split:
    """The split that no row of the recording answers from memory, by what is known of it.

    Motions that repeat: blocks of them, all repeats together (`split_repeats`). Several motions: whole ones
    (`split_groups`). One recording in time: blocks of it (`split_blocks`). Blocks are purged at their ends
    of as many rows as are alike (`rows_alike`), a quarter of a block at most.
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
    """Every fifth block, by labels [n], tests, a random choice of the others validates: `split_blocks`."""
    number = torch.arange(BLOCKS)
    is_test = number % _TEST_EVERY == (_TEST_EVERY - 1 - seed) % _TEST_EVERY
    chosen = _shuffled(number[~is_test], seed)[: round(VALIDATED * BLOCKS)]
    is_test, is_validation = is_test[labels], torch.isin(labels, chosen)
    tested, validated = (_around(places, labels, part, purge) for part in (is_test, is_validation))
    parts = (~(tested | validated), is_validation & ~tested, is_test)
    return Split(*(part.nonzero()[:, 0] for part in parts))


def _around(places: Tensor, labels: Tensor, part: Tensor, distance: float) -> Tensor:
    """Which rows are within a distance of the blocks of a part, bool, [n]; those of the part are."""
    around = part.clone()
    for block in labels[part].unique():
        inside = places[labels == block]
        around |= (places >= inside.min() - distance) & (places <= inside.max() + distance)
    return around


def _shuffled(values: Tensor, seed: int) -> Tensor:
    return values[torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))]


@dataclass(frozen=True)
class Standardiser:
    """Means and scales of the training rows, float64; results keep the dtype of what is given."""

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
    """Measure training rows, [n, d] and [n, C], to scale all sets by; the scale of a constant column is 1."""
    return Standardiser(*_statistics(train_inputs), *_statistics(train_targets))


def _statistics(rows: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows.detach().double()
    mean, scale = rows.mean(0), rows.std(0, correction=0)
    # Rounding leaves a constant column a tiny spread; dividing by it would make noise of it.
    constant = scale <= 1e-10 * rows.abs().amax(0)
    return mean, torch.where(constant, torch.ones_like(scale), scale)


def _apply(rows: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return ((rows.double() - mean.to(rows.device)) / scale.to(rows.device)).to(rows.dtype)


# Of a joint's spread: on the real arms, steps of a motion stay below 0.04 and seams are above 0.13.
SEAM = 0.1


def seams(recording: Recording) -> Tensor:
    r"""Where the arm jumps: steps that the joints' velocities do not explain, bool, shape [n - 1].

    .. math:: \max_j | \Delta q_j - \Delta t\, \bar{\dot q}_j | / \mathrm{std}(q_j)

    with the time step that explains the row's step best, between nothing and twice the usual one. Recordings
    are put together from runs without saying where one ends: `sarcos` has eight such places. Its inputs begin
    with the positions and velocities of as many joints as there are torques.
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
    """The last rows of all windows whose rows share a label and hold no border, ascending, shape [m].

    Labels [n] say which part of a split a row belongs to, borders [n - 1] which step to the next row is none.
    """
    n = len(labels)
    broken = borders | (labels.diff() != 0)
    before = torch.cat([broken.new_zeros(1, dtype=torch.int64), broken.cumsum(0)])  # breaks up to each row
    ends = torch.arange(length - 1, n, device=labels.device)
    return ends[before[ends] == before[ends - length + 1]]


def windows_at(rows: Tensor, ends: Tensor, length: int) -> Tensor:
    """Windows of rows [n, d], in the order of time, that end at rows [m], shape [m, length, d]."""
    return rows[ends[:, None] + torch.arange(1 - length, 1, device=ends.device)]
