"""MCAP files: joint states in JSON, or as ROS 2 writes them, read and written by mcap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .bags import read_cdr, typestore
from .joints import ROS_TYPE, JointState, LogError, needed

JSON = "json"
VERDICT = {"type": "object", "title": "trustgp.Verdict", "properties": {"status": {"type": "string"}}}
STATE = {"type": "object", "title": "sensor_msgs.JointState", "properties": {"name": {"type": "array"}}}


class McapReader:
    """The messages of a file, in their order; every checksum in it is compared.

    Args:
        path: The file.
    """

    storage = JSON

    def __init__(self, path: Path) -> None:
        self.path = path
        self._types: Any = None
        self.channels: list[Any] = []

    def __enter__(self) -> McapReader:
        self.channels = list(self._channels().values())
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def topics(self) -> dict[str, str]:
        """Name and type of each topic; JSON may call its type as it likes."""
        kinds = {c.topic: c.schema.name if c.schema is not None else "" for c in self.channels}
        encodings = {c.topic: c.encoding for c in self.channels}
        return {topic: ROS_TYPE if encodings[topic] == JSON else kind for topic, kind in kinds.items()}

    def messages(self) -> Iterator[tuple[Any, int, Any]]:
        """(channel, time in nanoseconds, the file's record)."""
        channels = {channel.id: channel for channel in self.channels}
        for record in self._records():
            if type(record).__name__ == "Message":
                yield channels[record.channel_id], record.log_time, record

    def others(self) -> Iterator[Any]:
        """Attachments and metadata."""
        return (item for item in self._records() if type(item).__name__ in ("Attachment", "Metadata"))

    def state(self, channel: Any, time: int, data: Any) -> JointState:
        """The joint state in a message, in JSON or CDR."""
        if channel.encoding != JSON:
            self._types = self._types or typestore()
            return read_cdr(self._types, data.data, time, where=str(self.path))
        try:
            said = json.loads(data.data)
        except ValueError as error:  # neither text nor JSON
            raise LogError(f"{self.path}: the message at {time} ns is damaged: {error}") from error
        if not isinstance(said, dict):
            raise LogError(f"{self.path}: the message at {time} ns is no table of fields.")
        return JointState.read(time, said, where=str(self.path))

    def _channels(self) -> dict[int, Any]:
        """Of the whole file: a channel may be announced late."""
        schemas, found = {0: None}, {}
        for record in self._records():
            if type(record).__name__ == "Schema":
                schemas[record.id] = record
            elif type(record).__name__ == "Channel":
                found[record.id] = SimpleNamespace(
                    id=record.id,
                    topic=record.topic,
                    encoding=record.message_encoding,
                    schema=schemas.get(record.schema_id),
                    metadata=record.metadata,
                )
        return found

    def _records(self) -> Iterator[Any]:
        stream = needed("mcap.stream_reader")
        with open(self.path, "rb") as file:
            try:
                yield from stream.StreamReader(file, validate_crcs=True).records
            except Exception as error:
                what = str(error) or type(error).__name__
                raise LogError(f"{self.path}: no MCAP file, or cut short, or damaged: {what}") from error


class McapWriter:
    """A new file; see `McapReader` for what is copied.

    Args:
        path: Where; what is there is written over.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._module = needed("mcap.writer")
        self._writer: Any = None

    @contextmanager
    def opened(self) -> Iterator[McapWriter]:
        """Open for writing."""
        with open(self._path, "wb") as file:
            self._writer = self._module.Writer(file, compression=self._module.CompressionType.NONE)
            self._writer.start(library="trustgp")
            yield self
            self._writer.finish()

    def copy(self, channel: Any) -> int:
        """The same topic, here."""
        schema = channel.schema
        number = 0
        if schema is not None:
            number = self._writer.register_schema(schema.name, schema.encoding, schema.data)
        return self._writer.register_channel(channel.topic, channel.encoding, number, channel.metadata)

    def write(self, channel: int, time: int, data: Any) -> None:
        """A message as it was."""
        self._writer.add_message(channel, time, data.data, data.publish_time, data.sequence)

    def keep(self, reader: McapReader) -> None:
        """What else is in the log: attachments and metadata."""
        for item in reader.others():
            if type(item).__name__ == "Metadata":
                self._writer.add_metadata(item.name, item.metadata)
            else:
                self._writer.add_attachment(
                    item.create_time, item.log_time, item.name, item.media_type, item.data
                )

    def text_topic(self, topic: str) -> int:
        """A topic of verdicts in JSON."""
        return self._json_topic(topic, "trustgp.Verdict", VERDICT)

    def write_text(self, channel: int, time: int, text: str) -> None:
        """One text."""
        self._writer.add_message(channel, time, text.encode(), time)

    def state_topic(self, topic: str) -> int:
        """A topic of joint states in JSON."""
        return self._json_topic(topic, "sensor_msgs.JointState", STATE)

    def write_state(self, channel: int, state: JointState) -> None:
        """One joint state."""
        self.write_text(channel, state.time, json.dumps(state.plain()))

    def _json_topic(self, topic: str, name: str, schema: dict[str, Any]) -> int:
        number = self._writer.register_schema(name, "jsonschema", json.dumps(schema).encode())
        return self._writer.register_channel(topic, JSON, number)
