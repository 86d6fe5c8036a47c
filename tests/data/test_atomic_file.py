"""New files have the mode that any other program would give them."""

import os
import stat

import pytest

from trustgp.data.atomic_file import atomic_file


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_a_new_file_has_the_usual_mode(tmp_path, mask):
    before = os.umask(mask)
    try:
        with atomic_file(tmp_path / "new") as temporary:
            temporary.write_text("whole")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~mask
    assert [one.name for one in tmp_path.iterdir()] == ["new"]
