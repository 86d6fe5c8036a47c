"""Joint states in ROS 2 bags and MCAP files: read, written, annotated, and refused when something is off."""

import json

import numpy as np
import pytest
from many import each

from trustgp import logs

rosbags = pytest.importorskip("rosbags.rosbag2", reason='needs rosbags: pip install "trustgp[logs]"')
mcap_reader = pytest.importorskip("mcap.reader", reason='needs mcap: pip install "trustgp[logs]"')
mcap_writer = pytest.importorskip("mcap.writer")

STORAGES = ["sqlite3", "mcap", "json"]
NAMES = ("elbow", "base", "wrist")


def states(count=20, *, names=NAMES, effort=True, nan_at=None):
    draw = np.random.default_rng(0)
    for number in range(count):
        position, velocity, torque = draw.random((3, len(names)))
        if number == nan_at:
            position[1] = np.nan
        yield logs.JointState(10**18 + number, names, position, velocity, torque if effort else torque[:0])


def path_of(folder, storage, name="log"):
    return folder / (f"{name}.mcap" if storage == "json" else name)


@pytest.fixture(params=STORAGES)
def storage(request):
    return request.param


@pytest.fixture
def log(tmp_path, storage):
    path = path_of(tmp_path, storage)
    logs.record(path, states(nan_at=5), storage=storage)
    return path


def same(found, wanted):
    assert (found.time, found.names) == (wanted.time, wanted.names)
    for field in ("position", "velocity", "effort"):
        np.testing.assert_array_equal(getattr(found, field), getattr(wanted, field))


def test_what_is_recorded_is_read_back_to_the_bit(log):
    for found, wanted in zip(logs.joint_states(log), states(nan_at=5), strict=True):
        same(found, wanted)


def test_joints_come_in_the_order_asked_for_whatever_that_of_the_log(log):
    found = list(logs.joint_states(log, joints=["base", "wrist", "elbow"]))
    for state, wanted in zip(found, states(nan_at=5), strict=True):
        assert state.names == ("base", "wrist", "elbow")
        np.testing.assert_array_equal(state.effort, wanted.effort[[1, 2, 0]])
    assert len(list(logs.joint_states(log, joints=["wrist"]))) == 20


def verdicts_of(path, topic="/trustgp/verdict"):
    """(time, verdict) of an annotated log, read by nothing of ours."""
    if path.is_dir():
        from rosbags.typesys import Stores, get_typestore

        types = get_typestore(Stores.ROS2_HUMBLE)
        with rosbags.Reader(path) as reader:
            wanted = [c for c in reader.connections if c.topic == topic]
            return [
                (time, json.loads(types.deserialize_cdr(data, c.msgtype).data))
                for c, time, data in reader.messages(wanted)
            ]
    with open(path, "rb") as file:
        found = mcap_reader.make_reader(file, validate_crcs=True).iter_messages(topics=[topic])
        return [(message.log_time, json.loads(message.data)) for _, _, message in found]


def test_the_copy_has_every_message_and_one_verdict_for_each(log, tmp_path, storage):
    out = path_of(tmp_path, storage, "annotated")
    seen = []

    def judge(state):
        seen.append(state)
        return {"status": "ok", "frame": len(seen) - 1}

    assert logs.annotate(log, out, judge) == 20
    assert verdicts_of(out) == [(10**18 + k, {"status": "ok", "frame": k}) for k in range(20)]
    for found, wanted in zip(logs.joint_states(out), states(nan_at=5), strict=True):
        same(found, wanted)
    with pytest.raises(logs.LogError, match="already"):
        logs.annotate(out, path_of(tmp_path, storage, "again"), judge)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([log.name, out.name])


def diagnostics_of(path):
    """(time, DiagnosticArray) of an annotated log, read by rosbags' own types."""
    from rosbags.typesys import Stores, get_typestore

    types, kind = get_typestore(Stores.ROS2_HUMBLE), "diagnostic_msgs/msg/DiagnosticArray"
    if path.is_dir():
        with rosbags.Reader(path) as reader:
            wanted = [c for c in reader.connections if c.topic == "/diagnostics"]
            assert [c.msgtype for c in wanted] == [kind]
            return [(time, types.deserialize_cdr(data, kind)) for _, time, data in reader.messages(wanted)]
    with open(path, "rb") as file:
        found = list(mcap_reader.make_reader(file).iter_messages(topics=["/diagnostics"]))
    assert {(schema.name, schema.encoding, channel.message_encoding) for schema, channel, _ in found} == {
        (kind, "ros2msg", "cdr")
    }
    return [(message.log_time, types.deserialize_cdr(message.data, kind)) for *_, message in found]


def test_verdicts_can_be_diagnostics_too(log, tmp_path, storage):
    out = path_of(tmp_path, storage, "annotated")
    kinds = ["ok", "uncertain", "novel", "invalid input", "what"]

    def judge(state):
        number = state.time - 10**18
        return {
            "status": kinds[number % 5],
            "frame": number,
            "std": [0.5, None],
            "reason": "NaN" * (number == 3),
        }

    assert logs.annotate(log, out, judge, diagnostics="/diagnostics") == 20
    found = diagnostics_of(out)
    assert len(found) == len(verdicts_of(out)) == 20
    for number, (time, array) in enumerate(found):
        (status,) = array.status
        assert time == 10**18 + number == array.header.stamp.sec * 10**9 + array.header.stamp.nanosec
        assert status.level == (status.OK, status.WARN, status.ERROR, status.ERROR, status.STALE)[number % 5]
        assert status.message == ("invalid input: NaN" if number == 3 else kinds[number % 5])
        assert status.name == "trustgp/verdict"
        assert {pair.key: json.loads(pair.value) for pair in status.values} == {
            "frame": number,
            "std": [0.5, None],
        }
    with pytest.raises(logs.LogError, match="/diagnostics already"):
        logs.annotate(out, tmp_path / "again", judge, verdicts="/other", diagnostics="/diagnostics")


def test_an_error_on_the_way_leaves_nothing_behind(log, tmp_path, storage):
    def judge(state):
        if state.time == 10**18 + 7:
            raise RuntimeError("stop")
        return {}

    with pytest.raises(RuntimeError, match="stop"):
        logs.annotate(log, path_of(tmp_path, storage, "annotated"), judge)
    assert [p.name for p in tmp_path.iterdir()] == [log.name]


def test_a_log_is_never_written_over(log, storage):
    with pytest.raises(FileExistsError, match="exists already"):
        logs.record(log, states(), storage=storage)
    with pytest.raises(FileExistsError, match="exists already"):
        logs.annotate(log, log, lambda state: {})


def test_a_missing_topic_is_named_with_those_that_are_there(log):
    with pytest.raises(logs.LogError, match=r"no topic /arm; there are: /joint_states"):
        list(logs.joint_states(log, topic="/arm"))


def test_missing_joints_are_named(log):
    with pytest.raises(logs.LogError, match=r"lacks the joints knee; it has elbow, base, wrist"):
        list(logs.joint_states(log, joints=["base", "knee"]))
    with pytest.raises(logs.LogError, match=r"no message with the joints knee; its joints are base"):
        list(logs.joint_states(log, joints=["knee"]))


def test_messages_of_other_joints_on_the_topic_are_passed_over(tmp_path, storage):
    path = path_of(tmp_path, storage)
    mixed = [state for pair in zip(states(), states(names=("finger",)), strict=True) for state in pair]
    logs.record(path, mixed, storage=storage)
    assert len(list(logs.joint_states(path, joints=NAMES))) == 20


def test_empty_efforts_are_refused_unless_they_are_not_needed(tmp_path, storage):
    path = path_of(tmp_path, storage)
    logs.record(path, states(effort=False), storage=storage)
    with pytest.raises(logs.LogError, match="effort is empty"):
        list(logs.joint_states(path))
    found = list(logs.joint_states(path, needs=["position", "velocity"], joints=["base"]))
    assert [len(state.effort) for state in found] == [0] * 20
    with pytest.raises(ValueError, match="torque"):
        list(logs.joint_states(path, needs=["torque"]))


def data_file(log):
    return next(p for p in log.iterdir() if p.suffix in (".mcap", ".db3")) if log.is_dir() else log


@each("share", [0.0, 0.3, 0.6, 0.9, 0.999])
def test_a_log_cut_short_is_refused_and_no_copy_is_left(tmp_path, storage, share):
    folder = tmp_path / str(share)
    folder.mkdir()
    path = path_of(folder, storage)
    logs.record(path, states(400), storage=storage)
    file = data_file(path)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(logs.LogError, match="log"):
        logs.annotate(path, path_of(folder, storage, "annotated"), lambda state: {})
    assert [p.name for p in folder.iterdir()] == [path.name]


def test_what_is_no_log_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such log"):
        list(logs.joint_states(tmp_path / "nothing"))
    (tmp_path / "text.mcap").write_text("hello")
    with pytest.raises(logs.LogError, match="not an MCAP file"):
        list(logs.joint_states(tmp_path / "text.mcap"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(logs.LogError, match="ROS 2 bag"):
        list(logs.joint_states(tmp_path / "folder"))
    with pytest.raises(ValueError, match="storage='csv'"):
        logs.record(tmp_path / "x", states(), storage="csv")


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


def test_an_mcap_file_that_ros_wrote_is_read_too(tmp_path):
    logs.record(tmp_path / "bag", states(), storage="mcap")
    found = list(logs.joint_states(tmp_path / "bag" / "bag.mcap"))
    for state, wanted in zip(found, states(), strict=True):
        same(state, wanted)


@each(
    ("payload", "match"),
    [
        (b"{", "damaged"),
        (b"[1]", "no table"),
        (b'{"position": [1.0]}', "no list of joint names"),
        (b'{"name": ["a"], "position": ["x"]}', "no numbers"),
        (b'{"name": ["a"], "position": [1.0, 2.0]}', "2 numbers of position for 1 joints"),
    ],
)
def test_messages_that_are_no_joint_states_are_refused(tmp_path, payload, match):
    write_mcap(tmp_path / "log.mcap", "json", "Joints", payload)
    with pytest.raises(logs.LogError, match=match):
        list(logs.joint_states(tmp_path / "log.mcap"))


def test_a_topic_of_another_type_is_refused(tmp_path):
    write_mcap(tmp_path / "log.mcap", "cdr", "sensor_msgs/msg/Imu", b"")
    with pytest.raises(logs.LogError, match="holds sensor_msgs/msg/Imu, not sensor_msgs/msg/JointState"):
        list(logs.joint_states(tmp_path / "log.mcap"))


def test_without_the_extra_the_error_names_it(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "rosbags.rosbag2", None)
    with pytest.raises(ImportError, match=r"trustgp\[logs\]"):
        logs.record(tmp_path / "x", states())
