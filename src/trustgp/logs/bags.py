"""ROS 2 bags (folders with SQLite or MCAP files), opened by rosbags, with bounds on the memory."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePath
from typing import Any

from .joint_state import JointState, LogError
from .mcap_files import MAX_RECORD_BYTES, McapReader, checked, unpack
from .ros_types import needed, read_cdr

DESCRIPTION, MAX_DESCRIPTION_BYTES = "metadata.yaml", 2**20
LONGEST = "SELECT max(length(data)) FROM messages"
MESSAGES = "SELECT name, timestamp, data FROM messages m LEFT JOIN topics t ON t.id = topic_id ORDER BY m.id"


class BagReader:
    """Reader of the messages of a bag, in the order of its files; `channels` are rosbags' connections."""

    def __init__(self, path: Path) -> None:
        self.path, bags = path, needed("rosbags.rosbag2")
        try:
            self._mcap = _check_sizes(path)
            self._reader = bags.Reader(path)
            self._reader.open()
        except Exception as error:
            raise LogError(f"{path}: cannot be read as a ROS 2 bag: {error}") from error
        self.close, self.channels = self._reader.close, list(self._reader.connections)
        self._channels = {channel.topic: channel for channel in self.channels}
        if len(self._channels) < len(self.channels):
            self.close()
            raise LogError(f"{path}: {DESCRIPTION} names a topic twice.")

    def messages(self) -> Iterator[tuple[Any, int, bytes]]:
        """Messages as (channel, time in nanoseconds, bytes); LogError if the bag announces another number."""
        read, announced = 0, self._reader.message_count
        packed = "zstd" if self._reader.compression_mode == "message" else ""
        try:
            for file in self._reader.storage.storages:
                for topic, time, data in self._content(Path(file.path)):
                    read += 1
                    if topic not in self._channels or type(time) is not int:
                        raise LogError(f"a message has the time {time}, and the topic {topic}")
                    data = unpack(data, packed, MAX_RECORD_BYTES) if packed else data
                    yield self._channels[topic], time, data
        except Exception as error:
            raise LogError(f"{self.path}: damaged after {read} of {announced} messages: {error}") from error
        if read != announced:
            raise LogError(f"{self.path}: truncated or damaged, it holds {read} of {announced} messages.")

    def _content(self, file: Path) -> Iterator[tuple[str, int, Any]]:
        """Messages of a file as (topic, time, data), in their order."""
        if file in self._mcap:
            for channel, time, record in self._mcap[file].messages():
                yield channel.topic, time, record.data
            return
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
            base.execute("PRAGMA trusted_schema = OFF")
            if sys.version_info >= (3, 11):
                base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_RECORD_BYTES)
            elif (longest := base.execute(LONGEST).fetchone()[0] or 0) > MAX_RECORD_BYTES:
                raise LogError(f"a message has {longest} bytes; at most {MAX_RECORD_BYTES} are read")
            count, page = (base.execute(f"PRAGMA page_{name}").fetchone()[0] for name in ("count", "size"))
            if count * page > (size := file.stat().st_size):
                raise LogError(f"{file.name} is truncated: it has {size} of {count * page} bytes")
            yield from base.execute(MESSAGES)

    def state(self, channel: Any, time: int, data: Any) -> JointState:
        return read_cdr(time, checked(data, time, self.path), where=str(self.path))


def _check_sizes(path: Path) -> dict[Path, McapReader]:
    """Readers of the MCAP files, by path; sizes are checked first, as rosbags unpacks without a bound."""
    described = path / DESCRIPTION
    if (size := described.stat().st_size) > MAX_DESCRIPTION_BYTES:
        raise LogError(f"{DESCRIPTION} has {size} bytes; at most {MAX_DESCRIPTION_BYTES} are read")
    text = described.read_text(encoding="utf-8")
    fields = needed("ruamel.yaml").YAML(typ="safe").load(text)["rosbag2_bagfile_information"]
    if str(fields.get("compression_mode")).lower() == "file":
        raise LogError("its files are compressed as a whole; unpack them with zstd -d and reindex the bag")
    if fields["storage_identifier"] != "mcap":
        return {}
    files = [path / PurePath(name).name for name in fields["relative_file_paths"]]
    return {file: McapReader(file) for file in files}
