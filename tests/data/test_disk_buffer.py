"""Rows that come batch by batch, in memory or in files without a name."""

import errno
import os
import tempfile
from types import SimpleNamespace

import pytest
import torch

from trustgp.data import rows as reading
from trustgp.data.rows import RowBuffer, mapped_rows

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Sets the bytes that are kept in memory; the temporary folder is `tmp_path`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return lambda limit: monkeypatch.setattr(reading, "KEPT_BYTES", limit)


def collected(batches, name="rows"):
    buffer = RowBuffer(name)
    for batch in batches:
        buffer.add(batch)
    return buffer.finish()


def zeros_and_ones(dtype, *shape):
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("limit", [0, 100, 2**30])
def test_batches_come_back_whole_whether_in_memory_or_in_a_file(kept, tmp_path, limit):
    kept(limit)
    for sizes in ((4,), (3, 3, 1), (1, 0, 7), (5, 5, 5)):
        batches = [[zeros_and_ones(dtype, n, 2, 3) for dtype in DTYPES] + [torch.arange(n)] for n in sizes]
        for place, tensor in enumerate(collected(batches)):
            assert torch.equal(tensor, torch.cat([batch[place] for batch in batches]))
            assert tensor.dtype == batches[0][place].dtype
    empty = collected([[torch.zeros(3, 0), torch.ones(3)], [torch.zeros(2, 0), torch.ones(2)]])
    assert [tuple(tensor.shape) for tensor in empty] == [(5, 0), (5,)]
    buffer, memory = RowBuffer("rows"), torch.empty(2)
    for value in range(3):  # memory that is used again for the next batch
        buffer.add([memory.fill_(value)])
        assert os.listdir(tmp_path) == []  # files have no name, neither while they are written nor after
    (whole,) = buffer.finish()
    assert os.listdir(tmp_path) == []
    whole += 1  # torch knows no read-only memory: a write must not end the process
    assert whole.tolist() == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]


def raising(error):
    def fail(*arguments, **options):
        raise error

    return fail


FULL = OSError(errno.ENOSPC, "No space left on device")
CLOSED = PermissionError(errno.EACCES, "Permission denied")
NO_WRITES = SimpleNamespace(writelines=raising(FULL))
FAULTS = [  # what is replaced, by what, and the error
    ("shutil.disk_usage", lambda folder: SimpleNamespace(free=1), r"train: 100 rows \(400 bytes\) .*TMPDIR"),
    ("tempfile.TemporaryFile", lambda **_: NO_WRITES, "No space .* Let TMPDIR name"),
    ("tempfile.TemporaryFile", raising(CLOSED), "Permission denied"),
]


@pytest.mark.parametrize(("function", "replacement", "message"), FAULTS)
def test_a_full_disk_or_a_closed_folder_is_named(kept, monkeypatch, function, replacement, message):
    kept(0)
    monkeypatch.setattr(f"{reading.__name__}.{function}", replacement)
    with pytest.raises(OSError, match=message) as caught:
        collected([[torch.ones(100)]], name="train")
    assert caught.value.errno in (errno.ENOSPC, errno.EACCES)
    assert tempfile.gettempdir() in str(caught.value)


def test_a_table_on_the_disk_is_written_and_read_like_any_other(kept, tmp_path, monkeypatch):
    for dtype in DTYPES:
        table, rows = mapped_rows(5, zeros_and_ones(dtype, 2, 3)), zeros_and_ones(dtype, 5, 3)
        for place in (3, 0):
            table[place : place + 3].copy_(rows[place : place + 3])
        assert torch.equal(table, rows)
        assert table.dtype == dtype
        assert os.listdir(tmp_path) == []
    monkeypatch.setattr(os, "posix_fallocate", raising(FULL), raising=False)
    with pytest.raises(OSError, match="No space left"):  # before it is written
        mapped_rows(5, torch.ones(2, 3))
