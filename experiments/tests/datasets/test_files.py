import numpy as np
import pytest
from scipy.io import savemat

from trustgp_experiments.datasets.files import Folder, read_mat


def test_what_is_missing_is_named_with_its_address(tmp_path, monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    place = Folder("arm", "https://example.org/arm")
    (tmp_path / "arm" / "part").mkdir(parents=True)
    (tmp_path / "arm" / "part" / "rows.txt").touch()
    for root in (tmp_path, None):
        with pytest.raises(FileNotFoundError, match=r"none\.txt.*TRUSTGP_DATA.*https://example\.org/arm"):
            place.path("none.txt", root)
        assert not place.has("none.txt", root)
    assert place.path("part/rows.txt", tmp_path).is_file()


def test_a_matrix_of_another_form_is_refused_with_its_name(tmp_path):
    for key, rows, fault in (
        ("other", np.ones((3, 2)), r"\['sarcos'\], not 'other'"),
        ("sarcos", np.ones((3, 28)), "rows of 2 numbers"),
        ("sarcos", np.full((3, 2), np.nan), "not finite"),
    ):
        savemat(tmp_path / "a.mat", {"sarcos": rows})
        with pytest.raises(ValueError, match=rf"a\.mat.*{fault}"):
            read_mat(tmp_path / "a.mat", key, 2)
