import hashlib

import numpy as np
import pytest
from scipy.io import savemat

from trustgp_experiments.datasets.files import MANIFEST, Folder, read_mat


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


def test_a_matrix_of_another_form_is_refused_with_its_name(tmp_path):
    for key, rows, fault in (
        ("other", np.ones((3, 2)), r"\['sarcos'\], not 'other'"),
        ("sarcos", np.ones((3, 28)), "rows of 2 numbers"),
        ("sarcos", np.full((3, 2), np.nan), "not finite"),
    ):
        savemat(tmp_path / "a.mat", {"sarcos": rows})
        with pytest.raises(ValueError, match=rf"a\.mat.*{fault}"):
            read_mat(tmp_path / "a.mat", key, 2)
