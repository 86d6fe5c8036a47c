"""MCAP files, read by mcap; the size of each record and of each unpacked chunk is bounded.

Joint states are in JSON, or in CDR as ROS 2 writes them. The summary at the end of a file is not used: its
index may differ from the data.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from .joint_state import MAX_STATE_BYTES, JointState, LogError
from .ros_types import ROS_TYPE, needed, read_cdr

MAX_RECORD_BYTES = 64 * 2**20  # of a record, and of an unpacked chunk
JSON = "json"


class _Source:
    """A binary file that returns exactly as many bytes as requested, and refuses before it allocates."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self.left = file, size

    def read(self, size: int) -> bytes:
        if not 0 <= size <= min(self.left, MAX_RECORD_BYTES):
            raise LogError(f"a record needs {size} bytes; {self.left} are left, at most {MAX_RECORD_BYTES}")
        self.left -= size
        return self._file.read(size)


def mcap_records(path: Path, *kinds: str) -> Iterator[Any]:
    """The records of these kinds in mcap's classes, such as "Message"; a LogError names the file."""
    try:
        with open(path, "rb") as file:
            yield from _records(_Source(file, os.fstat(file.fileno()).st_size), kinds)
    except ImportError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise LogError(f"{path}: not an MCAP file, or truncated, or damaged: {reason}") from error


def _records(source: _Source, kinds: tuple[str, ...], *, chunk: bool = False) -> Iterator[Any]:
    """The records of a file, or of a chunk of one."""
    checks = {"validate_crcs": True, "record_size_limit": MAX_RECORD_BYTES}
    checks["emit_chunks"] = True  # mcap would unpack chunks without a bound
    reader = needed("mcap.stream_reader").StreamReader(source, skip_magic=chunk, **checks)
    records, ended = reader.records, False
    while not (chunk and source.left == 0) and (record := next(records, None)) is not None:
        kind = type(record).__name__
        ended |= kind == "DataEnd"
        if chunk and kind not in ("Schema", "Channel", "Message"):
            raise LogError(f"a chunk holds a {kind} record")
        if kind == "Chunk" and not ended:
            yield from _records(_unpacked(record), kinds, chunk=True)
        elif kind in kinds and not ended:
            yield record
    if source.left or not (ended or chunk):
        raise LogError("its end is missing, or data follow it")


def _unpacked(chunk: Any) -> _Source:
    """The bytes of a chunk, whose size and checksum must be the announced ones."""
    if (size := chunk.uncompressed_size) > MAX_RECORD_BYTES:
        raise LogError(f"a chunk would unpack to {size} bytes; at most {MAX_RECORD_BYTES} are read")
    data = unpack(chunk.data, chunk.compression, size)
    if len(data) != size:
        raise LogError(f"a chunk does not unpack to the announced {size} bytes")
    if chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc:
        raise LogError("the checksum of a chunk is wrong")
    return _Source(BytesIO(data), size)


def unpack(packed: bytes, compression: str, limit: int) -> bytes:
    """Uncompressed bytes; LogError if there are more than `limit`."""
    if compression == "zstd":
        decompressor = needed("zstandard").ZstdDecompressor(max_window_size=MAX_RECORD_BYTES)
        data = decompressor.stream_reader(packed).read(limit + 1)
    elif compression == "lz4":
        data = needed("lz4.frame").LZ4FrameDecompressor().decompress(packed, max_length=limit + 1)
    elif compression:
        raise LogError(f"the compression {compression[:20]!r} is not supported; zstd and lz4 are")
    else:
        data = packed
    if len(data) > limit:
        raise LogError(f"compressed data unpack to more than {limit} bytes")
    return data


class McapReader:
    """Reader of the messages of an MCAP file, in their order."""

    def __init__(self, path: Path) -> None:
        self.path, schemas, channels = path, {}, {}
        for record in mcap_records(path, "Schema", "Channel"):  # of the whole file: one may come late
            kind = type(record).__name__
            table = schemas if kind == "Schema" else channels
            if table.setdefault(record.id, record) != record:
                raise LogError(f"{path}: damaged, two {kind.lower()}s have the number {record.id}.")
        for number, record in channels.items():
            schema = getattr(schemas.get(record.schema_id), "name", "")
            kind = ROS_TYPE if record.message_encoding == JSON else schema  # JSON: a schema may have any name
            channels[number] = SimpleNamespace(**vars(record), msgtype=kind)
        self._channels, self.channels = channels, list(channels.values())

    def messages(self) -> Iterator[tuple[Any, int, Any]]:
        """Messages as (channel, time in nanoseconds, record), in the order of the file."""
        for record in mcap_records(self.path, "Message"):
            if record.channel_id not in self._channels:
                missing = f"channel {record.channel_id}, which is missing"
                raise LogError(f"{self.path}: damaged, a message names {missing}.")
            yield self._channels[record.channel_id], record.log_time, record

    def state(self, channel: Any, time: int, data: Any) -> JointState:
        """The joint state in a message, in JSON or CDR."""
        read = JointState.read_json if channel.message_encoding == JSON else read_cdr
        return read(time, checked(data.data, time, self.path), where=str(self.path))


def checked(data: Any, time: int, path: Path) -> bytes:
    """Bytes of a message; LogError if they cannot be those of a joint state."""
    if not isinstance(data, bytes):
        raise LogError(f"{path}: the message at {time} ns is damaged: {type(data).__name__}, not bytes.")
    if len(data) > MAX_STATE_BYTES:
        raise LogError(f"{path}: the message at {time} ns has {len(data)} bytes; at most {MAX_STATE_BYTES}.")
    return data
