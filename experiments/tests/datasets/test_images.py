"""Sets of images: read from small made files of either kind, turned, and made noisy."""

import gzip
import math
import struct

import numpy as np
import pytest
import torch

from trustgp_experiments.datasets import add_noise, load_images, rotate
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


def test_the_files_of_the_source_and_an_archive_are_read_alike(tmp_path):
    (x, y), (tx, ty) = made(12), made(5, seed=1)
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=x, y_train=y, x_test=tx, y_test=ty)
    for packed in (False, True):  # packed ones are preferred
        write_source(tmp_path, packed=packed)
        for part, pixels, labels in (("train", x, y), ("test", tx, ty)):
            for images in (load_images(name, part, tmp_path) for name in ("mnist", "fashion_mnist")):
                assert torch.equal(images.pixels, torch.from_numpy(pixels))
                assert torch.equal(images.labels, torch.from_numpy(labels).long())


def test_a_file_cut_anywhere_or_too_long_is_refused(tmp_path):
    whole = idx(made(2)[0])
    file = tmp_path / "made-images-idx3-ubyte"
    for content in (whole + b"0", *(whole[:length] for length in (0, 3, 4, 9, 16, 200, len(whole) - 1))):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"made-images.*damaged"):
            read_idx(file, 3)


def test_what_is_not_such_a_set_is_refused(tmp_path):
    folder = write_source(tmp_path, packed=False)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(made(11)[1]))
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=np.zeros((3, 784)), y_train=np.zeros(3, int))
    for name, part, match in (
        ("cifar", "train", "'cifar' is unknown; choose one of"),
        ("mnist", "dev", "part='dev'"),
        ("fashion_mnist", "train", "12 images and 11 labels"),
        ("mnist", "train", "float64"),
        ("mnist", "test", r"not \['x_test', 'y_test'\]"),
    ):
        with pytest.raises(ValueError, match=match):
            load_images(name, part, tmp_path)


@pytest.mark.parametrize("name", ["fashion_mnist", "mnist"])
def test_the_real_sets_are_whole(data_root, name):
    if not (data_root / name).is_dir():
        pytest.skip(f"no {name} here")
    for part, n in (("train", 60_000), ("test", 10_000)):
        found = load_images(name, part, data_root)
        assert found.pixels.shape == (n, 28, 28)
        assert found.labels.unique().tolist() == list(range(10))


def test_every_pixel_is_interpolated_from_where_it_came(generator):
    images = torch.rand(3, 2, 9, 9, generator=generator, dtype=torch.float64)
    degrees, size = 25.0, images.shape[-1]
    angle, centre = math.radians(degrees), (size - 1) / 2
    expected = torch.zeros_like(images)
    for row in range(size):
        for column in range(size):
            # against the clock with rows growing downward
            x, y = column - centre, row - centre
            from_x = math.cos(angle) * x - math.sin(angle) * y + centre
            from_y = math.sin(angle) * x + math.cos(angle) * y + centre
            for i in (math.floor(from_y), math.floor(from_y) + 1):
                for j in (math.floor(from_x), math.floor(from_x) + 1):
                    if 0 <= i < size and 0 <= j < size:
                        share = (1 - abs(from_y - i)) * (1 - abs(from_x - j))
                        expected[:, :, row, column] += share * images[:, :, i, j]
    torch.testing.assert_close(rotate(images, degrees), expected, rtol=0, atol=1e-12)


def test_noise_has_its_std_is_cut_to_the_range_and_follows_its_seed():
    before, grey = torch.get_rng_state(), torch.full((50, 1, 20, 20), 0.5)
    noisy = add_noise(grey, 0.1, seed=3)
    assert float((noisy - grey).std()) == pytest.approx(0.1, rel=0.02)
    strong = add_noise(grey, 2.0)
    assert (float(strong.min()), float(strong.max())) == (0.0, 1.0)
    assert torch.equal(noisy, add_noise(grey, 0.1, seed=3))
    assert not torch.equal(noisy, add_noise(grey, 0.1, seed=4))
    assert torch.equal(torch.get_rng_state(), before)
