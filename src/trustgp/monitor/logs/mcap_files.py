"""MCAP files: read record by record, every length bounded and every checksum compared; written by mcap.

Joint states are in JSON, or as ROS 2 writes them. Nothing is taken from the summary at the end of a file:
what its index says need not be what the file holds.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from .joint_state import LARGEST, JointState, LogError
from .ros_types import (
    DIAGNOSTICS_TYPE,
    ROS_TYPE,
    TEXT_TYPE,
    definition,
    diagnostics_message,
    needed,
    read_cdr,
)

MAGIC = b"\x89MCAP0\r\n"
MOST = 64 * 2**20  # bytes of a record, and of what a chunk unpacks to
PIECE = 2**20  # bytes at once of what is passed over
HEADER, FOOTER, CHUNK, DATA_END = 0x01, 0x02, 0x06, 0x0F
KINDS = {0x03: "Schema", 0x04: "Channel", 0x05: "Message", 0x09: "Attachment", 0x0C: "Metadata"}
JSON = "json"
TITLES = {TEXT_TYPE: "trustgp.Verdict", ROS_TYPE: "sensor_msgs.JointState"}  # of JSON in place of ROS's types
SCHEMAS = {TEXT_TYPE: {"status": {"type": "string"}}, ROS_TYPE: {"name": {"type": "array"}}}


class _Stream:
    """A file that is read once from its beginning, with the checksum of what was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.left, self.crc = file, os.fstat(file.fileno()).st_size, 0

    def take(self, length: int) -> bytes:
        """So many bytes."""
        if length > self.left:
            raise LogError(f"cut short: {length} bytes are announced, and {self.left} are left")
        if length > MOST:
            raise LogError(f"a record of {length} bytes; at most {MOST} are read")
        data = self._file.read(length)
        self.left -= len(data)
        self.crc = zlib.crc32(data, self.crc)
        if len(data) < length:
            raise LogError("cut short while it was read")
        return data

    def skip(self, length: int) -> None:
        """Past so many bytes."""
        if length > self.left:
            raise LogError(f"cut short: {length} bytes are announced, and {self.left} are left")
        while length > 0:
            length -= len(self.take(min(length, PIECE)))


class _Exact(BytesIO):
    """A record's bytes; asking for more than there are is an error."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if size is None or size < 0 or len(data) < size:
            raise LogError("a record that is shorter than it says")
        return data


def mcap_records(path: Path, *kinds: str) -> Iterator[Any]:
    """The records of some kinds, as mcap has them, such as "Message"; a LogError names the file."""
    try:
        with open(path, "rb") as file:
            yield from _records(_Stream(file), kinds)
    except ImportError:
        raise
    except Exception as error:
        what = str(error) or type(error).__name__
        raise LogError(f"{path}: no MCAP file, or cut short, or damaged: {what}") from error


def _records(stream: _Stream, kinds: tuple[str, ...]) -> Iterator[Any]:
    if stream.take(len(MAGIC)) != MAGIC:
        raise LogError("it does not begin as one")
    ended = False
    while True:
        crc = stream.crc
        code, length = struct.unpack("<BQ", stream.take(9))
        if code == FOOTER:
            stream.skip(length)
            break
        if code == CHUNK and not ended:
            yield from _split(_unpacked(stream.take(length)), kinds)
        elif code == DATA_END and not ended:
            ended, (found,) = True, struct.unpack_from("<I", stream.take(length))
            if found not in (0, crc):
                raise LogError(f"the checksum of its data is {crc:08x}, not {found:08x}")
        elif KINDS.get(code) in kinds and not ended:
            yield _parsed(KINDS[code], stream.take(length))
        else:
            stream.skip(length)
    if not ended or stream.take(len(MAGIC)) != MAGIC or stream.left:
        raise LogError("it does not end as one")


def _unpacked(chunk: bytes) -> memoryview:
    """The records in a chunk; what it says of its size is checked first, and held to while it is unpacked."""
    _, _, size, crc, name = struct.unpack_from("<QQQII", chunk)
    compression = chunk[32 : 32 + name].decode()
    (length,) = struct.unpack_from("<Q", chunk, 32 + name)
    packed = memoryview(chunk)[40 + name : 40 + name + length]
    if len(packed) < length:
        raise LogError("a chunk that is shorter than it says")
    if size > MOST:
        raise LogError(f"a chunk that would unpack to {size} bytes; at most {MOST} are read")
    data = unpack(packed, compression, size)
    if len(data) != size:
        raise LogError(f"a chunk that does not unpack to the {size} bytes it says")
    if crc and zlib.crc32(data) != crc:
        raise LogError("the checksum of a chunk is wrong")
    return data


def unpack(packed: memoryview | bytes, compression: str, most: int) -> memoryview:
    """The bytes that were compressed, or one more than `most` of them."""
    if not compression:
        return memoryview(packed)
    if compression == "zstd":
        reader = needed("zstandard").ZstdDecompressor(max_window_size=MOST).stream_reader(packed)
        return memoryview(reader.read(most + 1))
    if compression == "lz4":
        return memoryview(needed("lz4.frame").LZ4FrameDecompressor().decompress(packed, max_length=most + 1))
    raise LogError(f"chunks are compressed as {compression[:20]!r}; zstd and lz4 can be read")


def _split(chunk: memoryview, kinds: tuple[str, ...]) -> Iterator[Any]:
    """The records of some kinds that a chunk holds."""
    place = 0
    while place < len(chunk):
        code, length = struct.unpack_from("<BQ", chunk, place)
        content, place = chunk[place + 9 : place + 9 + length], place + 9 + length
        if len(content) < length:
            raise LogError("a record that is longer than its chunk")
        if KINDS.get(code) in kinds:
            yield _parsed(KINDS[code], content)


def _parsed(kind: str, content: bytes | memoryview) -> Any:
    """A record, by mcap."""
    stream = needed("mcap.data_stream").ReadDataStream(_Exact(content))
    parse = getattr(needed("mcap.records"), kind).read
    return parse(stream, len(content)) if kind == "Message" else parse(stream)


def mcap_channels(path: Path) -> dict[int, Any]:
    """By number: the channel's record, its schema's or None, and as `msgtype` what it holds."""
    schemas, found = {}, {}
    for record in mcap_records(path, "Schema", "Channel"):  # of the whole file: one may be announced late
        known = schemas if type(record).__name__ == "Schema" else found
        if known.setdefault(record.id, record) != record:
            raise LogError(
                f"{path}: damaged, two {type(record).__name__.lower()}s have the number {record.id}."
            )
    for number, record in found.items():
        schema = schemas.get(record.schema_id)
        kind = "" if schema is None else schema.name
        kind = ROS_TYPE if record.message_encoding == JSON else kind  # JSON may call its type as it likes
        found[number] = SimpleNamespace(**vars(record), msgtype=kind, schema=schema)
    return found


def mcap_messages(path: Path, channels: dict[int, Any]) -> Iterator[tuple[Any, int, Any]]:
    """(channel, time in nanoseconds, the file's record), in the order of the file."""
    for record in mcap_records(path, "Message"):
        if record.channel_id not in channels:
            raise LogError(f"{path}: damaged, a message is of channel {record.channel_id}, which is unknown.")
        yield channels[record.channel_id], record.log_time, record


class McapReader:
    """The messages of a file, in their order."""

    storage = JSON

    def __init__(self, path: Path) -> None:
        self.path, self._channels = path, mcap_channels(path)
        self.channels = list(self._channels.values())

    def close(self) -> None:
        """Nothing is left open between two looks at the file."""

    def messages(self) -> Iterator[tuple[Any, int, Any]]:
        """(channel, time in nanoseconds, the file's record)."""
        return mcap_messages(self.path, self._channels)

    def state(self, channel: Any, time: int, data: Any) -> JointState:
        """The joint state in a message, in JSON or CDR."""
        read = JointState.read_json if channel.message_encoding == JSON else _read_cdr
        return read(time, checked(data.data, time, self.path), where=str(self.path))


def _read_cdr(time: int, data: bytes, *, where: str) -> JointState:
    return read_cdr(data, time, where=where)


def checked(data: Any, time: int, path: Path) -> bytes:
    """The bytes of a message, unless they cannot be those of a joint state."""
    if not isinstance(data, bytes):
        raise LogError(f"{path}: the message at {time} ns is damaged: {type(data).__name__}, not bytes.")
    if len(data) > LARGEST:
        raise LogError(f"{path}: the message at {time} ns has {len(data)} bytes; joint states: {LARGEST}.")
    return data


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
        for item in mcap_records(reader.path, "Attachment", "Metadata"):
            if type(item).__name__ == "Metadata":
                self._writer.add_metadata(item.name, item.metadata)
            else:
                times = item.create_time, item.log_time
                self._writer.add_attachment(*times, item.name, item.media_type, item.data)

    def add_topic(self, topic: str, kind: str) -> int:
        """A topic of messages in JSON; diagnostics are as ROS 2 writes them, for the tools that show them."""
        if kind == DIAGNOSTICS_TYPE:
            number = self._writer.register_schema(kind, "ros2msg", definition(kind).encode())
            return self._writer.register_channel(topic, "cdr", number)
        schema = {"type": "object", "title": TITLES[kind], "properties": SCHEMAS[kind]}
        number = self._writer.register_schema(TITLES[kind], "jsonschema", json.dumps(schema).encode())
        return self._writer.register_channel(topic, JSON, number)

    def write_text(self, channel: int, time: int, text: str) -> None:
        self._writer.add_message(channel, time, text.encode(), time)

    def write_diagnostics(self, channel: int, time: int, verdict: dict[str, Any], name: str) -> None:
        self._writer.add_message(channel, time, diagnostics_message(verdict, time, name), time)

    def write_state(self, channel: int, state: JointState) -> None:
        self.write_text(channel, state.time, json.dumps(state.plain()))
