"""Promise 4: a bloated or forged header is refused in under 0.2 s and 50 MB."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import pytest
from reliability.helpers import ZEROS, python, seal

import trustgp
from trustgp.data.tensor_file import LONGEST_HEADER, MOST_TENSORS, read

SECONDS, BYTES = 0.2, 50 * 2**20
KIND = "trustgp-model"


def _metadata() -> dict:
    return {"format": KIND, "version": "2", "sha256": ZEROS, "text": "{}"}


def _table(extra: str) -> bytes:
    """A header with our metadata and then some."""
    return (json.dumps({"__metadata__": _metadata()})[:-1] + "," + extra + "}").encode()


def _room() -> int:
    """Bytes of extra header that still pass the limit on its length."""
    return LONGEST_HEADER - len(_table("")) - 16


def _many(entry, size: int) -> str:
    """As many entries, by number, as fit `size` bytes."""
    parts, length = [], 0
    for number in range(size):
        part = entry(number)
        length += len(part) + 1
        if length > size:
            break
        parts.append(part)
    return ",".join(parts)


def _as_many_as_are_read() -> str:
    name, rest = "x" * (_room() // MOST_TENSORS - 60), '"dtype":"F32","shape":[0],"data_offsets":[0,0]'
    return ",".join(f'"{name}{number:04}":{{{rest}}}' for number in range(MOST_TENSORS))


def bloated(path: Path) -> None:
    """20 MB of tensor entries."""
    entry = '"t{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'.format
    seal(path, _table(_many(entry, 20 * 10**6)), b"")


def padded(path: Path) -> None:
    seal(path, _table('"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}') + b" " * (20 * 10**6), b"")


def too_long(path: Path) -> None:
    """Claims a header of nearly 2^64 bytes."""
    path.write_bytes(b"\xff" * 7 + b"\x7f" + b"{}" * 100)


def longer_than_the_file(path: Path) -> None:
    path.write_bytes((LONGEST_HEADER - 1).to_bytes(8, "little") + b"{}" * 100)


def many_tensors(path: Path) -> None:
    entry = '"t{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'.format
    seal(path, _table(_many(entry, _room())), b"")


def as_many_tensors_as_are_read(path: Path) -> None:
    """As long as the header may be, and as many as it may name."""
    seal(path, _table(_as_many_as_are_read()), b"")


def one_key_twice_among_many(path: Path) -> None:
    """The repeated key comes last, so a search that counts each key in turn would take minutes."""
    seal(path, _table(_many('"{}":0'.format, _room() - 32) + ',"last":0,"last":0'), b"")


def deep(path: Path) -> None:
    seal(path, _table('"a":' + "[" * (_room() - 8)), b"")


def long_number(path: Path) -> None:
    seal(path, _table('"a":' + "9" * (_room() - 8)), b"")


def long_version(path: Path) -> None:
    metadata = {**_metadata(), "version": "9" * (_room() - 8)}
    seal(path, json.dumps({"__metadata__": metadata}).encode(), b"")


def deep_text(path: Path) -> None:
    metadata = {**_metadata(), "text": "[" * (_room() - 8)}
    seal(path, json.dumps({"__metadata__": metadata}).encode(), b"")


def huge_tensor(path: Path) -> None:
    """A tensor of 8 EiB in an empty file."""
    seal(path, _table(f'"a":{{"dtype":"F64","shape":[{2**60}],"data_offsets":[0,{2**63}]}}'), b"")


FORGED = [
    bloated,
    padded,
    too_long,
    longer_than_the_file,
    many_tensors,
    as_many_tensors_as_are_read,
    one_key_twice_among_many,
    deep,
    long_number,
    long_version,
    deep_text,
    huge_tensor,
]


@pytest.fixture(params=FORGED, ids=lambda forge: forge.__name__)
def forged(request, tmp_path) -> Path:
    path = tmp_path / "forged.trustgp"
    request.param(path)
    return path


def _refuse(path: Path, network) -> None:
    with pytest.raises(trustgp.ArtifactError):
        trustgp.load(path, network)


def test_a_forged_header_is_refused_quickly(forged, gram_file):
    taken = []
    for _ in range(3):  # the best of three: other work on the machine only adds
        start = time.thread_time()
        _refuse(forged, gram_file.network)
        taken.append(time.thread_time() - start)
    assert min(taken) < SECONDS


def test_a_forged_header_takes_little_memory(forged, gram_file):
    tracemalloc.start()
    try:
        _refuse(forged, gram_file.network)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BYTES


MEASURED = """
import resource, sys
from pathlib import Path
import trustgp
from reliability.helpers import mlp
network = mlp(2, 3, 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        trustgp.load(path, network)
    except trustgp.ArtifactError:
        continue
    raise SystemExit(f"{path} was accepted")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_the_process_itself_stays_small(tmp_path):
    """What Python's own count cannot see: memory that safetensors takes."""
    paths = []
    for forge in FORGED:
        paths.append(tmp_path / f"{forge.__name__}.trustgp")
        forge(paths[-1])
    assert int(python(MEASURED, *paths)) * 1024 < BYTES


def test_a_header_just_below_the_limit_can_be_read(tmp_path):
    """The limit refuses by length alone, not what we write ourselves."""
    header = _table(_as_many_as_are_read())
    assert LONGEST_HEADER - 8 * MOST_TENSORS < len(header) <= LONGEST_HEADER
    path = seal(tmp_path / "large.trustgp", header, b"")
    assert len(read(path, kind=KIND)[1]) == MOST_TENSORS
