"""One message of a robot's joints, its numbers in the order that the user's network wants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...data.user_warnings import optional_package

ROS_TYPE, TEXT_TYPE = "sensor_msgs/msg/JointState", "std_msgs/msg/String"
FIELDS = ("position", "velocity", "effort")


class LogError(ValueError):
    """A log that is damaged, or does not hold what was asked for."""


@dataclass(frozen=True)
class JointState:
    """Joints at one time; position, velocity and effort are float64, [joints]; empty: not recorded."""

    time: int  # in nanoseconds, when it was recorded
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

    def pick(self, joints: Sequence[str], needs: Sequence[str], *, where: str) -> JointState | None:
        """These joints in this order, with the fields that are needed; None: the message has none of them."""
        place = {name: at for at, name in enumerate(self.names)}
        missing = [name for name in joints if name not in place]
        if len(missing) == len(joints):
            return None
        if missing:
            raise LogError(
                f"{where}: the message at {self.time} ns lacks the joints {', '.join(missing)}; "
                f"it has {', '.join(self.names)}."
            )
        for field in needs:
            if not len(getattr(self, field)):
                raise LogError(
                    f"{where}: {field} is empty at {self.time} ns; record it, or leave it out of needs=."
                )
        order = [place[name] for name in joints]
        numbers = {f: values[order] if len(values := getattr(self, f)) else values for f in FIELDS}
        return JointState(self.time, tuple(joints), **numbers)

    def plain(self) -> dict[str, Any]:
        """As a message in JSON; NaN becomes null."""
        stamp = {"sec": self.time // 10**9, "nanosec": self.time % 10**9}
        numbers = {f: [v if math.isfinite(v) else None for v in getattr(self, f).tolist()] for f in FIELDS}
        return {"header": {"stamp": stamp, "frame_id": ""}, "name": list(self.names), **numbers}


def needed(package: str) -> Any:
    """An optional package, or an error that names the extra."""
    missing = f'logs need {package}, which is not installed: pip install "trustgp[logs]"'
    return optional_package(package, missing)
