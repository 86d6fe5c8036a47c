import hashlib

import numpy as np
import pytest

from trustgp_experiments.datasets.files import MANIFEST, Folder, read_mat, read_text

PLACE = Folder("arm", "https://example.org/arm")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "arm" / "part").mkdir(parents=True)
    (tmp_path / "arm" / "part" / "rows.txt").write_text("1 2\n3 4\n")
    return tmp_path


def sums(root, **names):
    lines = [f"{digest}  {name}" for name, digest in names.items()]
    (root / "arm" / MANIFEST).write_text("\n".join(lines) + "\n")


def digest(root):
    return hashlib.sha256((root / "arm" / "part" / "rows.txt").read_bytes()).hexdigest()


def test_a_file_that_the_manifest_lists_is_checked(root):
    sums(root, **{"other.txt": "0" * 64, "part/rows.txt": digest(root)})
    assert PLACE.path("part/rows.txt", root).name == "rows.txt"
    sums(root, **{"*part/rows.txt": "0" * 64})  # the star of sha256sum --binary
    with pytest.raises(ValueError, match=r"rows\.txt has SHA-256 .* expected 0000"):
        PLACE.path("part/rows.txt", root)


def test_what_is_missing_is_named_with_its_address_and_how_it_is_checked(root, monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    for where in (root, None):
        with pytest.raises(
            FileNotFoundError, match=r"none\.txt.*TRUSTGP_DATA.*https://example\.org/arm.*SHA256"
        ):
            PLACE.path("none.txt", where)
    assert not PLACE.has("none.txt", root)
    assert not PLACE.has("none.txt", None)
    assert PLACE.has("part/rows.txt", root)


@pytest.mark.parametrize("text", ["1 2\n3 4\n", "1,2\n3,4\n", "# q dq\n1\t2\n3\t4\n", " 1  2 \n\n 3 4"])
def test_text_may_be_separated_by_blanks_or_commas(tmp_path, text):
    (tmp_path / "rows.txt").write_text(text)
    assert read_text(tmp_path / "rows.txt", 2).tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1 2 3\n", "rows of 2 numbers"),
        ("a b\n", "not a table"),
        ("1 nan\n", "not finite"),
        ("1 2\n3\n", "not a"),
    ],
)
def test_text_of_another_form_is_refused_with_its_name(tmp_path, text, fault):
    (tmp_path / "rows.txt").write_text(text)
    with pytest.raises(ValueError, match=rf"rows\.txt.*{fault}"):
        read_text(tmp_path / "rows.txt", 2)


def test_a_matrix_of_another_name_or_form_is_refused(tmp_path):
    savemat = pytest.importorskip("scipy.io").savemat
    savemat(tmp_path / "a.mat", {"sarcos": np.ones((3, 2))})
    assert read_mat(tmp_path / "a.mat", "sarcos", 2).shape == (3, 2)
    with pytest.raises(ValueError, match=r"holds \['sarcos'\], not 'other'"):
        read_mat(tmp_path / "a.mat", "other", 2)
    with pytest.raises(ValueError, match="rows of 28 numbers"):
        read_mat(tmp_path / "a.mat", "sarcos", 28)
