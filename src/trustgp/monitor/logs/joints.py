"""One message of a robot's joints, its numbers in the order that the user's network wants."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ROS_TYPE = "sensor_msgs/msg/JointState"
FIELDS = ("position", "velocity", "effort")


class LogError(ValueError):
    """A log that is damaged, or does not hold what was asked for."""


@dataclass(frozen=True)
class JointState:
    """Joints at one time.

    Args:
        time: In nanoseconds, when it was recorded.
        names: Of the joints.
        position, velocity, effort: Float64, shape [joints]; empty: not recorded.
    """

    time: int
    names: tuple[str, ...]
    position: np.ndarray
    velocity: np.ndarray
    effort: np.ndarray

    @classmethod
    def read(cls, time: int, said: Mapping[str, Any], *, where: str) -> JointState:
        """From the fields of a message; null counts as NaN, which is for a monitor to judge."""
        names = said.get("name")
        if not isinstance(names, Iterable) or isinstance(names, str):
            raise LogError(f"{where}: the message at {time} ns has no list of joint names; not a JointState.")
        names, numbers = tuple(str(name) for name in names), {}
        for field in FIELDS:
            values = said.get(field)
            values = [] if values is None else values
            try:
                numbers[field] = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise LogError(f"{where}: {field} at {time} ns holds no numbers: {error}") from error
            if len(numbers[field]) not in (0, len(names)):
                raise LogError(
                    f"{where}: {len(numbers[field])} numbers of {field} for {len(names)} joints at {time} ns."
                )
        return cls(time, names, **numbers)

    def plain(self) -> dict[str, Any]:
        """As a message in JSON; NaN becomes null."""
        stamp = {"sec": self.time // 10**9, "nanosec": self.time % 10**9}
        numbers = {f: [v if math.isfinite(v) else None for v in getattr(self, f).tolist()] for f in FIELDS}
        return {"header": {"stamp": stamp, "frame_id": ""}, "name": list(self.names), **numbers}


class JointSelector:
    """Takes the wanted joints out of messages, by name.

    A message with none of them is somebody else's on the same topic, such as a gripper's: it is passed over.

    Args:
        joints: Their names, in the order of the network's inputs; None: those of the first message.
        needs: The fields that must be there.
        where: What to call the log in errors.
    """

    def __init__(self, joints: Sequence[str] | None, needs: Sequence[str], where: str) -> None:
        unknown = sorted(set(needs) - set(FIELDS))
        if unknown:
            raise ValueError(f"needs={list(needs)}; a joint state has {', '.join(FIELDS)}, not {unknown[0]}.")
        self.joints = None if joints is None else tuple(joints)
        self._needs = tuple(needs)
        self._where = where
        self._others: set[str] = set()
        self.found = 0

    def __call__(self, state: JointState) -> JointState | None:
        """The wanted joints in the wanted order; None: the message has none of them."""
        if self.joints is None:
            self.joints = state.names
        place = {name: at for at, name in enumerate(state.names)}
        missing = [name for name in self.joints if name not in place]
        if len(missing) == len(self.joints):
            self._others.update(state.names)
            return None
        if missing:
            raise LogError(
                f"{self._where}: the message at {state.time} ns lacks the joints {', '.join(missing)}; "
                f"it has {', '.join(state.names)}."
            )
        for field in self._needs:
            if not len(getattr(state, field)):
                raise LogError(
                    f"{self._where}: {field} is empty at {state.time} ns; record it, or leave it out of "
                    "needs=."
                )
        self.found += 1
        order = [place[name] for name in self.joints]
        numbers = {f: values[order] if len(values := getattr(state, f)) else values for f in FIELDS}
        return JointState(state.time, self.joints, **numbers)

    def finish(self) -> None:
        """Raise if no message had the joints."""
        if not self.found:
            there = (
                f"the joints there are {', '.join(sorted(self._others))}" if self._others else "it is empty"
            )
            wanted = "" if self.joints is None else f" with the joints {', '.join(self.joints)}"
            raise LogError(f"{self._where}: no message{wanted}; {there}.")


def needed(package: str) -> Any:
    """An optional package, or an error that names the extra."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f'logs need {package}, which is not installed: pip install "trustgp[logs]"'
        ) from error
