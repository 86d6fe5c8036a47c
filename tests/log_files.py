"""Logs of joint states as drivers write them: ROS 2 bags, and MCAP files with messages in JSON."""

import json

import pytest

rosbags = pytest.importorskip("rosbags.rosbag2", reason='needs rosbags: pip install "trustgp[logs]"')
mcap_writer = pytest.importorskip("mcap.writer", reason='needs mcap: pip install "trustgp[logs]"')
typesys = pytest.importorskip("rosbags.typesys")

TOPIC, KIND = "/joint_states", "sensor_msgs/msg/JointState"
FIELDS = ("position", "velocity", "effort")


def write_json(path, messages, *, schema="Joints", encoding="json"):
    """An MCAP file of messages (time, bytes)."""
    with open(path, "wb") as file:
        writer = mcap_writer.Writer(file)
        writer.start()
        number = writer.register_schema(schema, "jsonschema", b"{}")
        channel = writer.register_channel(TOPIC, encoding, number)
        for time, data in messages:
            writer.add_message(channel, time, data, time)
        writer.finish()
    return path


def _json(state):
    stamp = dict(zip(("sec", "nanosec"), divmod(state.measured, 10**9), strict=True))
    numbers = {f: [None if v != v else v for v in getattr(state, f).tolist()] for f in FIELDS}
    fields = {"header": {"stamp": stamp, "frame_id": ""}, "name": list(state.names), **numbers}
    return json.dumps(fields).encode()


def record(path, states, storage="mcap"):
    """A bag with "sqlite3" or "mcap" storage, or an MCAP file with "json"."""
    if storage == "json":
        return write_json(path, ((state.time, _json(state)) for state in states))
    types = typesys.get_typestore(typesys.Stores.LATEST)
    kinds, plugin = types.types, rosbags.StoragePlugin[storage.upper()]
    with rosbags.Writer(path, version=8, storage_plugin=plugin) as writer:
        connection = writer.add_connection(TOPIC, KIND, typestore=types)
        for state in states:
            stamp = kinds["builtin_interfaces/msg/Time"](*divmod(state.measured, 10**9))
            header = kinds["std_msgs/msg/Header"](stamp, frame_id="")
            message = kinds[KIND](header, list(state.names), *(getattr(state, f) for f in FIELDS))
            writer.write(connection, state.time, types.serialize_cdr(message, KIND))
    return path
