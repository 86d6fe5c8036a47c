"""Promise 25: a bad message is one invalid frame, a damaged file a `LogError`, and memory stays bounded."""

from __future__ import annotations

import json
import re
import sqlite3
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from many import each

from trustgp import logs

mcap_writer = pytest.importorskip("mcap.writer", reason='needs mcap: pip install "trustgp[logs]"')
rosbags = pytest.importorskip("rosbags.rosbag2", reason='needs rosbags: pip install "trustgp[logs]"')
zstandard = pytest.importorskip("zstandard")

COUNT, ODD = 9, 4  # messages of a log, and which of them is bad
START = 10**18
GIGABYTE = 10**9
MAGIC = b"\x89MCAP0\r\n"
GOOD = {"name": ["a", "b"], "position": [0.1, 0.2], "velocity": [1.0, 2.0], "effort": [3.0, 4.0]}


def message(**changes):
    return {**GOOD, **changes}


def stamp(sec, nanosec):
    return message(header={"stamp": {"sec": sec, "nanosec": nanosec}})


def write_log(path, odd, *, at=ODD, time=None):
    """A log in JSON, all of whose messages are good but one: a table, or bytes."""
    with open(path, "wb") as file:
        writer = mcap_writer.Writer(file)
        writer.start()
        number = writer.register_schema("Joints", "jsonschema", b"{}")
        channel = writer.register_channel("/joint_states", "json", number)
        for place in range(COUNT):
            said = odd if place == at else GOOD
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            when = START + place if place != at or time is None else time
            writer.add_message(channel, when, data, when)
        writer.finish()
    return path


def invalid_frames(path, **options):
    """Which frames are invalid, and the reason of the first; the others must be as they were written."""
    with pytest.warns(UserWarning, match="cannot be read"):
        states = list(logs.joint_states(path, **options))
    assert len(states) == COUNT
    for state in states:
        wanted = np.full(2, np.nan) if state.reason else np.array(GOOD["velocity"])
        np.testing.assert_array_equal(state.velocity, wanted)
    bad = [place for place, state in enumerate(states) if state.reason]
    return bad, states[bad[0]].reason


ODD_MESSAGES = [
    (message(name=["a", "a"]), "names a joint twice: a"),
    (message(name=["a", "b", "b"], position=[1, 2, 3], velocity=[1, 2, 3], effort=[1, 2, 3]), "twice: b"),
    (message(name=["a", 7]), "no list of joint names"),
    (message(name="ab"), "no list of joint names"),
    (message(position=["0.1", 0.2]), "no numbers but '0.1', str"),
    (message(position="12"), "no numbers but str"),
    (message(position=[True, 0.2]), "no numbers but 'True', bool"),
    (message(position=[[0.1], [0.2]]), r"no numbers but '\[0.1\]', list"),
    (message(position={"a": 0.1}), "no numbers but dict"),
    (message(position=[10**400, 0.2]), "too large"),
    (message(velocity=[]), "velocity is empty"),
    (message(velocity=None), "velocity is empty"),
    (message(velocity=[1.0]), "1 numbers of velocity for 2 joints"),
    (message(name=["a"], position=[1], velocity=[1], effort=[1]), "lacks the joints b"),
    (stamp(-1, 0), "header has no stamp"),
    (stamp(1, 10**9), "header has no stamp"),
    (stamp("1", 0), "header has no stamp"),
    (stamp([1], 0), "header has no stamp"),
    (message(header=5), "header has no stamp"),
    (message(header={}), "header has no stamp"),
    (b'{"name": ["a", "b"], "name": ["b", "a"]}', "a duplicate field"),
    (b"{", "damaged"),
    (b"\xff\xfe\x00", "damaged"),
    (b"[" * 100_000, "damaged"),
    (b"7", "no table"),
    (b" " * (2**20 + 1), "bytes; at most"),
]


@each(("odd", "match"), ODD_MESSAGES)
def test_a_message_that_cannot_be_read_is_one_invalid_frame(tmp_path, odd, match):
    path = write_log(tmp_path / f"{abs(hash(str(odd)))}.mcap", odd)
    bad, reason = invalid_frames(path)
    assert bad == [ODD]
    assert re.search(match, reason), reason


@each(("odd", "match"), ODD_MESSAGES)
def test_it_ends_the_log_where_that_is_asked_for(tmp_path, odd, match):
    path = write_log(tmp_path / f"{abs(hash(str(odd)))}.mcap", odd)
    with pytest.raises(logs.LogError, match=match):
        list(logs.joint_states(path, strict=True))
    out = tmp_path / "copy.mcap"
    with pytest.raises(logs.LogError, match=match):
        logs.annotate(path, out, lambda state: {}, strict=True)
    assert not out.exists()


@each("time", [0, 17, START - 1, START + 10**15, 2**63, 2**64 - 1])
def test_a_time_that_cannot_be_right_is_one_invalid_frame(tmp_path, time):
    path = write_log(tmp_path / f"{time}.mcap", GOOD, time=time)
    bad, reason = invalid_frames(path)
    assert bad == [ODD]
    assert f"time {time} ns" in reason


def test_a_clock_that_somebody_sets_costs_one_frame(tmp_path):
    def states():
        for place in range(20):
            time = START + place - (10**12 if place >= 10 else 0)
            yield logs.JointState(time, ("a",), *np.ones((3, 1)), stamp=time if place != 5 else 3)

    logs.record(tmp_path / "bag", states(), storage="mcap")
    with pytest.warns(UserWarning, match="2 messages cannot be read"):
        found = list(logs.joint_states(tmp_path / "bag"))
    assert [place for place, state in enumerate(found) if state.reason] == [5, 10]


def test_the_first_message_may_be_the_bad_one(tmp_path):
    assert invalid_frames(write_log(tmp_path / "log.mcap", b"{", at=0))[0] == [0]


def test_the_copy_says_invalid_input_whatever_the_judge_says(tmp_path):
    path, out = write_log(tmp_path / "log.mcap", message(velocity=[])), tmp_path / "copy.mcap"
    with pytest.warns(UserWarning, match="1 messages cannot be read"):
        assert logs.annotate(path, out, lambda state: {"status": "ok", "frame": 1}) == COUNT
    reader = pytest.importorskip("mcap.reader")
    with open(out, "rb") as file:
        said = [json.loads(m.data) for *_, m in reader.make_reader(file).iter_messages(["/trustgp/verdict"])]
    assert [one["status"] for one in said] == ["ok"] * ODD + ["invalid input"] + ["ok"] * (COUNT - ODD - 1)
    assert "velocity is empty" in said[ODD]["reason"]


@each("storage", ["sqlite3", "mcap"])
def test_a_bag_with_one_damaged_message_goes_on(tmp_path, storage):
    path = tmp_path / storage
    logs.record(
        path, (logs.JointState(START + k, ("a",), *np.ones((3, 1))) for k in range(COUNT)), storage=storage
    )
    file = next(p for p in path.iterdir() if p.suffix in (".db3", ".mcap"))
    if storage == "sqlite3":
        with sqlite3.connect(file) as base:
            base.execute("UPDATE messages SET data = substr(data, 1, 20) WHERE id = 3")
            base.execute("UPDATE messages SET data = 'text' WHERE id = 5")
        base.close()
    else:
        data = file.read_bytes()
        name = struct.pack("<I", 2) + b"a\0"  # the length of a joint's name
        third, fifth = [k for k in range(len(data)) if data.startswith(name, k)][2:5:2]
        for place in (third, fifth):
            data = data[:place] + struct.pack("<I", 2**31) + data[place + 4 :]
        file.write_bytes(data)
    with pytest.warns(UserWarning, match="2 messages cannot be read"):
        states = list(logs.joint_states(path))
    assert [place for place, state in enumerate(states) if state.reason] == [2, 4]


# -- bombs ------------------------------------------------------------------------------------------


def record_of(code, content):
    return struct.pack("<BQ", code, len(content)) + content


def text(value):
    return struct.pack("<I", len(value)) + value


def chunked(compression, packed, size, crc=0):
    """An MCAP file of one chunk, with whatever it says of its size."""
    chunk = (
        struct.pack("<QQQI", 0, 1, size, crc) + text(compression) + struct.pack("<Q", len(packed)) + packed
    )
    header, footer = record_of(1, text(b"ros2") + text(b"")), record_of(2, struct.pack("<QQI", 0, 0, 0))
    return MAGIC + header + record_of(6, chunk) + record_of(15, bytes(4)) + footer + MAGIC


def zeros_packed(compression, size):
    """So many zeros, without holding them."""
    if compression == b"zstd":
        packer = zstandard.ZstdCompressor(level=1).compressobj()  # its frame does not tell the size
        return b"".join(packer.compress(bytes(10**6)) for _ in range(size // 10**6)) + packer.flush()
    lz4 = pytest.importorskip("lz4.frame").LZ4FrameCompressor()
    parts = [lz4.begin(), *(lz4.compress(bytes(10**6)) for _ in range(size // 10**6)), lz4.flush()]
    return b"".join(parts)


def bag_of(folder, data, name="bag"):
    """A bag with MCAP storage around the bytes of a file."""
    path = folder / name
    logs.record(path, [logs.JointState(1, ("a",), *np.ones((3, 1)))], storage="mcap")
    next(path.glob("*.mcap")).write_bytes(data)
    return path


PEAK = """
import sys, zstandard, lz4.frame, mcap.records, rosbags.rosbag2, rosbags.typesys
from trustgp import logs
def peak():  # getrusage would begin at the parent's
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
logs.joint_states
before = peak()
for path in sys.argv[1:]:
    try:
        list(logs.joint_states(path))
        print("read", path)
    except logs.LogError as error:
        pass
print((peak() - before) // 1024)
"""


def test_what_unpacks_to_a_gigabyte_is_refused_in_bounded_memory(tmp_path):
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not tell the peak of memory")
    paths = []
    for compression in (b"zstd", b"lz4"):
        packed = zeros_packed(compression, GIGABYTE if compression == b"zstd" else GIGABYTE // 3)
        for size in (GIGABYTE, 2**26, 1000):  # what the chunk says
            data = chunked(compression, packed, size)
            paths.append(tmp_path / f"{compression.decode()}{size}.mcap")
            paths[-1].write_bytes(data)
            paths.append(bag_of(tmp_path, data, f"{compression.decode()}{size}"))
    for code in (3, 4, 5, 6, 9, 12, 77):  # a record that announces more than there is
        paths.append(tmp_path / f"long{code}.mcap")
        header = record_of(1, text(b"") + text(b""))
        paths[-1].write_bytes(MAGIC + header + struct.pack("<BQ", code, 2**40) + bytes(1000))
    done = subprocess.run([sys.executable, "-c", PEAK, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "read" not in done.stdout
    assert int(done.stdout.split()[-1]) < 200  # MiB beyond what the imports took


def test_a_compressed_bag_is_read_and_a_bomb_in_one_refused(tmp_path):
    def bag(name, mode, change=lambda data: data):
        path = tmp_path / name
        logs.record(
            path,
            (logs.JointState(START + k, ("a",), *np.ones((3, 1))) for k in range(COUNT)),
            storage="sqlite3",
        )
        file, described = next(path.glob("*.db3")), path / "metadata.yaml"
        words = described.read_text()
        words = words.replace("compression_format: ''", "compression_format: zstd")
        words = words.replace("compression_mode: ''", f"compression_mode: {mode}")
        if mode == "MESSAGE":
            with sqlite3.connect(file) as base:
                rows = base.execute("SELECT id, data FROM messages").fetchall()
                for number, data in rows:
                    packed = change(zstandard.compress(data))
                    base.execute("UPDATE messages SET data = ? WHERE id = ?", (packed, number))
            base.close()
        else:
            file.with_name(file.name + ".zstd").write_bytes(change(zstandard.compress(file.read_bytes())))
            words = words.replace(file.name, file.name + ".zstd")
            file.unlink()
        described.write_text(words)
        return path

    for mode in ("MESSAGE", "FILE"):
        assert len(list(logs.joint_states(bag(mode, mode)))) == COUNT
        with pytest.raises(logs.LogError, match="unpack"):
            list(logs.joint_states(bag(f"{mode}-bomb", mode, lambda _: zeros_packed(b"zstd", 10**8))))


def test_a_description_that_is_too_long_is_not_parsed(tmp_path):
    path = bag_of(tmp_path, b"")
    (path / "metadata.yaml").write_bytes(b"a: [" + b"1," * 2**20 + b"1]")
    with pytest.raises(logs.LogError, match=r"metadata.yaml has .* at most"):
        list(logs.joint_states(path))


def test_a_channel_nobody_has_announced_and_two_of_one_number_are_damage(tmp_path):
    path = tmp_path / "log.mcap"
    stray = record_of(5, struct.pack("<HIQQ", 9, 0, 1, 1) + b"{}")
    channel = [
        record_of(4, struct.pack("<HH", 1, 0) + text(t) + text(b"json") + text(b""))
        for t in (b"/joint_states", b"/x")
    ]
    path.write_bytes(chunked(b"", channel[0] + stray, len(channel[0] + stray)))
    with pytest.raises(logs.LogError, match="channel 9, which is missing"):
        list(logs.joint_states(path))
    path.write_bytes(chunked(b"", b"".join(channel), len(b"".join(channel))))
    with pytest.raises(logs.LogError, match="two channels have the number 1"):
        list(logs.joint_states(path))


# -- bit flips --------------------------------------------------------------------------------------

FLIPS = 80


def flipped(data, draw):
    place, bit = int(draw.integers(len(data))), int(draw.integers(8))
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def values_of(path):
    """The frames that are valid, as plain values by time; None: the log was refused."""
    try:
        states = list(logs.joint_states(path))
    except logs.LogError:
        return None
    return [
        (s.time, s.names, s.position.tolist(), s.velocity.tolist(), s.effort.tolist())
        for s in states
        if not s.reason
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_flipped_bit_in_a_file_with_checksums_is_found(tmp_path):
    path, draw = write_log(tmp_path / "log.mcap", GOOD), np.random.default_rng(0)
    whole, wanted = path.read_bytes(), values_of(path)
    refused = 0
    for _ in range(FLIPS):
        path.write_bytes(flipped(whole, draw))
        found = values_of(path)
        refused += found is None
        assert found in (None, wanted)
    assert refused > FLIPS // 4  # of the rest the bit is in the summary, from which nothing is taken


@pytest.mark.filterwarnings("ignore::UserWarning")
@each("storage", ["sqlite3", "mcap"])
def test_a_flipped_bit_in_a_bag_without_checksums_touches_one_frame_at_most(tmp_path, storage):
    path, draw = tmp_path / storage, np.random.default_rng(0)
    numbers = draw.random((COUNT, 3, 2))
    logs.record(
        path, (logs.JointState(START + k, ("a", "b"), *numbers[k]) for k in range(COUNT)), storage=storage
    )
    file = next(p for p in path.iterdir() if p.suffix in (".db3", ".mcap"))
    whole, wanted = file.read_bytes(), values_of(path)
    for _ in range(FLIPS):
        file.write_bytes(flipped(whole, draw))
        found = values_of(path)
        if found is not None:
            assert COUNT - 1 <= len(found) <= COUNT
            assert sum(one not in wanted for one in found) <= 1


def test_a_wrong_checksum_of_a_chunk_is_found(tmp_path):
    path = tmp_path / "log.mcap"
    path.write_bytes(chunked(b"", b"", 0, crc=zlib.crc32(b"x")))
    with pytest.raises(logs.LogError, match="checksum of a chunk"):
        list(logs.joint_states(path))
