"""Joint states in CDR, the format of ROS 2, read by rosbags."""

from functools import cache
from typing import Any

from ..data.user_warnings import optional_package
from .joint_state import FIELDS, JointState, LogError

ROS_TYPE = "sensor_msgs/msg/JointState"


def needed(package: str) -> Any:
    """Optional package; an ImportError names the extra to install."""
    missing = f'logs need {package}, which is not installed: pip install "trustgp[logs]"'
    return optional_package(package, missing)


@cache
def typestore() -> Any:
    """The message types of ROS 2."""
    types = needed("rosbags.typesys")
    return types.get_typestore(types.Stores.LATEST)


def read_cdr(time: int, data: bytes, *, where: str) -> JointState:
    """State from a sensor_msgs/msg/JointState message in CDR."""
    try:
        message = typestore().deserialize_cdr(data, ROS_TYPE)
        stamp = {"sec": message.header.stamp.sec, "nanosec": message.header.stamp.nanosec}
    except Exception as error:
        raise LogError(f"{where}: the message at {time} ns is damaged: {error}") from error
    fields = {name: getattr(message, name) for name in ("name", *FIELDS)}
    return JointState.read(time, {**fields, "header": {"stamp": stamp}}, where=where)
