"""A message of a robot's joints, and how logs of them are read and written: by rosbags, and by mcap.

Bags are folders with SQLite or MCAP storage. In MCAP files joint states are in JSON, or as ROS 2 writes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...data.user_warnings import optional_package

ROS_TYPE, TEXT_TYPE = "sensor_msgs/msg/JointState", "std_msgs/msg/String"
FIELDS = ("position", "velocity", "effort")
FORMAT = 8  # of a bag; ROS 2 Jazzy and later read it
JSON = "json"
TITLES = {TEXT_TYPE: "trustgp.Verdict", ROS_TYPE: "sensor_msgs.JointState"}  # of JSON in place of ROS's types
SCHEMAS = {TEXT_TYPE: {"status": {"type": "string"}}, ROS_TYPE: {"name": {"type": "array"}}}


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
            values = [] if said.get(field) is None else said[field]
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


@cache
def typestore() -> Any:
    """The message types of ROS 2."""
    types = needed("rosbags.typesys")
    return types.get_typestore(types.Stores.LATEST)


def read_cdr(data: bytes, time: int, *, where: str) -> JointState:
    """The sensor_msgs/msg/JointState in a message as ROS 2 writes it."""
    try:
        message = typestore().deserialize_cdr(data, ROS_TYPE)
    except Exception as error:
        raise LogError(f"{where}: the message at {time} ns is damaged: {error}") from error
    said = {name: getattr(message, name) for name in ("name", *FIELDS)}
    return JointState.read(time, said, where=where)


class BagReader:
    """The messages of a bag, a folder, in their order; `channels` are as `BagWriter.copy` takes them."""

    def __init__(self, path: Path) -> None:
        self.path, rosbags = path, needed("rosbags.rosbag2")
        try:
            self._reader = rosbags.Reader(path)
            self._reader.open()
        except Exception as error:
            raise LogError(f"{path}: cannot be read as a ROS 2 bag: {error}") from error
        self.channels = list(self._reader.connections)
        self.storage = "mcap" if any(path.glob("*.mcap*")) else "sqlite3"
        self.close = self._reader.close

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
        return read_cdr(data, time, where=str(self.path))


class BagWriter:
    """A new bag, of rosbags' writer; see `BagReader` for what is copied."""

    def __init__(self, writer: Any) -> None:
        self._types, self._writer = typestore(), writer
        self.write = writer.write  # a message as it was: channel, time, bytes

    @classmethod
    @contextmanager
    def opened(cls, path: Path, storage: str) -> Iterator[BagWriter]:
        """In a folder, which must not be there; the storage is "sqlite3" or "mcap"."""
        bags = needed("rosbags.rosbag2")
        with bags.Writer(path, version=FORMAT, storage_plugin=bags.StoragePlugin[storage.upper()]) as writer:
            yield cls(writer)

    def copy(self, channel: Any) -> Any:
        kept = {n: getattr(channel.ext, n) for n in ("serialization_format", "offered_qos_profiles")}
        if channel.msgdef.data and channel.digest:
            kept |= {"msgdef": channel.msgdef.data, "rihs01": channel.digest}
        elif channel.msgtype in self._types.fielddefs:
            kept |= {"typestore": self._types}
        else:  # an old bag that does not describe its own types
            kept |= {"msgdef": "", "rihs01": "RIHS01_" + 64 * "0"}
        return self._writer.add_connection(channel.topic, channel.msgtype, **kept)

    def keep(self, reader: BagReader) -> None:
        """What else is in the log: nothing."""

    def add_topic(self, topic: str, kind: str) -> Any:
        return self._writer.add_connection(topic, kind, typestore=self._types)

    def write_text(self, channel: Any, time: int, text: str) -> None:
        self._put(channel, time, self._types.types[TEXT_TYPE](data=text), TEXT_TYPE)

    def write_state(self, channel: Any, state: JointState) -> None:
        kinds = self._types.types
        stamp = kinds["builtin_interfaces/msg/Time"](sec=state.time // 10**9, nanosec=state.time % 10**9)
        header = kinds["std_msgs/msg/Header"](stamp=stamp, frame_id="")
        numbers = (np.asarray(v, dtype=np.float64) for v in (state.position, state.velocity, state.effort))
        self._put(channel, state.time, kinds[ROS_TYPE](header, list(state.names), *numbers), ROS_TYPE)

    def _put(self, channel: Any, time: int, message: Any, kind: str) -> None:
        self.write(channel, time, bytes(self._types.serialize_cdr(message, kind)))


class McapReader:
    """The messages of a file, in their order; every checksum in it is compared."""

    storage = JSON

    def __init__(self, path: Path) -> None:
        self.path, schemas, found = path, {}, {}
        for record in self.records("Schema", "Channel"):  # of the whole file: a channel may be announced late
            if type(record).__name__ == "Schema":
                schemas[record.id] = record
                continue
            schema = schemas.get(record.schema_id)
            kind = "" if schema is None else schema.name
            kind = ROS_TYPE if record.message_encoding == JSON else kind  # JSON may call its type as it likes
            found[record.id] = SimpleNamespace(**vars(record), msgtype=kind, schema=schema)
        self.channels = list(found.values())

    def close(self) -> None:
        """Nothing is left open between two looks at the file."""

    def messages(self) -> Iterator[tuple[Any, int, Any]]:
        """(channel, time in nanoseconds, the file's record)."""
        channels = {channel.id: channel for channel in self.channels}
        for record in self.records("Message"):
            yield channels[record.channel_id], record.log_time, record

    def state(self, channel: Any, time: int, data: Any) -> JointState:
        """The joint state in a message, in JSON or CDR."""
        if channel.message_encoding != JSON:
            return read_cdr(data.data, time, where=str(self.path))
        try:
            said = json.loads(data.data)
        except ValueError as error:  # neither text nor JSON
            raise LogError(f"{self.path}: the message at {time} ns is damaged: {error}") from error
        if not isinstance(said, dict):
            raise LogError(f"{self.path}: the message at {time} ns is no table of fields.")
        return JointState.read(time, said, where=str(self.path))

    def records(self, *kinds: str) -> Iterator[Any]:
        """Those of some kinds, as mcap has them, such as "Message"."""
        stream = needed("mcap.stream_reader")
        with open(self.path, "rb") as file:
            try:
                records = stream.StreamReader(file, validate_crcs=True).records
                yield from (record for record in records if type(record).__name__ in kinds)
            except Exception as error:
                what = str(error) or type(error).__name__
                raise LogError(f"{self.path}: no MCAP file, or cut short, or damaged: {what}") from error


class McapWriter:
    """A new file, of mcap's writer; see `McapReader` for what is copied."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator[McapWriter]:
        """What is there is written over."""
        module = needed("mcap.writer")
        with open(path, "wb") as file:
            writer = module.Writer(file, compression=module.CompressionType.NONE)
            writer.start(library="trustgp")
            yield cls(writer)
            writer.finish()

    def copy(self, channel: Any) -> int:
        schema, number, encoding = channel.schema, 0, channel.message_encoding
        if schema is not None:
            number = self._writer.register_schema(schema.name, schema.encoding, schema.data)
        return self._writer.register_channel(channel.topic, encoding, number, channel.metadata)

    def write(self, channel: int, time: int, data: Any) -> None:
        """A message as it was."""
        self._writer.add_message(channel, time, data.data, data.publish_time, data.sequence)

    def keep(self, reader: McapReader) -> None:
        """What else is in the log: attachments and metadata."""
        for item in reader.records("Attachment", "Metadata"):
            if type(item).__name__ == "Metadata":
                self._writer.add_metadata(item.name, item.metadata)
            else:
                times = item.create_time, item.log_time
                self._writer.add_attachment(*times, item.name, item.media_type, item.data)

    def add_topic(self, topic: str, kind: str) -> int:
        """A topic of messages in JSON."""
        schema = {"type": "object", "title": TITLES[kind], "properties": SCHEMAS[kind]}
        number = self._writer.register_schema(TITLES[kind], "jsonschema", json.dumps(schema).encode())
        return self._writer.register_channel(topic, JSON, number)

    def write_text(self, channel: int, time: int, text: str) -> None:
        self._writer.add_message(channel, time, text.encode(), time)

    def write_state(self, channel: int, state: JointState) -> None:
        self.write_text(channel, state.time, json.dumps(state.plain()))
