"""Messages in CDR, the format of ROS 2, by rosbags: joint states, texts and diagnostics."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from ...data.user_warnings import optional_package
from .joint_state import FIELDS, JointState, LogError, ros_time

ROS_TYPE, TEXT_TYPE = "sensor_msgs/msg/JointState", "std_msgs/msg/String"
DIAGNOSTICS_TYPE = "diagnostic_msgs/msg/DiagnosticArray"
LEVELS = {"ok": "OK", "uncertain": "WARN", "novel": "ERROR", "invalid input": "ERROR"}  # else STALE


def needed(package: str) -> Any:
    """An optional package, or an error that names the extra."""
    missing = f'logs need {package}, which is not installed: pip install "trustgp[logs]"'
    return optional_package(package, missing)


@cache
def typestore() -> Any:
    """The message types of ROS 2."""
    types = needed("rosbags.typesys")
    return types.get_typestore(types.Stores.LATEST)


def read_cdr(time: int, data: bytes, *, where: str) -> JointState:
    """The sensor_msgs/msg/JointState in a message as ROS 2 writes it."""
    try:
        message = typestore().deserialize_cdr(data, ROS_TYPE)
        stamp = {"sec": message.header.stamp.sec, "nanosec": message.header.stamp.nanosec}
    except Exception as error:
        raise LogError(f"{where}: the message at {time} ns is damaged: {error}") from error
    fields = {name: getattr(message, name) for name in ("name", *FIELDS)}
    return JointState.read(time, {**fields, "header": {"stamp": stamp}}, where=where)


def state_message(state: JointState) -> bytes:
    """A joint state."""
    numbers = (np.asarray(v, dtype=np.float64) for v in (state.position, state.velocity, state.effort))
    return serialize(ROS_TYPE, _header(state.measured), list(state.names), *numbers)


def diagnostics_message(verdict: Mapping[str, Any], time: int, name: str) -> bytes:
    """A verdict as a diagnostic_msgs/msg/DiagnosticArray of one status.

    The level is OK, WARN for "uncertain", ERROR for "novel" and "invalid input", STALE for any other status;
    the other fields of the verdict are its values, as JSON.
    """
    kinds = typestore().types
    status, pair = kinds["diagnostic_msgs/msg/DiagnosticStatus"], kinds["diagnostic_msgs/msg/KeyValue"]
    label, reason = str(verdict.get("status", "")), str(verdict.get("reason") or "")
    level = getattr(status, LEVELS.get(label, "STALE"))
    entries = {key: value for key, value in verdict.items() if key not in ("status", "reason")}
    values = [pair(str(key), json.dumps(value, allow_nan=False)) for key, value in entries.items()]
    message = f"{label}: {reason}" if reason else label
    return serialize(DIAGNOSTICS_TYPE, _header(time), [status(level, name, message, "", values)])


def _header(time: int) -> Any:
    kinds = typestore().types
    return kinds["std_msgs/msg/Header"](kinds["builtin_interfaces/msg/Time"](*ros_time(time)), frame_id="")


def serialize(kind: str, *values: Any) -> bytes:
    """A message of this type."""
    store = typestore()
    return bytes(store.serialize_cdr(store.types[kind](*values), kind))
