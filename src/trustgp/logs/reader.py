"""Read joint states from a log: the topic, the joints by name, and which messages are valid."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ..data.user_warnings import warn_user
from .bags import BagReader
from .joint_state import FIELDS, Clock, JointState, LogError, listed
from .mcap_files import McapReader
from .ros_types import ROS_TYPE

Names = Sequence[str]
TOPIC = "/joint_states"
MAX_LISTED_JOINTS = 100  # joints that are collected for an error message


def joint_states(
    path: str | Path, *, topic: str = TOPIC, joints: Names | None = None, needs: Names = FIELDS, strict=False
) -> Iterator[JointState]:
    """The joint states of a log, one after another.

    A message that cannot be read becomes a state with NaN and a `reason`; a warning counts them at the end.
    A damaged file is a LogError.

    Args:
        path: A ROS 2 bag (a folder; SQLite or MCAP storage), or an MCAP file (joint states in JSON or CDR).
        topic: Topic of the joint states.
        joints: Names of the wanted joints, in the wanted order; the log may have any order. None: those of
            the first message that can be read.
        needs: The fields that must not be empty.
        strict: Whether a message that cannot be read is a LogError.
    """
    with _reader(Path(path), topic) as reader:
        yield from _states(reader, topic, joints, needs, strict=strict)


def _states(
    reader: Any, topic: str, joints: Names | None, needs: Names, *, strict: bool
) -> Iterator[JointState]:
    """State of the wanted joints in each message that has any; others, such as a gripper's, are skipped."""
    if unknown := sorted(set(needs) - set(FIELDS)):
        raise ValueError(f"needs={list(needs)}; a joint state has {', '.join(FIELDS)}, not {unknown[0]}.")
    where = f"{reader.path}, topic {topic}"
    first = _first(reader, topic, joints, needs, where, strict)
    measured, recorded, errors, first_error = Clock(), Clock(), 0, ""
    for channel, time, data in reader.messages():
        if channel.topic != topic:
            continue
        try:
            state = reader.state(channel, time, data).pick(first.names, needs, where=where)
            jumps = None if state is None else (measured.jump(state.measured), recorded.jump(time))
            if jumps is not None and any(jumps):
                raise LogError(f"{where}, message at {time} ns: {jumps[1] or jumps[0]}.")
        except LogError as error:
            if strict:
                raise
            state = first.unread(time, str(error))
            first_error, errors = first_error or str(error), errors + 1
        if state is not None:
            yield state
    if errors:
        warn_user(f"{errors} messages cannot be read; their frames are invalid. The first: {first_error}")


def _first(reader: Any, topic: str, joints: Any, needs: Names, where: str, strict: bool) -> JointState:
    """The first message that can be read, which defines the joints and the recorded fields."""
    others, first_error = {}, None
    for channel, time, data in reader.messages():
        if channel.topic != topic:
            continue
        try:
            state = reader.state(channel, time, data)
            others |= dict.fromkeys(state.names) if len(others) < MAX_LISTED_JOINTS else {}
            state = state.pick(state.names if joints is None else joints, needs, where=where)
        except LogError as error:
            if strict:
                raise
            first_error = first_error or error
            continue
        if state is not None:
            return state
    if first_error is not None:
        raise first_error
    there = f"its joints are {listed(sorted(others))}" if others else "it is empty"
    wanted = "" if joints is None else f" with the joints {listed(joints)}"
    raise LogError(f"{where}: no message{wanted}; {there}.")


@contextmanager
def _reader(path: Path, topic: str) -> Iterator[Any]:
    """Reader of a log that has the topic, closed at the end of the block."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such log.")
    with closing(BagReader(path)) if path.is_dir() else nullcontext(McapReader(path)) as reader:
        kinds = [channel.msgtype for channel in reader.channels if channel.topic == topic]
        if not kinds:
            topics = listed(sorted({channel.topic for channel in reader.channels})) or "none"
            raise LogError(f"{path}: no topic {topic}; there are: {topics}.")
        if other := [kind for kind in kinds if kind != ROS_TYPE]:
            raise LogError(f"{path}: topic {topic} holds {other[0]}, not {ROS_TYPE}.")
        yield reader
