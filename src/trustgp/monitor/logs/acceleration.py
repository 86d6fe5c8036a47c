"""Accelerations from recorded velocities: slopes of local parabolas."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from .joint_state import SECOND, JointState

DEGREE = 2  # of the polynomials: exact for a slope that changes evenly
MIN_SAMPLES = DEGREE + 2  # samples for one of them, one more than it has coefficients
BATCH = 4096  # windows at once


class Differentiator:
    """Accelerations on-line: from the last `window` messages, this one included.

    Call it with one message after another; it returns the acceleration [joints], NaN where it is unknown: of
    an invalid message, of one that is not later than the one before, and of the first `MIN_SAMPLES` - 1 after
    the beginning or a gap. The slope at the end of a window is noisier than in its middle: for a recording
    use `accelerations`.

    Args:
        window: Messages; more of them damp the noise, and lag behind in a fast motion.
        gap: Seconds without a message after which it restarts.
    """

    def __init__(self, window: int = 11, *, gap: float = 0.1) -> None:
        _check(window, gap)
        self._gap = gap
        self._past: deque[tuple[int, np.ndarray]] = deque(maxlen=window)  # times and velocities

    def __call__(self, state: JointState) -> np.ndarray:
        """The acceleration [joints] at this message."""
        unknown, time = np.full(len(state.names), np.nan), state.measured
        step = time - self._past[-1][0] if self._past else 1
        if not _valid(state) or step == 0:
            return unknown
        if not 0 < step <= self._gap * SECOND:
            self._past.clear()
        self._past.append((time, state.velocity))
        times = np.array([t - time for t, _ in self._past]) / SECOND
        return _slopes(times[None], np.stack([values for _, values in self._past])[None])[0]


def accelerations(states: Iterable[JointState], window: int = 11, *, gap: float = 0.1) -> np.ndarray:
    """Accelerations of a recording, float64 [messages, joints]: each from the messages on both sides of it.

    Stamps need not be even. NaN where it is unknown: see `Differentiator`, which is for on-line use. At the
    ends, and beside a gap, the window lies on one side.

    Args:
        states: All of the same joints, with velocities.
        window: Messages in the window, this one in the middle.
        gap: Seconds without a message that a window does not reach across.
    """
    _check(window, gap)
    states = list(states)
    slopes = np.full((len(states), len(states[0].names) if states else 0), np.nan)
    runs: list[list[int]] = [[]]  # messages without a gap
    for number, state in enumerate(states):
        step = state.measured - states[runs[-1][-1]].measured if runs[-1] else 1
        if _valid(state) and step != 0:
            runs += [] if 0 < step <= gap * SECOND else [[]]
            runs[-1].append(number)
    for run in map(np.array, filter(None, runs)):
        times = np.array([states[k].measured - states[run[0]].measured for k in run]) / SECOND
        values, size = np.stack([states[k].velocity for k in run]), min(window, len(run))
        first = np.clip(np.arange(len(run)) - size // 2, 0, len(run) - size)
        for batch in np.array_split(np.arange(len(run)), -(-len(run) // BATCH)):
            members = first[batch, None] + np.arange(size)
            slopes[run[batch]] = _slopes(times[members] - times[batch, None], values[members])
    return slopes


def _slopes(times: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Slopes at time 0 of the parabolas nearest to values [m, w, joints] at times [m, w]: [m, joints]."""
    if times.shape[1] < MIN_SAMPLES:
        return np.full((len(values), values.shape[2]), np.nan)
    scale = np.abs(times).max(axis=1)  # so that the powers have similar sizes
    powers = (times / scale[:, None])[:, :, None] ** np.arange(DEGREE + 1)
    return np.einsum("mw,mwj->mj", np.linalg.pinv(powers)[:, 1], values) / scale[:, None]


def _valid(state: JointState) -> bool:
    if len(state.velocity) != len(state.names):
        sizes = f"{len(state.velocity)} velocities for {len(state.names)} joints"
        raise ValueError(f'the state at {state.time} ns has {sizes}; read with needs=["velocity"].')
    return not state.reason and bool(np.isfinite(state.velocity).all())


def _check(window: int, gap: float) -> None:
    if window < MIN_SAMPLES or not gap > 0:
        raise ValueError(f"window={window}, gap={gap}; at least {MIN_SAMPLES} messages, more than 0 seconds.")
