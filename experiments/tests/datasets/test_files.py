import hashlib

import numpy as np
import pytest
from scipy.io import savemat

from trustgp_experiments.datasets.files import MANIFEST, Folder, read_mat, read_text


def test_what_is_missing_is_named_with_its_address_and_what_a_manifest_lists_is_checked(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    place = Folder("arm", "https://example.org/arm")
    (tmp_path / "arm" / "part").mkdir(parents=True)
    (tmp_path / "arm" / "part" / "rows.txt").touch()
    for root in (tmp_path, None):
        with pytest.raises(
            FileNotFoundError, match=r"none\.txt.*TRUSTGP_DATA.*https://example\.org/arm.*SHA256"
        ):
            place.path("none.txt", root)
        assert not place.has("none.txt", root)
    manifest = tmp_path / "arm" / MANIFEST
    manifest.write_text(f"{'0' * 64}  other.txt\n{hashlib.sha256().hexdigest()}  part/rows.txt\n")
    assert place.path("part/rows.txt", tmp_path).is_file()
    manifest.write_text(f"{'0' * 64} *part/rows.txt\n")  # the star of sha256sum --binary
    with pytest.raises(ValueError, match=r"rows\.txt has SHA-256 .* expected 0000"):
        place.path("part/rows.txt", tmp_path)


def test_tables_of_another_form_are_refused_with_their_name(tmp_path):
    file = tmp_path / "rows.txt"
    file.write_text("# q dq\n1\t2\n\n 3 4")
    assert read_text(file, 2).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    faults = {"1 2 3\n": "rows of 2 numbers", "a b\n": "not a table", "1 nan\n": "not finite"}
    for text, fault in faults.items():
        file.write_text(text)
        with pytest.raises(ValueError, match=rf"rows\.txt.*{fault}"):
            read_text(file, 2)
    savemat(tmp_path / "a.mat", {"sarcos": np.ones((3, 2))})
    for key, columns, fault in (
        ("other", 2, r"\['sarcos'\], not 'other'"),
        ("sarcos", 28, "rows of 28 numbers"),
    ):
        with pytest.raises(ValueError, match=fault):
            read_mat(tmp_path / "a.mat", key, columns)
