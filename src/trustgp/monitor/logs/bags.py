"""ROS 2 bags, folders with SQLite or MCAP files: read in bounded memory, written by rosbags."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

from .joint_state import JointState, LogError
from .mcap_files import MOST, PIECE, checked, mcap_channels, mcap_messages, unpack
from .ros_types import (
    diagnostics_message,
    needed,
    read_cdr,
    state_message,
    text_message,
    typestore,
)

FORMAT = 8  # of a new bag; ROS 2 Jazzy and later read it
NEWEST = 9  # that can be read
DESCRIPTION, DESCRIBED = "metadata.yaml", 2**20  # and how many bytes it may have
RATIO = 200  # to which a file may be compressed as a whole
TABLES = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('messages', 'topics')"


class _SqliteFile:
    """The messages in one file of a bag, in the order in which they were written."""

    def __init__(self, path: Path) -> None:
        where = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        self._base = sqlite3.connect(where, uri=True)
        self.close = self._base.close
        self._base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST)
        self._base.execute("PRAGMA trusted_schema = OFF")
        pages, size = (
            self._base.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
        )
        if pages * size > path.stat().st_size:
            raise LogError(f"{path.name} is cut short: it has {path.stat().st_size} of {pages * size} bytes")
        if self._base.execute(TABLES).fetchone() != (2,):
            raise LogError(f"{path.name} lacks its tables")
        self.topics = dict(self._base.execute("SELECT id, name FROM topics"))
        try:
            query = "SELECT topic_type, encoded_message_definition FROM message_definitions"
            self.definitions = dict(self._base.execute(query))
        except sqlite3.OperationalError:  # before ROS 2 Iron
            self.definitions = {}

    def messages(self) -> Iterator[tuple[str, int, Any]]:
        """(topic, time in nanoseconds, what should be bytes)."""
        for topic, time, data in self._base.execute(
            "SELECT topic_id, timestamp, data FROM messages ORDER BY id"
        ):
            if topic not in self.topics or type(time) is not int:
                raise LogError("a message without a topic or a time")
            yield self.topics[topic], time, data


class _McapFile:
    """The same of an MCAP file."""

    def __init__(self, path: Path) -> None:
        self._path, self._channels = path, mcap_channels(path)
        each = [channel for channel in self._channels.values() if channel.schema is not None]
        self.definitions = {c.schema.name: c.schema.data.decode(errors="replace") for c in each}

    def close(self) -> None:
        """Nothing is left open between two looks at the file."""

    def messages(self) -> Iterator[tuple[str, int, Any]]:
        for channel, time, record in mcap_messages(self._path, self._channels):
            yield channel.topic, time, record.data


FILES = {"sqlite3": _SqliteFile, "mcap": _McapFile}


class BagReader:
    """The messages of a bag, a folder, in their order; `channels` are as `BagWriter.copy` takes them."""

    def __init__(self, path: Path) -> None:
        self.path, self._stack = path, ExitStack()
        self.close = self._stack.close
        needed("rosbags.rosbag2")
        try:
            self._open()
        except Exception as error:
            self.close()
            raise LogError(f"{path}: cannot be read as a ROS 2 bag: {error}") from error

    def _open(self) -> None:
        said = _description(self.path / DESCRIPTION)
        self.storage, self._wanted = said["storage_identifier"], int(said["message_count"])
        self._packed = str(said.get("compression_mode") or "none").lower()
        if int(said["version"]) > NEWEST:
            raise LogError(f"its version is {said['version']}; those up to {NEWEST} can be read")
        if self.storage not in FILES:
            raise LogError(f"its storage is {self.storage!r}; {' and '.join(FILES)} can be read")
        if self._packed not in ("none", "message", "file"):
            raise LogError(f"its compression mode is {self._packed!r}; message and file can be read")
        if self._packed != "none" and said.get("compression_format") != "zstd":
            raise LogError(f"its compression is {said.get('compression_format')!r}; zstd can be read")
        names = [
            PurePath(name).name for name in said["relative_file_paths"]
        ]  # in this folder, wherever it was
        self._files = []
        for file in [self.path / name for name in names]:
            self._files.append(FILES[self.storage](self._whole(file) if self._packed == "file" else file))
            self._stack.callback(self._files[-1].close)
        definitions = {kind: text for file in self._files for kind, text in file.definitions.items()}
        topics = [topic["topic_metadata"] for topic in said["topics_with_message_count"]]
        self.channels = [_channel(number, topic, definitions) for number, topic in enumerate(topics)]
        self._channels = {channel.topic: channel for channel in self.channels}
        if len(self._channels) < len(self.channels):
            raise LogError(f"{DESCRIPTION} names a topic twice")

    def _whole(self, file: Path) -> Path:
        """A file that was compressed as a whole, unpacked beside the temporary files of this machine."""
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        left = RATIO * file.stat().st_size + PIECE
        with open(file, "rb") as packed, open(folder / file.stem, "wb") as out:
            reader = needed("zstandard").ZstdDecompressor(max_window_size=MOST).stream_reader(packed)
            while piece := reader.read(PIECE):
                left -= out.write(piece)
                if left < 0:
                    raise LogError(
                        f"{file.name} unpacks to more than {RATIO} times its size: zstd -d does that"
                    )
        return folder / file.stem

    def messages(self) -> Iterator[tuple[Any, int, bytes]]:
        """(channel, time in nanoseconds, bytes); another number than the bag announces is an error."""
        read, wanted = 0, self._wanted
        try:
            for topic, time, data in (one for file in self._files for one in file.messages()):
                read += 1
                channel = self._channels.get(topic)
                if channel is None:
                    raise LogError(f"{DESCRIPTION} lacks the topic {topic}")
                yield channel, time, self._message(data)
        except Exception as error:
            raise LogError(f"{self.path}: damaged after {read} of {wanted} messages: {error}") from error
        if read != wanted:
            raise LogError(f"{self.path}: cut short or damaged, it holds {read} of {wanted} messages.")

    def _message(self, data: Any) -> Any:
        """A message as it was before it was compressed alone."""
        if self._packed != "message":
            return data
        found = unpack(data, "zstd", MOST)
        if len(found) > MOST:
            raise LogError(f"a message that would unpack to more than {MOST} bytes")
        return bytes(found)

    def state(self, channel: Any, time: int, data: Any) -> JointState:
        return read_cdr(checked(data, time, self.path), time, where=str(self.path))


def _description(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise LogError(f"there is no {DESCRIPTION} in it")
    if path.stat().st_size > DESCRIBED:
        raise LogError(f"{DESCRIPTION} has {path.stat().st_size} bytes; at most {DESCRIBED} are read")
    said = needed("ruamel.yaml").YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    return said["rosbag2_bagfile_information"]


def _channel(number: int, topic: dict[str, Any], definitions: dict[str, str]) -> Any:
    """A topic of a bag's description, with the definition of its type, if the bag has it."""
    if topic["serialization_format"] != "cdr":
        raise LogError(f"topic {topic['name']} is written as {topic['serialization_format']}, not as cdr")
    parse = needed("rosbags.rosbag2.metadata").parse_qos
    return SimpleNamespace(
        id=number,
        topic=str(topic["name"]),
        msgtype=str(topic["type"]),
        definition=definitions.get(topic["type"], ""),
        digest=str(topic.get("type_description_hash") or ""),
        qos=parse(topic.get("offered_qos_profiles") or []),
    )


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
        kept: dict[str, Any] = {"offered_qos_profiles": channel.qos}
        if channel.definition and channel.digest:
            kept |= {"msgdef": channel.definition, "rihs01": channel.digest}
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
        self.write(channel, time, text_message(text))

    def write_diagnostics(self, channel: Any, time: int, verdict: dict[str, Any], name: str) -> None:
        self.write(channel, time, diagnostics_message(verdict, time, name))

    def write_state(self, channel: Any, state: JointState) -> None:
        self.write(channel, state.time, state_message(state))
