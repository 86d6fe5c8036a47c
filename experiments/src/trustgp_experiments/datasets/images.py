"""Fashion-MNIST and MNIST, read from below ``TRUSTGP_DATA`` or ``root=``, turned, and made noisy."""

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from .files import Folder, read_npz

IMAGE_SETS = {"fashion_mnist": "Fashion-MNIST", "mnist": "MNIST"}
"""By the name of their folder, what people call them."""
_ORIGINS = {
    "fashion_mnist": "https://github.com/zalandoresearch/fashion-mnist, data/fashion",
    "mnist": "https://storage.googleapis.com/cvdf-datasets/mnist/",
}
_FILES = {"train": "train", "test": "t10k"}
_BYTES = 0x08  # the kind of numbers in an idx file, and the only one of these


@dataclass(frozen=True)
class Images:
    """Grey images and what they show."""

    pixels: Tensor  # from 0 to 255, uint8, [n, height, width]
    labels: Tensor  # class numbers from 0, int64, [n]

    def __len__(self) -> int:
        return len(self.labels)


def load_images(name: str, part: str, root: str | Path | None = None) -> Images:
    """Read one part of a set of images.

    The folder ``name`` holds the four files of the source, such as ``train-images-idx3-ubyte``, packed
    (``.gz``) or not; or one NumPy archive ``name.npz`` with x_train, y_train, x_test and y_test. Where it
    holds a file SHA256SUMS, what that lists is checked before it is read. The set is "fashion_mnist" or
    "mnist", the part "train" (60,000 images in the source) or "test" (10,000).
    """
    if name not in _ORIGINS:
        raise ValueError(f"name={name!r} is unknown; choose one of {tuple(_ORIGINS)}.")
    if part not in _FILES:
        raise ValueError(f"part={part!r} is unknown; choose 'train' or 'test'.")
    folder = Folder(name, _ORIGINS[name])
    if folder.has(f"{name}.npz", root):
        pixels, labels = _read_archive(folder.path(f"{name}.npz", root), part)
    else:
        files = {f"{_FILES[part]}-images-idx3-ubyte": 3, f"{_FILES[part]}-labels-idx1-ubyte": 1}
        packed = {file: f"{file}.gz" if folder.has(f"{file}.gz", root) else file for file in files}
        pixels, labels = (read_idx(folder.path(packed[file], root), n) for file, n in files.items())
    if len(pixels) != len(labels) or len(pixels) == 0:
        raise ValueError(
            f"{name}, {part}: {len(pixels)} images and {len(labels)} labels; as many of each are needed, "
            "at least one. Fetch the files again from their source."
        )
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))


def read_idx(path: Path, dims: int) -> np.ndarray:
    """The array of an idx file, packed if .gz: two zeros, kind, number of dimensions, sizes, the bytes."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
        try:
            start = file.read(4)
            if start != bytes([0, 0, _BYTES, dims]):
                raise ValueError(
                    f"{path} begins with {start.hex()}; an idx file of bytes with {dims} dimensions is "
                    f"expected, which begins with 000008{dims:02x}."
                )
            header = file.read(4 * dims)
            shape = struct.unpack(f">{dims}I", header) if len(header) == 4 * dims else ()
            count = int(np.prod(shape, dtype=np.int64)) if shape else -1
            body = file.read(count + 1) if count >= 0 else b""  # no more than it announces
        except (EOFError, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is damaged ({error}); fetch it again from its source.") from error
    if len(body) != count:
        raise ValueError(f"{path} does not hold the {shape} numbers it announces; fetch it again.")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape).copy()


def _read_archive(path: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    arrays = read_npz(path)
    missing = [key for key in (f"x_{part}", f"y_{part}") if key not in arrays]
    if missing:
        raise ValueError(f"{path} holds {sorted(arrays)}, not {missing}; is it the archive of that name?")
    pixels, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: images are {pixels.dtype} {pixels.shape} and labels {labels.dtype} {labels.shape}; "
            "uint8 [n, height, width] and whole numbers [n] are expected."
        )
    return pixels, labels


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Images [n, channels, height, width] turned against the clock, interpolated; 0 comes in from outside."""
    _check(images)
    angle = math.radians(degrees)
    height, width = images.shape[2:]
    # where each pixel comes from, in coordinates from -1 to 1 along either side
    turn = [
        [math.cos(angle), -math.sin(angle) * height / width, 0.0],
        [math.sin(angle) * width / height, math.cos(angle), 0.0],
    ]
    theta = torch.tensor(turn, dtype=images.dtype, device=images.device)
    grid = affine_grid(theta[None], [1, 1, height, width], align_corners=False)
    return grid_sample(images, grid.expand(len(images), -1, -1, -1), align_corners=False)


def add_noise(images: Tensor, std: float, *, seed: int = 0) -> Tensor:
    """The images [n, channels, height, width] plus Gaussian noise, cut to [0, 1], alike on every device."""
    _check(images)
    if std < 0:
        raise ValueError(f"std={std}; it must not be negative.")
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(images.shape, generator=generator).to(images)
    return (images + std * noise).clamp(0.0, 1.0)


def uniform_noise(n: int, *, seed: int = 0) -> Tensor:
    """Images of nothing: every pixel uniform on [0, 1], float32, shape [n, 1, 28, 28]."""
    return torch.rand(n, 1, 28, 28, generator=torch.Generator().manual_seed(seed))


def _check(images: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(
            f"images are {images.dtype} of shape {tuple(images.shape)}; floating-point numbers of shape "
            "[n, channels, height, width] are needed."
        )
