"""Fashion-MNIST and MNIST, read from below ``TRUSTGP_DATA`` or ``root=``, with rotation and noise."""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from .files import Folder, read_npz

IMAGE_SETS = {"fashion_mnist": "Fashion-MNIST", "mnist": "MNIST"}
"""Usual names of the sets, by the name of their folder."""
_ORIGINS = {
    "fashion_mnist": "https://github.com/zalandoresearch/fashion-mnist, data/fashion",
    "mnist": "https://storage.googleapis.com/cvdf-datasets/mnist/",
}
_FILES = {"train": "train", "test": "t10k"}


@dataclass(frozen=True)
class Images:
    """Grey images and their labels."""

    pixels: Tensor  # from 0 to 255, uint8, [n, height, width]
    labels: Tensor  # class numbers from 0, int64, [n]


def load_images(name: str, part: str, root: str | Path | None = None) -> Images:
    """Read one part of a set of images.

    The folder ``name`` holds the four files of the source, such as ``train-images-idx3-ubyte``, packed
    (``.gz``) or not; or one NumPy archive ``name.npz`` with x_train, y_train, x_test and y_test. The set is
    "fashion_mnist" or "mnist", the part "train" (60,000 images in the source) or "test" (10,000).
    """
    for key, value, allowed in (("name", name, _ORIGINS), ("part", part, _FILES)):
        if value not in allowed:
            raise ValueError(f"{key}={value!r} is unknown; choose one of {tuple(allowed)}.")
    folder = Folder(name, _ORIGINS[name])
    if folder.has(f"{name}.npz", root):
        pixels, labels = _read_archive(folder.path(f"{name}.npz", root), part)
    else:
        files = {f"{_FILES[part]}-images-idx3-ubyte": 3, f"{_FILES[part]}-labels-idx1-ubyte": 1}
        packed = {file: f"{file}.gz" if folder.has(f"{file}.gz", root) else file for file in files}
        pixels, labels = (read_idx(folder.path(packed[file], root), n) for file, n in files.items())
    if len(pixels) != len(labels) or len(pixels) == 0:
        given = f"{name}, {part}: {len(pixels)} images and {len(labels)} labels"
        raise ValueError(f"{given}; as many of each are needed, at least one. Fetch the files again.")
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))


def read_idx(path: Path, dims: int) -> np.ndarray:
    """Array of an idx file (compressed if .gz): two zeros, type, number of dimensions, sizes, bytes."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if content[:4] != bytes([0, 0, 8, dims]):  # 8: bytes
            raise ValueError(f"it does not begin with 000008{dims:02x}, an idx file of {dims} dimensions")
        header = 4 + 4 * dims
        shape = struct.unpack(f">{dims}I", content[4:header])
        return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()
    except (EOFError, gzip.BadGzipFile, zlib.error, struct.error, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again from its source.") from error


def _read_archive(path: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    arrays = read_npz(path)
    missing = [key for key in (f"x_{part}", f"y_{part}") if key not in arrays]
    if missing:
        raise ValueError(f"{path} holds {sorted(arrays)}, not {missing}; is it the archive of that name?")
    pixels, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or labels.ndim != 1 or labels.dtype.kind not in "iu":
        given = f"images are {pixels.dtype} {pixels.shape} and labels {labels.dtype} {labels.shape}"
        raise ValueError(f"{path}: {given}; uint8 [n, height, width] and whole numbers [n] are expected.")
    return pixels, labels


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Images [n, channels, height, width] rotated anticlockwise, interpolated, padded with 0."""
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
    """Images [n, channels, height, width] plus Gaussian noise, clamped to [0, 1], equal on every device."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed)).to(images)
    return (images + std * noise).clamp(0.0, 1.0)
