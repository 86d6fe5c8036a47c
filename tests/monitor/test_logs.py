"""Joint states in ROS 2 bags and MCAP files: read, written, annotated, and refused when wrong."""

import json
import sys

import numpy as np
import pytest
from many import each

from trustgp import logs

rosbags = pytest.importorskip("rosbags.rosbag2", reason='needs rosbags: pip install "trustgp[logs]"')
mcap_reader = pytest.importorskip("mcap.reader", reason='needs mcap: pip install "trustgp[logs]"')
mcap_writer = pytest.importorskip("mcap.writer")
typesys = pytest.importorskip("rosbags.typesys")

NAMES = ("elbow", "base", "wrist")
START = 10**18


def states(count=20, *, names=NAMES, effort=True, nan_at=None):
    draw = np.random.default_rng(0)
    for number in range(count):
        position, velocity, torque = draw.random((3, len(names)))
        if number == nan_at:
            position[1] = np.nan
        yield logs.JointState(START + number, names, position, velocity, torque if effort else torque[:0])


def path_of(folder, storage, name="log"):
    return folder / (f"{name}.mcap" if storage == "json" else name)


@pytest.fixture(params=["sqlite3", "mcap", "json"])
def storage(request):
    return request.param


@pytest.fixture
def log(tmp_path, storage):
    path = path_of(tmp_path, storage)
    logs.record(path, states(nan_at=5), storage=storage)
    return path


def assert_recorded(path, expected):
    for state, wanted in zip(logs.joint_states(path), expected, strict=True):
        assert (state.time, state.stamp, state.names) == (wanted.time, wanted.time, wanted.names)
        for field in ("position", "velocity", "effort"):
            np.testing.assert_array_equal(getattr(state, field), getattr(wanted, field))


def test_recorded_states_are_read_to_the_bit_and_joints_in_the_requested_order(log):
    assert_recorded(log, states(nan_at=5))
    order = ("base", "wrist", "elbow")
    for state, wanted in zip(logs.joint_states(log, joints=order), states(), strict=True):
        assert state.names == order
        np.testing.assert_array_equal(state.effort, wanted.effort[[1, 2, 0]])
    assert len(list(logs.joint_states(log, joints=["wrist"]))) == 20


def messages_of(path, topic, kind):
    """(time, bytes) of a topic of this type, read by none of our code."""
    if path.is_dir():
        with rosbags.Reader(path) as reader:
            wanted = [c for c in reader.connections if c.topic == topic]
            assert [c.msgtype for c in wanted] == [kind]
            return [(time, data) for _, time, data in reader.messages(wanted)]
    with open(path, "rb") as file:
        messages = list(mcap_reader.make_reader(file, validate_crcs=True).iter_messages(topics=[topic]))
    if kind.startswith("diagnostic"):
        assert {(s.name, s.encoding, c.message_encoding) for s, c, _ in messages} == {
            (kind, "ros2msg", "cdr")
        }
    return [(message.log_time, message.data) for *_, message in messages]


def test_the_copy_has_every_message_a_verdict_for_each_and_diagnostics(log, tmp_path, storage):
    out = path_of(tmp_path, storage, "annotated")
    kinds = ["ok", "uncertain", "novel", "invalid input", "what"]

    def judge(state):
        number = state.time - START
        reason = "NaN" * (number == 3)
        return {"status": kinds[number % 5], "frame": number, "std": [0.5, None], "reason": reason}

    assert logs.annotate(log, out, judge, diagnostics="/diagnostics") == 20
    assert_recorded(out, states(nan_at=5))
    types, array = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE), "diagnostic_msgs/msg/DiagnosticArray"
    verdicts = messages_of(out, "/trustgp/verdict", "std_msgs/msg/String")
    diagnostics = messages_of(out, "/diagnostics", array)
    assert len(verdicts) == len(diagnostics) == 20
    for number, state in enumerate(states()):
        time, data = verdicts[number]
        text = types.deserialize_cdr(data, "std_msgs/msg/String").data if out.is_dir() else data
        assert (time, json.loads(text)) == (state.time, judge(state))
        time, data = diagnostics[number]
        message = types.deserialize_cdr(data, array)
        (status,) = message.status
        assert time == state.time == message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        assert status.level == (status.OK, status.WARN, status.ERROR, status.ERROR, status.STALE)[number % 5]
        assert status.message == ("invalid input: NaN" if number == 3 else kinds[number % 5])
        assert status.name == "trustgp/verdict"
        values = {pair.key: json.loads(pair.value) for pair in status.values}
        assert values == {"frame": number, "std": [0.5, None]}
    for topics in ({}, {"verdicts": "/other", "diagnostics": "/diagnostics"}):
        with pytest.raises(logs.LogError, match="already; choose another name"):
            logs.annotate(out, tmp_path / "again", judge, **topics)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([log.name, out.name])


def read(path, **options):
    return list(logs.joint_states(path, **options))


def test_wrong_requests_are_refused(log, tmp_path, storage):
    without = path_of(tmp_path, storage, "without")
    logs.record(without, states(effort=False), storage=storage)
    for call, error, match in [
        (lambda: logs.record(log, states(), storage=storage), FileExistsError, "exists already"),
        (lambda: logs.annotate(log, log, lambda state: {}), FileExistsError, "exists already"),
        (lambda: read(log, topic="/arm"), logs.LogError, "no topic /arm; there are: /joint_states"),
        (lambda: read(log, joints=["base", "knee"]), logs.LogError, "lacks the joints knee; it has elbow"),
        (lambda: read(log, joints=["knee"]), logs.LogError, "with the joints knee; its joints are base"),
        (lambda: read(without), logs.LogError, "effort is empty"),
        (lambda: read(log, needs=["torque"]), ValueError, "torque"),
    ]:
        with pytest.raises(error, match=match):
            call()
    states_read = read(without, needs=["position", "velocity"], joints=["base"])
    assert [len(state.effort) for state in states_read] == [0] * 20


def test_messages_of_other_joints_on_the_topic_are_skipped(tmp_path, storage):
    path = path_of(tmp_path, storage)
    mixed = [state for pair in zip(states(), states(names=("finger",)), strict=True) for state in pair]
    logs.record(path, mixed, storage=storage)
    assert len(read(path, joints=NAMES)) == 20


@each("share", [0.0, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_log_is_refused_and_no_copy_is_left(tmp_path, storage, share):
    folder = tmp_path / str(share)
    folder.mkdir()
    path = path_of(folder, storage)
    logs.record(path, states(400), storage=storage)
    file = next(p for p in path.iterdir() if p.suffix in (".mcap", ".db3")) if path.is_dir() else path
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(logs.LogError, match="log"):
        logs.annotate(path, path_of(folder, storage, "annotated"), lambda state: {})
    assert [p.name for p in folder.iterdir()] == [path.name]


def write_mcap(path, encoding, schema, payload):
    with open(path, "wb") as file:
        writer = mcap_writer.Writer(file)
        writer.start()
        number = writer.register_schema(schema, "ros2msg" if encoding == "cdr" else "jsonschema", b"{}")
        channel = writer.register_channel("/joint_states", encoding, number, {"note": "kept"})
        writer.add_message(channel, 11, payload, 7, 3)
        writer.add_attachment(1, 2, "photo", "text/plain", b"abc")
        writer.add_metadata("robot", {"name": "arm"})
        writer.finish()


def test_files_of_another_kind_are_refused(tmp_path, monkeypatch):
    (tmp_path / "text.mcap").write_text("hello")
    (tmp_path / "folder").mkdir()
    write_mcap(tmp_path / "imu.mcap", "cdr", "sensor_msgs/msg/Imu", b"")
    for name, error, match in [
        ("nothing", FileNotFoundError, "no such log"),
        ("text.mcap", logs.LogError, "not an MCAP file"),
        ("folder", logs.LogError, "ROS 2 bag"),
        ("imu.mcap", logs.LogError, "holds sensor_msgs/msg/Imu, not sensor_msgs/msg/JointState"),
    ]:
        with pytest.raises(error, match=match):
            read(tmp_path / name)
    with pytest.raises(ValueError, match="storage='csv'"):
        logs.record(tmp_path / "x", states(), storage="csv")
    monkeypatch.setitem(sys.modules, "rosbags.rosbag2", None)
    with pytest.raises(ImportError, match=r"trustgp\[logs\]"):
        logs.record(tmp_path / "x", states())


def test_everything_in_an_mcap_file_is_copied(tmp_path):
    payload = json.dumps({"name": ["a"], "position": [1.0], "velocity": [None], "effort": [2.0]}).encode()
    write_mcap(tmp_path / "log.mcap", "json", "Joints", payload)
    logs.annotate(tmp_path / "log.mcap", tmp_path / "out.mcap", lambda state: {"status": "ok"})
    with open(tmp_path / "out.mcap", "rb") as file:
        reader = mcap_reader.make_reader(file)
        schema, channel, message = next(iter(reader.iter_messages(topics=["/joint_states"])))
        assert (schema.name, channel.metadata) == ("Joints", {"note": "kept"})
        assert (message.data, message.publish_time, message.sequence) == (payload, 7, 3)
        assert [a.data for a in reader.iter_attachments()] == [b"abc"]
        assert [m.metadata for m in reader.iter_metadata()] == [{"name": "arm"}]
    (state,) = logs.joint_states(tmp_path / "log.mcap")
    assert np.isnan(state.velocity[0])


def test_the_mcap_file_of_a_bag_is_read_too(tmp_path):
    logs.record(tmp_path / "bag", states(), storage="mcap")
    assert_recorded(tmp_path / "bag" / "bag.mcap", states())
