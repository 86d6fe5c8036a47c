"""Rows that come batch by batch."""

import errno
import os
import tempfile

import pytest
import torch

from trustgp.data import rows as spooling
from trustgp.data.rows import RowBuffer, mapped_rows

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A temporary folder of our own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def collected(batches):
    spool = RowBuffer("rows")
    for batch in batches:
        spool.add(batch)
    return spool.finish()


def some(dtype, *shape):
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("limit", [0, 100, 2**30])
@pytest.mark.parametrize("sizes", [(4,), (3, 3, 1), (1, 0, 7), (5, 5, 5)])
def test_batches_come_back_whole_whether_in_memory_or_in_a_file(temporary, monkeypatch, limit, sizes):
    monkeypatch.setattr(spooling, "KEPT_BYTES", limit)
    batches = [[some(dtype, size, 2, 3) for dtype in DTYPES] + [some(torch.int64, size)] for size in sizes]
    found = collected(batches)
    for place, tensor in enumerate(found):
        assert torch.equal(tensor, torch.cat([batch[place] for batch in batches]))
        assert tensor.dtype == batches[0][place].dtype


def test_rows_without_numbers_keep_their_count(monkeypatch):
    monkeypatch.setattr(spooling, "KEPT_BYTES", 0)
    found = collected([[torch.zeros(3, 0), torch.ones(3)], [torch.zeros(2, 0), torch.ones(2)]])
    assert [tuple(tensor.shape) for tensor in found] == [(5, 0), (5,)]


def test_files_have_no_name_while_they_are_written_and_after(temporary, monkeypatch):
    monkeypatch.setattr(spooling, "KEPT_BYTES", 0)
    spool = RowBuffer("rows")
    spool.add([torch.ones(10)])
    assert os.listdir(temporary) == []
    (whole,) = spool.finish()
    assert os.listdir(temporary) == []
    assert bool((whole == 1).all())


def test_writing_to_a_mapped_tensor_is_possible_and_stays_in_memory(temporary, monkeypatch):
    """torch knows no read-only memory: a write must not end the process."""
    monkeypatch.setattr(spooling, "KEPT_BYTES", 0)
    (whole,) = collected([[torch.ones(10)]])
    whole += 1
    assert whole.tolist() == [2.0] * 10


@pytest.mark.parametrize("limit", [0, 2**30])
def test_memory_that_is_used_again_for_the_next_batch_does_no_harm(monkeypatch, limit):
    monkeypatch.setattr(spooling, "KEPT_BYTES", limit)
    spool, buffer = RowBuffer("rows"), torch.empty(2)
    for value in range(3):
        spool.add([buffer.fill_(value)])
    assert spool.finish()[0].tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_a_disk_that_is_nearly_full_is_refused_before_it_is_full(monkeypatch):
    monkeypatch.setattr(spooling, "KEPT_BYTES", 100)
    monkeypatch.setattr(spooling.shutil, "disk_usage", lambda folder: Free)
    spool = RowBuffer("train")
    with pytest.raises(OSError, match=r"train: 100 rows \(400 bytes\) .*TMPDIR") as caught:
        spool.add([torch.ones(100)])
    assert caught.value.errno == errno.ENOSPC


class Free:
    free = 1000


def test_the_disk_is_looked_at_again_as_the_file_grows(monkeypatch):
    looks = []

    class Enough:
        free = 2**40

    monkeypatch.setattr(spooling, "KEPT_BYTES", 0)
    monkeypatch.setattr(spooling, "CHECKED_BYTES", 1000)
    monkeypatch.setattr(spooling.shutil, "disk_usage", lambda folder: looks.append(folder) or Enough)
    collected([[torch.ones(100)]] * 20)  # 400 bytes each
    assert 5 <= len(looks) <= 8


def test_a_write_that_fails_says_where_and_what_to_do(monkeypatch):
    class Full:
        def write(self, block):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spooling, "KEPT_BYTES", 0)
    monkeypatch.setattr(spooling.tempfile, "TemporaryFile", lambda **options: Full())
    with pytest.raises(OSError, match=r"No space left on device\. Let TMPDIR name a folder") as caught:
        collected([[torch.ones(3)]])
    assert caught.value.errno == errno.ENOSPC


def test_a_temporary_folder_that_cannot_be_written_is_named(monkeypatch):
    def refuse(**options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(spooling, "KEPT_BYTES", 0)
    monkeypatch.setattr(spooling.tempfile, "TemporaryFile", refuse)
    with pytest.raises(PermissionError, match=tempfile.gettempdir()):
        collected([[torch.ones(3)]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_table_on_the_disk_is_written_and_read_like_any_other(temporary, dtype):
    found, rows = mapped_rows(5, some(dtype, 2, 3)), some(dtype, 5, 3)
    for place in (3, 0):
        found[place : place + 3].copy_(rows[place : place + 3])
    assert torch.equal(found, rows)
    assert found.dtype == dtype
    assert os.listdir(temporary) == []


def test_a_table_for_which_the_disk_has_no_room_is_refused_before_it_is_written(monkeypatch):
    def full(file, start, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        mapped_rows(5, torch.ones(2, 3))
