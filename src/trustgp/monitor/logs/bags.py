"""ROS 2 bags: folders with SQLite or MCAP storage, read and written by rosbags."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .joints import FIELDS, ROS_TYPE, JointState, LogError, needed

TEXT_TYPE = "std_msgs/msg/String"
FORMAT = 8  # of the bag; ROS 2 Jazzy and later read it


def typestore() -> Any:
    """The message types of ROS 2."""
    types = needed("rosbags.typesys")
    return types.get_typestore(types.Stores.LATEST)


def read_cdr(types: Any, data: bytes, time: int, *, where: str) -> JointState:
    """The sensor_msgs/msg/JointState in a message as ROS 2 writes it."""
    try:
        message = types.deserialize_cdr(data, ROS_TYPE)
    except Exception as error:
        raise LogError(f"{where}: the message at {time} ns is damaged: {error}") from error
    said = {name: getattr(message, name) for name in ("name", *FIELDS)}
    return JointState.read(time, said, where=where)


class BagReader:
    """The messages of a bag, in their order.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._types = typestore()
        self._rosbags = needed("rosbags.rosbag2")
        self._reader: Any = None

    def __enter__(self) -> BagReader:
        try:
            self._reader = self._rosbags.Reader(self.path)
            self._reader.open()
        except Exception as error:
            raise LogError(f"{self.path}: cannot be read as a ROS 2 bag: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def topics(self) -> dict[str, str]:
        """Name and type of each topic."""
        return {connection.topic: connection.msgtype for connection in self._reader.connections}

    @property
    def channels(self) -> list[Any]:
        """As `BagWriter.copy` takes them."""
        return list(self._reader.connections)

    def messages(self) -> Iterator[tuple[Any, int, bytes]]:
        """(channel, time in nanoseconds, bytes); fewer than the bag announces are an error."""
        read, wanted = 0, self._reader.message_count
        try:
            for connection, time, data in self._reader.messages():
                read += 1
                yield connection, time, data
        except Exception as error:
            raise LogError(f"{self.path}: damaged after {read} of {wanted} messages: {error}") from error
        if read < wanted:
            raise LogError(f"{self.path}: cut short, it holds {read} of {wanted} messages.")

    def state(self, channel: Any, time: int, data: bytes) -> JointState:
        """The joint state in a message."""
        return read_cdr(self._types, data, time, where=str(self.path))

    @property
    def storage(self) -> str:
        """ "sqlite3" or "mcap"."""
        return "mcap" if next(self.path.glob("*.mcap*"), None) is not None else "sqlite3"


class BagWriter:
    """A new bag; see `BagReader` for what is copied.

    Args:
        path: The folder, which must not be there.
        storage: "sqlite3" or "mcap".
    """

    def __init__(self, path: Path, storage: str) -> None:
        bags = needed("rosbags.rosbag2")
        self._types = typestore()
        self._writer = bags.Writer(path, version=FORMAT, storage_plugin=bags.StoragePlugin[storage.upper()])

    @contextmanager
    def opened(self) -> Iterator[BagWriter]:
        """Open for writing."""
        with self._writer:
            yield self

    def copy(self, channel: Any) -> Any:
        """The same topic, here."""
        kept = {
            "serialization_format": channel.ext.serialization_format,
            "offered_qos_profiles": channel.ext.offered_qos_profiles,
        }
        if channel.msgdef.data and channel.digest:
            kept |= {"msgdef": channel.msgdef.data, "rihs01": channel.digest}
        elif channel.msgtype in self._types.fielddefs:
            kept |= {"typestore": self._types}
        else:  # an old bag that does not describe its own types
            kept |= {"msgdef": "", "rihs01": "RIHS01_" + 64 * "0"}
        return self._writer.add_connection(channel.topic, channel.msgtype, **kept)

    def write(self, channel: Any, time: int, data: bytes) -> None:
        """A message as it was."""
        self._writer.write(channel, time, data)

    def keep(self, reader: BagReader) -> None:
        """What else is in the log: nothing."""

    def text_topic(self, topic: str) -> Any:
        """A topic of std_msgs/msg/String, for JSON."""
        return self._writer.add_connection(topic, TEXT_TYPE, typestore=self._types)

    def write_text(self, channel: Any, time: int, text: str) -> None:
        """One text."""
        self.write(channel, time, self._cdr(self._types.types[TEXT_TYPE](data=text), TEXT_TYPE))

    def state_topic(self, topic: str) -> Any:
        """A topic of joint states."""
        return self._writer.add_connection(topic, ROS_TYPE, typestore=self._types)

    def write_state(self, channel: Any, state: JointState) -> None:
        """One joint state."""
        kinds = self._types.types
        stamp = kinds["builtin_interfaces/msg/Time"](sec=state.time // 10**9, nanosec=state.time % 10**9)
        header = kinds["std_msgs/msg/Header"](stamp=stamp, frame_id="")
        numbers = (np.asarray(v, dtype=np.float64) for v in (state.position, state.velocity, state.effort))
        message = kinds[ROS_TYPE](header, list(state.names), *numbers)
        self.write(channel, state.time, self._cdr(message, ROS_TYPE))

    def _cdr(self, message: Any, kind: str) -> bytes:
        return bytes(self._types.serialize_cdr(message, kind))
