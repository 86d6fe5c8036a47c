"""What a recurrent network sees: windows of past states that cross no border."""

import torch
from torch import Tensor

from .recordings import Recording

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
    if velocity.shape != position.shape or len(position) < 2:
        raise ValueError(
            f"inputs {tuple(recording.inputs.shape)} of {recording.name!r} do not begin with the positions "
            f"and velocities of {joints} joints, in two rows at least."
        )
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
    if not 1 <= length <= n or len(borders) != n - 1:
        raise ValueError(
            f"length={length} with {n} rows and {len(borders)} steps; a window has 1 to {n} rows, and there "
            "is one step less than rows."
        )
    broken = borders | (labels.diff() != 0)
    before = torch.cat([broken.new_zeros(1, dtype=torch.int64), broken.cumsum(0)])  # breaks up to each row
    ends = torch.arange(length - 1, n, device=labels.device)
    return ends[before[ends] == before[ends - length + 1]]


def windows_at(rows: Tensor, ends: Tensor, length: int) -> Tensor:
    """Windows of rows [n, d], in the order of time, that end at rows [m], shape [m, length, d]."""
    return rows[ends[:, None] + torch.arange(1 - length, 1, device=ends.device)]
