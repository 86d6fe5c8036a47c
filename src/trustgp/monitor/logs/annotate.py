"""Read joint states from a log, write them to one, and add verdicts to a copy: whole or absent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ...data.atomic_file import atomic_file
from ...data.user_warnings import warn_user
from .bags import BagReader, BagWriter
from .joint_state import FIELDS, Clock, JointState, LogError, listed
from .mcap_files import McapReader, McapWriter
from .ros_types import DIAGNOSTICS_TYPE, ROS_TYPE, TEXT_TYPE

TOPIC = "/joint_states"
VERDICTS = "/trustgp/verdict"
STORAGES = ("sqlite3", "mcap", "json")
MANY = 100  # joints that an error may choose from
INVALID = "invalid input"  # what a monitor says of a frame that cannot be read


def joint_states(
    path: str | Path,
    *,
    topic: str = TOPIC,
    joints: Sequence[str] | None = None,
    needs: Sequence[str] = FIELDS,
    strict: bool = False,
) -> Iterator[JointState]:
    """The joint states of a log, one after another.

    A message that cannot be read gives one with NaN in it and a `reason`; a warning counts them in the end.
    A file that is damaged itself is a LogError.

    Args:
        path: A ROS 2 bag (a folder; SQLite or MCAP storage), or an MCAP file (joint states in JSON or CDR).
        topic: Of the joint states.
        joints: The wanted ones, in the wanted order, whatever order the log has; None: as the first message
            that can be read.
        needs: The fields that must not be empty.
        strict: Whether a message that cannot be read is a LogError.
    """
    with _reader(Path(path), topic) as reader:
        found = _messages(reader, topic, joints, needs, strict=strict)
        yield from (state for _, state in found if state is not None)


def annotate(
    path: str | Path,
    out: str | Path,
    judge: Callable[[JointState], dict[str, Any]],
    *,
    topic: str = TOPIC,
    verdicts: str = VERDICTS,
    diagnostics: str | None = None,
    joints: Sequence[str] | None = None,
    needs: Sequence[str] = FIELDS,
    strict: bool = False,
) -> int:
    """Copy a log and add a topic with what `judge` says of each joint state; returns how many there were.

    The copy has the format of the log. In a bag the verdicts are std_msgs/msg/String that hold JSON, in an
    MCAP file messages in JSON. It is there whole, or not at all. Of a message that cannot be read the status
    is "invalid input", whatever `judge` says of its NaN, with what is wrong as the reason.

    Args:
        path: As for `joint_states`.
        out: The copy, which must not be there yet.
        judge: Gives plain values for JSON, such as `monitor(frame).as_dict()`.
        topic, joints, needs, strict: As for `joint_states`.
        verdicts: The new topic.
        diagnostics: Another one, such as "/diagnostics", where each verdict is a
            diagnostic_msgs/msg/DiagnosticArray, as ROS 2 writes it; None: there is none.
    """
    with _reader(Path(path), topic) as reader, _writer(Path(out), reader.storage) as writer:
        kinds = {verdicts: TEXT_TYPE} | ({} if diagnostics is None else {diagnostics: DIAGNOSTICS_TYPE})
        there = [name for name in (verdicts, diagnostics) if name in {c.topic for c in reader.channels}]
        if there or diagnostics == verdicts:
            raise LogError(f"{path} has a topic {(there or [verdicts])[0]} already; name another one.")
        places = {channel.id: writer.copy(channel) for channel in reader.channels}
        new, found = {name: writer.add_topic(name, kind) for name, kind in kinds.items()}, 0
        for (channel, time, data), state in _messages(reader, topic, joints, needs, strict=strict):
            writer.write(places[channel.id], time, data)
            if state is not None:
                said = judge(state)
                said = {**said, "status": INVALID, "reason": state.reason} if state.reason else said
                writer.write_text(new[verdicts], time, json.dumps(said, allow_nan=False))
                if diagnostics is not None:
                    writer.write_diagnostics(new[diagnostics], time, said, verdicts.strip("/"))
                found += 1
        writer.keep(reader)
        return found


def record(
    path: str | Path, states: Iterable[JointState], *, storage: str = "mcap", topic: str = TOPIC
) -> None:
    """Write joint states to a new log, whole or not at all.

    Args:
        path: Must not be there yet.
        states: In the order of time.
        storage: "sqlite3" or "mcap" for a ROS 2 bag, "json" for a plain MCAP file.
        topic: Of the joint states.
    """
    with _writer(Path(path), storage) as writer:
        channel = writer.add_topic(topic, ROS_TYPE)
        for state in states:
            writer.write_state(channel, state)


def _messages(
    reader: Any, topic: str, joints: Sequence[str] | None, needs: Sequence[str], *, strict: bool
) -> Iterator[tuple[tuple[Any, int, Any], JointState | None]]:
    """Every message (channel, time, data), and its wanted joints in the wanted order. A message of the topic
    with none of them is somebody else's, such as a gripper's: it is passed over."""
    unknown = sorted(set(needs) - set(FIELDS))
    if unknown:
        raise ValueError(f"needs={list(needs)}; a joint state has {', '.join(FIELDS)}, not {unknown[0]}.")
    where = f"{reader.path}, topic {topic}"
    first = _first(reader, topic, joints, needs, where, strict=strict)
    clocks, count, bad = (Clock(), Clock()), 0, []
    for channel, time, data in reader.messages():
        state = None
        if channel.topic == topic:
            try:
                state = reader.state(channel, time, data).pick(first.names, needs, where=where)
                if state is not None:
                    stamps = time if state.stamp is None else state.stamp, time
                    doubts = [clock.doubt(stamp) for clock, stamp in zip(clocks, stamps, strict=True)]
                    if any(doubts):
                        raise LogError(f"{where}, message at {time} ns: {doubts[1] or doubts[0]}.")
            except LogError as error:
                if strict:
                    raise
                state = first.unread(time, str(error))
                bad = bad or [str(error)]
                count += 1
        yield (channel, time, data), state
    if bad:
        warn_user(f"{count} messages cannot be read; their frames are invalid. The first: {bad[0]}")


def _first(
    reader: Any, topic: str, joints: Sequence[str] | None, needs: Sequence[str], where: str, *, strict: bool
) -> JointState:
    """The first message that can be read, which tells what the joints are and which fields there are."""
    others, wrong = {}, None
    for channel, time, data in reader.messages():
        if channel.topic != topic:
            continue
        try:
            said = reader.state(channel, time, data)
            others |= dict.fromkeys(said.names) if len(others) < MANY else {}
            found = said.pick(said.names if joints is None else joints, needs, where=where)
        except LogError as error:
            if strict:
                raise
            wrong = wrong or error
            continue
        if found is not None:
            return found
    if wrong is not None:
        raise wrong
    there = f"the joints there are {listed(sorted(others))}" if others else "it is empty"
    raise LogError(
        f"{where}: no message{'' if joints is None else f' with the joints {listed(joints)}'}; {there}."
    )


@contextmanager
def _reader(path: Path, topic: str) -> Iterator[Any]:
    """An open log that has the topic."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such log.")
    with closing(BagReader(path) if path.is_dir() else McapReader(path)) as reader:
        kinds = [channel.msgtype for channel in reader.channels if channel.topic == topic]
        if not kinds:
            there = listed(sorted({channel.topic for channel in reader.channels})) or "none"
            raise LogError(f"{path}: no topic {topic}; there are: {there}.")
        if other := [kind for kind in kinds if kind != ROS_TYPE]:
            raise LogError(f"{path}: topic {topic} holds {other[0]}, not {ROS_TYPE}.")
        yield reader


@contextmanager
def _writer(out: Path, storage: str) -> Iterator[Any]:
    """A new log under a temporary name beside `out`, renamed when it is whole."""
    if storage not in STORAGES:
        raise ValueError(f"storage={storage!r}; it must be one of {', '.join(STORAGES)}.")
    if out.exists():
        raise FileExistsError(f"{out} is there already; name another log, or remove it.")
    with atomic_file(out, named=True) as inner:  # a bag's files are called after their folder
        plain = storage == "json"
        opened = McapWriter.opened(inner) if plain else BagWriter.opened(inner, storage)
        with opened as writer:
            yield writer
