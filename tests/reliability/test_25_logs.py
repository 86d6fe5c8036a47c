"""Promise 25: a bad message is one invalid frame, a damaged file a `LogError`, and memory is bounded."""

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
from log_files import record, write_json
from many import each

from trustgp import logs

zstandard = pytest.importorskip("zstandard")

COUNT, BAD = 9, 4  # messages of a log, and the bad one among them
START = 10**18
GIGABYTE = 10**9
MAGIC = b"\x89MCAP0\r\n"
GOOD = {"name": ["a", "b"], "position": [0.1, 0.2], "velocity": [1.0, 2.0], "effort": [3.0, 4.0]}


def message(**changes):
    return {**GOOD, **changes}


def stamp(sec, nanosec):
    return message(header={"stamp": {"sec": sec, "nanosec": nanosec}})


def write_log(path, bad, *, at=BAD, time=None):
    """A log in JSON with one bad message: a table, or bytes."""
    contents = [bad if place == at else GOOD for place in range(COUNT)]
    data = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in contents]
    times = [START + place if place != at or time is None else time for place in range(COUNT)]
    return write_json(path, zip(times, data, strict=True))


def write_bag(path, storage="mcap", numbers=None):
    """A bag of joints a and b (or a alone), and its data file."""
    numbers = np.ones((COUNT, 3, 1)) if numbers is None else numbers
    names = ("a", "b")[: numbers.shape[2]]
    record(path, (logs.JointState(START + k, names, *n) for k, n in enumerate(numbers)), storage)
    return next(p for p in path.iterdir() if p.suffix in (".db3", ".mcap"))


def invalid_frames(path):
    """The numbers of invalid frames, and the reason of the first; the others must be as written."""
    with pytest.warns(UserWarning, match="cannot be read"):
        states = list(logs.joint_states(path))
    assert len(states) == COUNT
    for state in states:
        wanted = np.full(2, np.nan) if state.reason else np.array(GOOD["velocity"])
        np.testing.assert_array_equal(state.velocity, wanted)
    bad = [place for place, state in enumerate(states) if state.reason]
    return bad, states[bad[0]].reason


BAD_MESSAGES = [
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
    (b'{"name": ["a", "b"], "name": ["b", "a"]}', "occurs twice"),
    (b"{", "damaged"),
    (b"\xff\xfe\x00", "damaged"),
    (b"[" * 100_000, "damaged"),
    (b"7", "no table"),
    (b" " * (2**20 + 1), "bytes; at most"),
]


@each(("bad", "match"), BAD_MESSAGES)
def test_a_message_that_cannot_be_read_is_one_invalid_frame_or_with_strict_an_error(tmp_path, bad, match):
    path = write_log(tmp_path / "log.mcap", bad)
    numbers, reason = invalid_frames(path)
    assert numbers == [BAD]
    assert re.search(match, reason), reason
    with pytest.raises(logs.LogError, match=match):
        list(logs.joint_states(path, strict=True))


@each("time", [0, 17, START - 1, START + 10**15, 2**63, 2**64 - 1])
def test_an_impossible_time_is_one_invalid_frame(tmp_path, time):
    numbers, reason = invalid_frames(write_log(tmp_path / "log.mcap", GOOD, time=time))
    assert numbers == [BAD]
    assert f"time {time} ns" in reason


def test_setting_the_clock_costs_one_frame_and_the_first_may_be_bad(tmp_path):
    times = [START + place - (10**12 if place >= 10 else 0) for place in range(20)]
    stamps = [3 if place == 5 else time for place, time in enumerate(times)]
    both = zip(times, stamps, strict=True)
    record(tmp_path / "bag", [logs.JointState(t, ("a",), *np.ones((3, 1)), stamp=s) for t, s in both])
    with pytest.warns(UserWarning, match="2 messages cannot be read"):
        states = list(logs.joint_states(tmp_path / "bag"))
    assert [place for place, state in enumerate(states) if state.reason] == [5, 10]
    assert invalid_frames(write_log(tmp_path / "log.mcap", b"{", at=0))[0] == [0]


def test_a_bag_with_damaged_messages_goes_on(tmp_path):
    """Those of MCAP are flipped below."""
    file = write_bag(tmp_path / "bag", "sqlite3")
    with sqlite3.connect(file) as base:
        base.execute("UPDATE messages SET data = substr(data, 1, 20) WHERE id = 3")
        base.execute("UPDATE messages SET data = 'text' WHERE id = 5")
    base.close()
    with pytest.warns(UserWarning, match="2 messages cannot be read"):
        states = list(logs.joint_states(tmp_path / "bag"))
    assert [place for place, state in enumerate(states) if state.reason] == [2, 4]


# -- bombs ------------------------------------------------------------------------------------------


def record_of(code, content):
    return struct.pack("<BQ", code, len(content)) + content


def text(value):
    return struct.pack("<I", len(value)) + value


def chunked(compression, packed, size, crc=0):
    """An MCAP file of one chunk that announces this size."""
    chunk = struct.pack("<QQQI", 0, 1, size, crc) + text(compression)
    chunk += struct.pack("<Q", len(packed)) + packed
    header, footer = record_of(1, text(b"ros2") + text(b"")), record_of(2, struct.pack("<QQI", 0, 0, 0))
    return MAGIC + header + record_of(6, chunk) + record_of(15, bytes(4)) + footer + MAGIC


def zeros_packed(compression, size):
    """This many zeros, compressed piece by piece."""
    if compression == b"zstd":
        packer = zstandard.ZstdCompressor(level=1).compressobj()  # its frame does not announce the size
        return b"".join(packer.compress(bytes(10**6)) for _ in range(size // 10**6)) + packer.flush()
    lz4 = pytest.importorskip("lz4.frame").LZ4FrameCompressor()
    parts = [lz4.begin(), *(lz4.compress(bytes(10**6)) for _ in range(size // 10**6)), lz4.flush()]
    return b"".join(parts)


def bag_of(folder, data, name="bag"):
    """A bag with MCAP storage around the bytes of a file."""
    write_bag(folder / name).write_bytes(data)
    return folder / name


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


@pytest.mark.nightly
def test_compressed_data_of_a_gigabyte_are_refused_in_bounded_memory(tmp_path):
    """The only test of the memory that rosbags, mcap and the decompressors allocate."""
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not report the peak of memory")
    paths = []
    for compression in (b"zstd", b"lz4"):
        packed = zeros_packed(compression, GIGABYTE if compression == b"zstd" else GIGABYTE // 3)
        for size in (GIGABYTE, 2**26, 1000):  # as the chunk announces
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
    def bag(name, mode, change=lambda data: data, storage="sqlite3"):
        path = tmp_path / name
        file, described = write_bag(path, storage), path / "metadata.yaml"
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

    assert len(list(logs.joint_states(bag("packed", "MESSAGE")))) == COUNT
    with pytest.raises(logs.LogError, match="unpack"):
        list(logs.joint_states(bag("bomb", "MESSAGE", lambda _: zeros_packed(b"zstd", 10**8))))
    for storage in ("sqlite3", "mcap"):
        path = bag(storage, "FILE", storage=storage)
        with pytest.raises(logs.LogError, match="unpack them with zstd -d"):
            list(logs.joint_states(path))
    (path / "metadata.yaml").write_bytes(b"a: [" + b"1," * 2**20 + b"1]")
    with pytest.raises(logs.LogError, match=r"metadata.yaml has .* at most"):
        list(logs.joint_states(path))


def test_a_missing_channel_a_duplicate_one_a_nested_chunk_and_a_wrong_checksum_are_damage(tmp_path):
    path = tmp_path / "log.mcap"
    stray = record_of(5, struct.pack("<HIQQ", 9, 0, 1, 1) + b"{}")
    head, tail = struct.pack("<HH", 1, 0), text(b"json") + text(b"")
    channel = [record_of(4, head + text(topic) + tail) for topic in (b"/joint_states", b"/x")]
    nested = record_of(6, struct.pack("<QQQI", 0, 1, 0, 0) + text(b"") + struct.pack("<Q", 0))
    for content, crc, match in [
        (channel[0] + stray, 0, "channel 9, which is missing"),
        (b"".join(channel), 0, "two channels have the number 1"),
        (nested, 0, "a chunk holds a Chunk record"),
        (b"", zlib.crc32(b"x"), "checksum of a chunk"),
    ]:
        path.write_bytes(chunked(b"", content, len(content), crc))
        with pytest.raises(logs.LogError, match=match):
            list(logs.joint_states(path))


@each("compression", [b"zstd", b"lz4"])
def test_a_chunk_that_unpacks_to_more_than_announced_or_allowed_is_refused(tmp_path, compression):
    for size, match in [(1000, "more than 1000 bytes"), (GIGABYTE, "would unpack to 1000000000 bytes")]:
        data = chunked(compression, zeros_packed(compression, 10**7), size)
        (tmp_path / "log.mcap").write_bytes(data)
        for path in (tmp_path / "log.mcap", bag_of(tmp_path, data, f"{compression}{size}")):
            with pytest.raises(logs.LogError, match=match):
                list(logs.joint_states(path))


# -- bit flips --------------------------------------------------------------------------------------

FLIPS = 60


def flipped(data, draw):
    place, bit = int(draw.integers(len(data))), int(draw.integers(8))
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def values_of(path):
    """The valid frames as plain values; None: the log was refused."""
    try:
        states = list(logs.joint_states(path))
    except logs.LogError:
        return None
    valid = [s for s in states if not s.reason]
    return [(s.time, s.names, *(v.tolist() for v in (s.position, s.velocity, s.effort))) for s in valid]


@pytest.mark.filterwarnings("ignore::UserWarning")
@each("storage", ["json", "sqlite3", "mcap"])
def test_a_flipped_bit_is_detected_or_without_checksums_touches_one_frame_at_most(tmp_path, storage):
    path, draw, refused = tmp_path / storage, np.random.default_rng(0), 0
    bag = storage != "json"
    file = write_bag(path, storage, draw.random((COUNT, 3, 2))) if bag else write_log(path, GOOD)
    whole, wanted = file.read_bytes(), values_of(path)
    for _ in range(FLIPS):
        file.write_bytes(flipped(whole, draw))
        values = values_of(path)
        refused += values is None
        if values is not None and bag:
            assert COUNT - 1 <= len(values) <= COUNT
            assert sum(one not in wanted for one in values) <= 1
        elif values is not None:
            assert values == wanted
    assert bag or refused > FLIPS // 4  # the other bits are in the summary, which is not used
