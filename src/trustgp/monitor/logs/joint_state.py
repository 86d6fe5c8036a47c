"""A message of a robot's joints: what one must look like, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np

FIELDS = ("position", "velocity", "effort")
SECOND, DAY = 10**9, 86_400 * 10**9  # in nanoseconds
LATEST = 2**63 - 1  # a time that every format can hold
LARGEST = 2**20  # bytes of a joint state; what it takes to parse one is a multiple of that
SHOWN = 12  # names in an error


class LogError(ValueError):
    """A log that is damaged, or does not hold what was asked for."""


@dataclass(frozen=True)
class JointState:
    """Joints at one time; position, velocity and effort are float64, [joints]; empty: not recorded.

    Of a message that could not be read `reason` says why, and all numbers are NaN: a monitor calls it an
    "invalid input".
    """

    time: int  # in nanoseconds, when it was recorded
    names: tuple[str, ...]
    position: np.ndarray
    velocity: np.ndarray
    effort: np.ndarray
    stamp: int | None = field(default=None, kw_only=True)  # when it was measured, if its header tells
    reason: str = field(default="", kw_only=True)  # what is wrong with the message; empty: nothing

    @classmethod
    def read(cls, time: int, said: Mapping[str, Any], *, where: str) -> JointState:
        """From the fields of a message; null counts as NaN, which is for a monitor to judge."""
        names = said.get("name")
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise LogError(f"{where}: the message at {time} ns has no list of joint names; not a JointState.")
        twice = (
            sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        )
        if twice:
            raise LogError(f"{where}: the message at {time} ns names a joint twice: {listed(twice)}.")
        numbers = {name: _numbers(said.get(name), f"{where}: {name} at {time} ns") for name in FIELDS}
        for name, values in numbers.items():
            if len(values) not in (0, len(names)):
                raise LogError(
                    f"{where}: {len(values)} numbers of {name} for {len(names)} joints at {time} ns."
                )
        stamp = _stamp(said.get("header"), f"{where}, at {time} ns")
        return cls(time, tuple(names), *(numbers[name] for name in FIELDS), stamp=stamp)

    @classmethod
    def read_json(cls, time: int, data: bytes, *, where: str) -> JointState:
        """From a message in JSON."""
        try:
            said = json.loads(data, object_pairs_hook=_table)
        except (ValueError, RecursionError) as error:  # neither text nor JSON; a thousand brackets
            raise LogError(f"{where}: the message at {time} ns is damaged: {error}") from error
        if not isinstance(said, dict):
            raise LogError(f"{where}: the message at {time} ns is no table of fields.")
        return cls.read(time, said, where=where)

    def pick(self, joints: Sequence[str], needs: Sequence[str], *, where: str) -> JointState | None:
        """These joints in this order, with the fields that are needed; None: the message has none of them."""
        place = {name: at for at, name in enumerate(self.names)}
        missing = [name for name in joints if name not in place]
        if len(missing) == len(joints):
            return None
        if missing:
            raise LogError(
                f"{where}: the message at {self.time} ns lacks the joints {listed(missing)}; "
                f"it has {listed(self.names)}."
            )
        for name in needs:
            if not len(getattr(self, name)):
                raise LogError(
                    f"{where}: {name} is empty at {self.time} ns; record it, or leave it out of needs=."
                )
        order = [place[name] for name in joints]
        numbers = {f: values[order] if len(values := getattr(self, f)) else values for f in FIELDS}
        return replace(self, names=tuple(joints), **numbers)

    def unread(self, time: int, reason: str) -> JointState:
        """A message that was recorded like this one, but could not be read."""
        numbers = {name: np.full_like(getattr(self, name), np.nan) for name in FIELDS}
        return replace(self, time=time, stamp=None, reason=reason, **numbers)

    def plain(self) -> dict[str, Any]:
        """As a message in JSON; NaN becomes null."""
        sec, nanosec = ros_time(self.time if self.stamp is None else self.stamp)
        numbers = {f: [v if math.isfinite(v) else None for v in getattr(self, f).tolist()] for f in FIELDS}
        stamp = {"sec": sec, "nanosec": nanosec}
        return {"header": {"stamp": stamp, "frame_id": ""}, "name": list(self.names), **numbers}


class Clock:
    """Whether the times of messages make sense, one after another.

    A time before that of the last message, or a day after it, is wrong, unless the next one goes on from
    there: then somebody has set the clock, and only the message at which that shows is refused.
    """

    def __init__(self) -> None:
        self._good: int | None = None
        self._last: int | None = None

    def doubt(self, time: int) -> str:
        """Why a time cannot be right; empty: it can."""
        before, self._last = self._last, time
        if not 0 <= time <= LATEST:
            return f"the time {time} ns lies outside of 0 to {LATEST}"
        known = [one for one in (self._good, before) if one is not None and self._good is not None]
        if known and not any(0 <= time - one <= DAY for one in known):
            return (
                f"the time {time} ns lies {(time - known[0]) / SECOND:+.9g} s from that of the message before"
            )
        self._good = time
        return ""


def listed(names: Sequence[str]) -> str:
    """Names for an error, not too many of them."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def ros_time(time: int) -> tuple[int, int]:
    """Seconds and nanoseconds of a ROS message, the nearest ones that it can hold."""
    return divmod(min(max(time, 0), 2**31 * SECOND - 1), SECOND)


def _numbers(values: Any, where: str) -> np.ndarray:
    """A list of real numbers or nulls as float64; absent or null: none."""
    if isinstance(values, np.ndarray) and values.dtype == np.float64 and values.ndim == 1:
        return values
    if values is None:
        return np.zeros(0)
    if not isinstance(values, list):
        raise LogError(f"{where} holds no numbers but {type(values).__name__}.")
    for value in values:
        if value is not None and (not isinstance(value, Real) or isinstance(value, bool)):
            raise LogError(f"{where} holds no numbers but {str(value)[:40]!r}, {type(value).__name__}.")
    try:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    except OverflowError as error:
        raise LogError(f"{where} holds a number too large for float64.") from error


def _stamp(header: Any, where: str) -> int | None:
    """Nanoseconds of a message's header; None where there is no header, or nobody has set it."""
    if header is None:
        return None
    stamp = header.get("stamp") if isinstance(header, dict) else None
    sec, nanosec = (stamp.get("sec"), stamp.get("nanosec")) if isinstance(stamp, dict) else (None, None)
    if type(sec) is not int or type(nanosec) is not int or sec < 0 or not 0 <= nanosec < SECOND:
        raise LogError(f"{where}: the header has no stamp of sec >= 0 and 0 <= nanosec < {SECOND}.")
    return sec * SECOND + nanosec or None


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a key that stands twice could be read in two ways."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field stands twice")
    return found
