"""Promise 1: an artifact cut at any byte is one `ArtifactError`, never a partial object."""

from __future__ import annotations

import os
import shutil

import pytest

import trustgp
from trustgp.state.summary import summarise


def test_a_file_cut_at_any_byte_is_refused(saved, tmp_path):
    path = tmp_path / "cut.trustgp"
    shutil.copy(saved.path, path)
    size = path.stat().st_size
    assert size < 30_000  # small enough to try every byte
    accepted = []
    for length in range(size - 1, -1, -1):
        os.truncate(path, length)
        try:
            trustgp.load(path, saved.network)
        except trustgp.ArtifactError:
            continue
        accepted.append(length)
    assert accepted == []


def test_the_uncut_file_loads(saved):
    assert trustgp.load(saved.path, saved.network).num_experts == 3


def test_bytes_after_the_end_are_refused(saved, tmp_path):
    path = tmp_path / "long.trustgp"
    for extra in (b"\0", b"\0" * 8, saved.path.read_bytes()):
        path.write_bytes(saved.path.read_bytes() + extra)
        with pytest.raises(trustgp.ArtifactError, match=r"long\.trustgp"):
            trustgp.load(path, saved.network)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, 4000])
def test_inspection_refuses_a_cut_file_too(saved, tmp_path, length):
    path = tmp_path / "cut.trustgp"
    path.write_bytes(saved.path.read_bytes()[:length])
    with pytest.raises(trustgp.ArtifactError):
        summarise(path)
