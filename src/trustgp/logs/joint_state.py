"""A message of a robot's joints: its fields, their validation, and accelerations from its velocities."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np

from ..data.tensor_file import parse_json

FIELDS = ("position", "velocity", "effort")
SECOND, DAY = 10**9, 86_400 * 10**9  # in nanoseconds
MAX_TIME = 2**63 - 1  # the largest that every format can hold
MAX_STATE_BYTES = 2**20  # of a joint state; parsing takes a multiple of that
MAX_LISTED_NAMES = 12  # in an error
DEGREE = 2  # of the polynomials: exact for a slope that changes linearly
MIN_SAMPLES = DEGREE + 2  # samples for one of them, one more than it has coefficients


class LogError(ValueError):
    """A log that is damaged, or lacks the requested data."""


@dataclass(frozen=True)
class JointState:
    """State of joints at one time; position, velocity and effort are float64 [joints], empty if not recorded.

    If the message could not be read, `reason` is the error and all numbers are NaN: the status of a monitor
    is then "invalid input".
    """

    time: int  # in nanoseconds, when it was recorded
    names: tuple[str, ...]
    position: np.ndarray
    velocity: np.ndarray
    effort: np.ndarray
    stamp: int | None = field(default=None, kw_only=True)  # when it was measured, if its header has it
    reason: str = field(default="", kw_only=True)  # why the message is invalid; empty: it is valid

    @property
    def measured(self) -> int:
        """Time of the measurement, or else of the recording, in nanoseconds."""
        return self.time if self.stamp is None else self.stamp

    @classmethod
    def read(cls, time: int, fields: Mapping[str, Any], *, where: str) -> JointState:
        """State from the fields of a message; null becomes NaN, which a monitor reports."""
        names, message = fields.get("name"), f"{where}: the message at {time} ns"
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise LogError(f"{message} has no list of joint names; it is no JointState.")
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise LogError(f"{message} names a joint twice: {listed(twice)}.")
        numbers = {name: _numbers(fields.get(name), f"{message}: {name}") for name in FIELDS}
        for name, values in numbers.items():
            if len(values) not in (0, len(names)):
                raise LogError(f"{message} has {len(values)} numbers of {name} for {len(names)} joints.")
        return cls(time, tuple(names), *numbers.values(), stamp=_stamp(fields.get("header"), message))

    @classmethod
    def read_json(cls, time: int, data: bytes, *, where: str) -> JointState:
        """State from a message in JSON."""
        try:
            fields = parse_json(data)
        except (ValueError, RecursionError) as error:  # not text, not JSON, or nested too deeply
            raise LogError(f"{where}: the message at {time} ns is damaged: {error}") from error
        if not isinstance(fields, dict):
            raise LogError(f"{where}: the message at {time} ns is no table of fields.")
        return cls.read(time, fields, where=where)

    def pick(self, joints: Sequence[str], needs: Sequence[str], *, where: str) -> JointState | None:
        """State of these joints in this order, with the needed fields; None if it has none of the joints."""
        column = {name: number for number, name in enumerate(self.names)}
        missing, message = [name for name in joints if name not in column], f"the message at {self.time} ns"
        if len(missing) == len(joints):
            return None
        if missing:
            has = listed(self.names)
            raise LogError(f"{where}: {message} lacks the joints {listed(missing)}; it has {has}.")
        if empty := [name for name in needs if not len(getattr(self, name))]:
            raise LogError(f"{where}: {message}: {empty[0]} is empty; record it, or leave it out of needs=.")
        order = [column[name] for name in joints]
        numbers = {f: values[order] if len(values := getattr(self, f)) else values for f in FIELDS}
        return replace(self, names=tuple(joints), **numbers)

    def unread(self, time: int, reason: str) -> JointState:
        """State of a message that could not be read: the joints and fields of this one, all NaN."""
        numbers = {name: np.full_like(getattr(self, name), np.nan) for name in FIELDS}
        return replace(self, time=time, stamp=None, reason=reason, **numbers)


class Clock:
    """Detector of jumps in the times of consecutive messages.

    A time before that of the last message, or more than a day after it, is wrong. If the next message
    continues from there, the clock was set, and only the first message after that is refused.
    """

    _good: int | None = None
    _last: int | None = None

    def jump(self, time: int) -> str:
        """Reason why a time is wrong; empty if it is plausible."""
        before, self._last = self._last, time
        if not 0 <= time <= MAX_TIME:
            return f"the time {time} ns is outside of 0 to {MAX_TIME}"
        earlier = [t for t in (self._good, before) if t is not None and self._good is not None]
        if earlier and not any(0 <= time - t <= DAY for t in earlier):
            return f"the time {time} ns is {(time - earlier[0]) / SECOND:+.9g} s from the last message's"
        self._good = time
        return ""


def listed(names: Sequence[str]) -> str:
    """Names as text for an error, at most `MAX_LISTED_NAMES` of them."""
    more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(names[:MAX_LISTED_NAMES]) + more


def _numbers(values: Any, where: str) -> np.ndarray:
    """Array, float64, of a list of real numbers or nulls (NaN); empty if `values` is None."""
    if isinstance(values, np.ndarray) and values.dtype == np.float64 and values.ndim == 1:
        return values
    if values is None:
        return np.zeros(0)
    if not isinstance(values, list):
        raise LogError(f"{where} holds no numbers but {type(values).__name__}.")
    if wrong := [v for v in values if v is not None and (not isinstance(v, Real) or isinstance(v, bool))]:
        raise LogError(f"{where} holds no numbers but {str(wrong[0])[:40]!r}, {type(wrong[0]).__name__}.")
    try:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    except OverflowError as error:
        raise LogError(f"{where} holds a number too large for float64.") from error


def _stamp(header: Any, where: str) -> int | None:
    """Nanoseconds of a message's header; None where there is no header, or it is zero."""
    if header is None:
        return None
    stamp = header.get("stamp") if isinstance(header, dict) else None
    sec, nanosec = (stamp.get("sec"), stamp.get("nanosec")) if isinstance(stamp, dict) else (None, None)
    if type(sec) is not int or type(nanosec) is not int or sec < 0 or not 0 <= nanosec < SECOND:
        raise LogError(f"{where}: the header has no stamp of sec >= 0 and 0 <= nanosec < {SECOND}.")
    return sec * SECOND + nanosec or None


class Differentiator:
    """Accelerations: the slope of a parabola through the velocities of the last messages, this one included.

    Call it with one message after another; it returns the acceleration [joints], NaN if it is unknown: for
    an invalid message, for one that is not later than the one before, and for the first `MIN_SAMPLES` - 1
    after the beginning or a gap. Stamps need not be evenly spaced.

    Args:
        window: Number of messages; more of them damp the noise, but lag behind in a fast motion.
        gap: Seconds without a message after which it restarts.
    """

    def __init__(self, window: int = 11, *, gap: float = 0.1) -> None:
        if window < MIN_SAMPLES or not gap > 0:
            least = f"at least {MIN_SAMPLES} messages, more than 0 seconds"
            raise ValueError(f"window={window}, gap={gap}; {least}.")
        self._gap = gap
        self._past: deque[tuple[int, np.ndarray]] = deque(maxlen=window)  # times and velocities

    def __call__(self, state: JointState) -> np.ndarray:
        """The acceleration [joints] at this message."""
        if len(state.velocity) != len(state.names):
            sizes = f"{len(state.velocity)} velocities for {len(state.names)} joints"
            raise ValueError(f'the state at {state.time} ns has {sizes}; read with needs=["velocity"].')
        unknown, time = np.full(len(state.names), np.nan), state.measured
        step = time - self._past[-1][0] if self._past else 1
        if state.reason or not np.isfinite(state.velocity).all() or step == 0:
            return unknown
        if not 0 < step <= self._gap * SECOND:
            self._past.clear()
        self._past.append((time, state.velocity))
        if len(self._past) < MIN_SAMPLES:
            return unknown
        times = np.array([before - time for before, _ in self._past]) / SECOND
        scale = np.abs(times).max()  # so that the powers have similar sizes
        powers = (times / scale)[:, None] ** np.arange(DEGREE + 1)
        return np.linalg.pinv(powers)[1] @ np.stack([values for _, values in self._past]) / scale
