"""Joint states in ROS 2 bags and MCAP files: read, and refused when wrong."""

import sys

import numpy as np
import pytest
from log_files import record, write_json
from many import each

from trustgp import logs

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
    record(path, states(nan_at=5), storage)
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


def read(path, **options):
    return list(logs.joint_states(path, **options))


def test_wrong_requests_are_refused(log, tmp_path, storage):
    without = path_of(tmp_path, storage, "without")
    record(without, states(effort=False), storage)
    for call, error, match in [
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
    record(path, mixed, storage)
    assert len(read(path, joints=NAMES)) == 20


@each("share", [0.0, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_log_is_refused(tmp_path, storage, share):
    folder = tmp_path / str(share)
    folder.mkdir()
    path = path_of(folder, storage)
    record(path, states(400), storage)
    file = next(p for p in path.iterdir() if p.suffix in (".mcap", ".db3")) if path.is_dir() else path
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(logs.LogError, match="log"):
        read(path)


def test_files_of_another_kind_are_refused(tmp_path, monkeypatch):
    (tmp_path / "text.mcap").write_text("hello")
    (tmp_path / "folder").mkdir()
    write_json(tmp_path / "imu.mcap", [(1, b"")], schema="sensor_msgs/msg/Imu", encoding="cdr")
    for name, error, match in [
        ("nothing", FileNotFoundError, "no such log"),
        ("text.mcap", logs.LogError, "not an MCAP file"),
        ("folder", logs.LogError, "ROS 2 bag"),
        ("imu.mcap", logs.LogError, "holds sensor_msgs/msg/Imu, not sensor_msgs/msg/JointState"),
    ]:
        with pytest.raises(error, match=match):
            read(tmp_path / name)
    monkeypatch.setitem(sys.modules, "rosbags.rosbag2", None)
    with pytest.raises(ImportError, match=r"trustgp\[logs\]"):
        read(tmp_path / "folder")


def test_the_mcap_file_of_a_bag_is_read_too(tmp_path):
    record(tmp_path / "bag", states(), "mcap")
    assert_recorded(tmp_path / "bag" / "bag.mcap", states())
