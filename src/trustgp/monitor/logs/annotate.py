"""Read joint states from a log, write them to one, and add verdicts to a copy: whole or absent."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ...data.tensor_file import PART
from . import formats
from .formats import FIELDS, ROS_TYPE, TEXT_TYPE, JointState, LogError

TOPIC = "/joint_states"
VERDICTS = "/trustgp/verdict"
STORAGES = ("sqlite3", "mcap", "json")


def joint_states(
    path: str | Path,
    *,
    topic: str = TOPIC,
    joints: Sequence[str] | None = None,
    needs: Sequence[str] = FIELDS,
) -> Iterator[JointState]:
    """The joint states of a log, one after another.

    Args:
        path: A ROS 2 bag (a folder; SQLite or MCAP storage), or an MCAP file (joint states in JSON or CDR).
        topic: Of the joint states.
        joints: The wanted ones, in the wanted order, whatever order the log has; None: as its first message.
        needs: The fields that must not be empty.
    """
    with _reader(Path(path), topic) as reader:
        yield from (s for _, s in _messages(reader, topic, joints, needs) if s is not None)


def annotate(
    path: str | Path,
    out: str | Path,
    judge: Callable[[JointState], dict[str, Any]],
    *,
    topic: str = TOPIC,
    verdicts: str = VERDICTS,
    joints: Sequence[str] | None = None,
    needs: Sequence[str] = FIELDS,
) -> int:
    """Copy a log and add a topic with what `judge` says of each joint state; returns how many there were.

    The copy has the format of the log. In a bag the verdicts are std_msgs/msg/String that hold JSON, in an
    MCAP file messages in JSON. It is there whole, or not at all.

    Args:
        path: As for `joint_states`.
        out: The copy, which must not be there yet.
        judge: Gives plain values for JSON, such as `monitor(frame).as_dict()`.
        topic, joints, needs: As for `joint_states`.
        verdicts: The new topic.
    """
    with _reader(Path(path), topic) as reader, _writer(Path(out), reader.storage) as writer:
        if any(channel.topic == verdicts for channel in reader.channels):
            raise LogError(f"{path} has a topic {verdicts} already; name another one.")
        places = {channel.id: writer.copy(channel) for channel in reader.channels}
        new, found = writer.add_topic(verdicts, TEXT_TYPE), 0
        for (channel, time, data), state in _messages(reader, topic, joints, needs):
            writer.write(places[channel.id], time, data)
            if state is not None:
                writer.write_text(new, time, json.dumps(judge(state), allow_nan=False))
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
    reader: Any, topic: str, joints: Sequence[str] | None, needs: Sequence[str]
) -> Iterator[tuple[tuple[Any, int, Any], JointState | None]]:
    """Every message (channel, time, data), and its wanted joints in the wanted order. A message of the topic
    with none of them is somebody else's, such as a gripper's: it is passed over."""
    unknown = sorted(set(needs) - set(FIELDS))
    if unknown:
        raise ValueError(f"needs={list(needs)}; a joint state has {', '.join(FIELDS)}, not {unknown[0]}.")
    where, others, found = f"{reader.path}, topic {topic}", set(), False
    for channel, time, data in reader.messages():
        state = None
        if channel.topic == topic:
            said = reader.state(channel, time, data)
            joints = said.names if joints is None else joints
            state = said.pick(joints, needs, where=where)
            found |= state is not None
            others.update(said.names)
        yield (channel, time, data), state
    if not found:
        there = f"the joints there are {', '.join(sorted(others))}" if others else "it is empty"
        wanted = "" if joints is None else f" with the joints {', '.join(joints)}"
        raise LogError(f"{where}: no message{wanted}; {there}.")


@contextmanager
def _reader(path: Path, topic: str) -> Iterator[Any]:
    """An open log that has the topic."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such log.")
    with closing(formats.BagReader(path) if path.is_dir() else formats.McapReader(path)) as reader:
        kinds = {channel.topic: channel.msgtype for channel in reader.channels}
        if topic not in kinds:
            there = ", ".join(sorted(kinds)) or "none"
            raise LogError(f"{path}: no topic {topic}; there are: {there}.")
        if kinds[topic] != ROS_TYPE:
            raise LogError(f"{path}: topic {topic} holds {kinds[topic]}, not {ROS_TYPE}.")
        yield reader


@contextmanager
def _writer(out: Path, storage: str) -> Iterator[Any]:
    """A new log under a temporary name beside `out`, renamed when it is whole."""
    if storage not in STORAGES:
        raise ValueError(f"storage={storage!r}; it must be one of {', '.join(STORAGES)}.")
    if out.exists():
        raise FileExistsError(f"{out} is there already; name another log, or remove it.")
    name = {"prefix": f".{out.name}.", "suffix": PART, "dir": out.parent}
    with tempfile.TemporaryDirectory(**name, ignore_cleanup_errors=True) as folder:
        inner = Path(folder) / out.name  # a bag's files are called after their folder
        plain = storage == "json"
        opened = formats.McapWriter.opened(inner) if plain else formats.BagWriter.opened(inner, storage)
        with opened as writer:
            yield writer
        os.replace(inner, out)
