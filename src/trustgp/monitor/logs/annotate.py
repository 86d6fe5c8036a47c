"""Read joint states from a log, write them to one, and add verdicts to a copy: complete or absent."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ...data.atomic_file import atomic_file
from ...data.user_warnings import warn_user
from .bags import BagReader, BagWriter
from .joint_state import FIELDS, Clock, JointState, LogError, listed
from .mcap_files import McapReader, McapWriter
from .ros_types import DIAGNOSTICS_TYPE, ROS_TYPE, TEXT_TYPE, diagnostics_message

Names = Sequence[str]
TOPIC, VERDICTS = "/joint_states", "/trustgp/verdict"
STORAGES = ("sqlite3", "mcap", "json")
MAX_LISTED_JOINTS = 100  # from which an error chooses
INVALID = "invalid input"  # the monitor's status of a frame that cannot be read


def joint_states(
    path: str | Path, *, topic: str = TOPIC, joints: Names | None = None, needs: Names = FIELDS, strict=False
) -> Iterator[JointState]:
    """The joint states of a log, one after another.

    A message that cannot be read becomes a state with NaN and a `reason`; a warning counts them at the end.
    A damaged file is a LogError.

    Args:
        path: A ROS 2 bag (a folder; SQLite or MCAP storage), or an MCAP file (joint states in JSON or CDR).
        topic: Of the joint states.
        joints: The wanted ones, in the wanted order, in any order of the log; None: those of the first
            message that can be read.
        needs: The fields that must not be empty.
        strict: Whether a message that cannot be read is a LogError.
    """
    with _reader(Path(path), topic) as reader:
        messages = _messages(reader, topic, joints, needs, strict=strict)
        yield from (state for _, state in messages if state is not None)


def annotate(
    path: str | Path,
    out: str | Path,
    judge: Callable[[JointState], dict[str, Any]],
    *,
    topic: str = TOPIC,
    verdicts: str = VERDICTS,
    diagnostics: str | None = None,
    joints: Names | None = None,
    needs: Names = FIELDS,
    strict: bool = False,
) -> int:
    """Copy a log and add a topic with the verdict of `judge` on each joint state; returns their number.

    The copy has the format of the log; it is complete or absent. In a bag the verdicts are
    std_msgs/msg/String that hold JSON, in an MCAP file messages in JSON. The status of a message that cannot
    be read is always "invalid input", and its reason the error.

    Args:
        path: As for `joint_states`.
        out: The copy, which must not exist.
        judge: Returns plain values for JSON, such as `monitor(frame).as_dict()`.
        topic, joints, needs, strict: As for `joint_states`.
        verdicts: The new topic.
        diagnostics: Another one, such as "/diagnostics", where each verdict is a
            diagnostic_msgs/msg/DiagnosticArray, as ROS 2 writes it; None: no such topic.
    """
    with _reader(Path(path), topic) as reader, _writer(Path(out), reader.storage) as writer:
        kinds = {verdicts: TEXT_TYPE} | ({} if diagnostics is None else {diagnostics: DIAGNOSTICS_TYPE})
        taken = [name for name in (verdicts, diagnostics) if name in {c.topic for c in reader.channels}]
        if taken or diagnostics == verdicts:
            raise LogError(f"{path} has a topic {(taken or [verdicts])[0]} already; choose another name.")
        copies = {channel.id: writer.copy_channel(channel) for channel in reader.channels}
        new, count = {name: writer.add_topic(name, kind) for name, kind in kinds.items()}, 0
        for (channel, time, data), state in _messages(reader, topic, joints, needs, strict=strict):
            writer.copy_message(copies[channel.id], time, data)
            if state is not None:
                verdict = judge(state) | ({"status": INVALID, "reason": state.reason} if state.reason else {})
                writer.write(new[verdicts], time, writer.encode_text(json.dumps(verdict, allow_nan=False)))
                if diagnostics is not None:
                    message = diagnostics_message(verdict, time, verdicts.strip("/"))
                    writer.write(new[diagnostics], time, message)
                count += 1
        writer.copy_rest(reader)
        return count


def record(path: str | Path, states: Iterable[JointState], *, storage="mcap", topic: str = TOPIC) -> None:
    """Write joint states to a new log, complete or absent.

    Args:
        path: Must not exist.
        states: In the order of time.
        storage: "sqlite3" or "mcap" for a ROS 2 bag, "json" for a plain MCAP file.
        topic: Of the joint states.
    """
    with _writer(Path(path), storage) as writer:
        channel = writer.add_topic(topic, ROS_TYPE)
        for state in states:
            writer.write(channel, state.time, writer.encode_state(state))


def _messages(
    reader: Any, topic: str, joints: Names | None, needs: Names, *, strict: bool
) -> Iterator[tuple[tuple[Any, int, Any], JointState | None]]:
    """Every message (channel, time, data), and its wanted joints in the wanted order; None for a message of
    another topic, or with none of the joints, such as a gripper's."""
    if unknown := sorted(set(needs) - set(FIELDS)):
        raise ValueError(f"needs={list(needs)}; a joint state has {', '.join(FIELDS)}, not {unknown[0]}.")
    where = f"{reader.path}, topic {topic}"
    first = _first(reader, topic, joints, needs, where, strict)
    measured, recorded, errors, first_error = Clock(), Clock(), 0, ""
    for channel, time, data in reader.messages():
        state = None
        if channel.topic == topic:
            try:
                state = reader.state(channel, time, data).pick(first.names, needs, where=where)
                if state is not None:
                    jumps = measured.jump(state.measured), recorded.jump(time)  # both, as both count on
                    if any(jumps):
                        raise LogError(f"{where}, message at {time} ns: {jumps[1] or jumps[0]}.")
            except LogError as error:
                if strict:
                    raise
                state = first.unread(time, str(error))
                first_error, errors = first_error or str(error), errors + 1
        yield (channel, time, data), state
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
    """An open log that has the topic."""
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


@contextmanager
def _writer(out: Path, storage: str) -> Iterator[Any]:
    """A new log under a temporary name beside `out`, renamed when it is complete."""
    if storage not in STORAGES:
        raise ValueError(f"storage={storage!r}; it must be one of {', '.join(STORAGES)}.")
    if out.exists():
        raise FileExistsError(f"{out} exists already; choose another name, or remove it.")
    with (
        atomic_file(out, named=True) as inner,  # a bag's files are called after their folder
        McapWriter.opened(inner) if storage == "json" else BagWriter.opened(inner, storage) as writer,
    ):
        yield writer
