"""Sets of images: read from small made files of either kind."""

import gzip
import struct

import numpy as np
import pytest
import torch

from trustgp_experiments.datasets import load_images
from trustgp_experiments.datasets.images import read_idx


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def made(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(seed)
    return numbers.integers(0, 256, (n, 28, 28), np.uint8), numbers.integers(0, 10, n, np.uint8)


def write_source(root, name="fashion_mnist", *, packed=True):
    """The four files of the source; 12 images train, 5 test."""
    folder = root / name
    folder.mkdir(exist_ok=True)
    parts = {"train": made(12), "t10k": made(5, seed=1)}
    for part, (pixels, labels) in parts.items():
        for kind, array in ((f"{part}-images-idx3-ubyte", pixels), (f"{part}-labels-idx1-ubyte", labels)):
            content = idx(array)
            (folder / (kind + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    return folder


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("part", "rows"), [("train", made(12)), ("test", made(5, seed=1))])
def test_the_files_of_the_source_are_read_packed_or_not(tmp_path, packed, part, rows):
    write_source(tmp_path, packed=packed)
    found = load_images("fashion_mnist", part, tmp_path)
    assert torch.equal(found.pixels, torch.from_numpy(rows[0]))
    assert found.pixels.dtype == torch.uint8
    assert torch.equal(found.labels, torch.from_numpy(rows[1]).long())
    assert len(found) == len(rows[1])


def test_an_archive_is_read_alike(tmp_path):
    (x, y), (tx, ty) = made(12), made(5, seed=1)
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=x, y_train=y, x_test=tx, y_test=ty)
    write_source(tmp_path, packed=True)
    for part in ("train", "test"):
        one, other = load_images("mnist", part, tmp_path), load_images("fashion_mnist", part, tmp_path)
        assert torch.equal(one.pixels, other.pixels)
        assert torch.equal(one.labels, other.labels)


def test_unknown_names_and_parts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'cifar' is unknown; choose one of"):
        load_images("cifar", "train", tmp_path)
    with pytest.raises(ValueError, match="part='dev'"):
        load_images("mnist", "dev", tmp_path)


def test_a_file_cut_anywhere_or_too_long_is_refused(tmp_path):
    whole = idx(made(2)[0])
    file = tmp_path / "some-images-idx3-ubyte"
    for length in (0, 3, 4, 9, 16, 200, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="some-images"):
            read_idx(file, 3)
    file.write_bytes(whole + b"0")
    with pytest.raises(ValueError, match="does not hold"):
        read_idx(file, 3)


def test_as_many_labels_as_images_are_needed(tmp_path):
    folder = write_source(tmp_path, packed=False)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(made(11)[1]))
    with pytest.raises(ValueError, match="12 images and 11 labels"):
        load_images("fashion_mnist", "train", tmp_path)


def test_an_archive_with_other_contents_is_refused(tmp_path):
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=np.zeros((3, 784)), y_train=np.zeros(3, int))
    with pytest.raises(ValueError, match="float64"):
        load_images("mnist", "train", tmp_path)
    with pytest.raises(ValueError, match="not \\['x_test', 'y_test'\\]"):
        load_images("mnist", "test", tmp_path)


@pytest.mark.parametrize("name", ["fashion_mnist", "mnist"])
def test_the_real_sets_are_whole(data_root, name):
    if not (data_root / name).is_dir():
        pytest.skip(f"no {name} here")
    for part, n in (("train", 60_000), ("test", 10_000)):
        found = load_images(name, part, data_root)
        assert found.pixels.shape == (n, 28, 28)
        assert found.labels.unique().tolist() == list(range(10))
