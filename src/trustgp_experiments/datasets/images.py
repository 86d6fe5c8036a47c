"""How are sets of small grey images read: Fashion-MNIST, and MNIST, the classic other one?

Neither is part of this package; the folder that holds them is named by ``TRUSTGP_DATA`` or ``root=``.
"""

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .files import Folder, read_npz

_FOLDERS = {
    "fashion_mnist": Folder(
        "fashion_mnist", "https://github.com/zalandoresearch/fashion-mnist, data/fashion"
    ),
    "mnist": Folder("mnist", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
}
IMAGE_NAMES = tuple(_FOLDERS)
_FILES = {"train": "train", "test": "t10k"}
_BYTES = 0x08  # the kind of numbers in an idx file, and the only one of these


@dataclass(frozen=True)
class Images:
    """Grey images and what they show.

    Args:
        pixels: From 0 to 255, uint8, shape [n, height, width].
        labels: Class numbers from 0, int64, shape [n].
    """

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def load_images(name: str, part: str, root: str | Path | None = None) -> Images:
    """Read one part of a set of images.

    The folder ``name`` holds the four files of the source, such as ``train-images-idx3-ubyte``, packed
    (``.gz``) or not; or one NumPy archive ``name.npz`` with x_train, y_train, x_test and y_test. Where it
    holds a file SHA256SUMS, what that lists is checked before it is read.

    Args:
        name: "fashion_mnist" or "mnist".
        part: "train" (60,000 images in the source) or "test" (10,000).
        root: Folder of the data; the environment variable ``TRUSTGP_DATA`` when None.
    """
    if name not in _FOLDERS:
        raise ValueError(f"name={name!r} is unknown; choose one of {IMAGE_NAMES}.")
    if part not in _FILES:
        raise ValueError(f"part={part!r} is unknown; choose 'train' or 'test'.")
    folder = _FOLDERS[name]
    if folder.has(f"{name}.npz", root):
        pixels, labels = _read_archive(folder.path(f"{name}.npz", root), part)
    else:
        pixels = read_idx(_packed_or_not(folder, f"{_FILES[part]}-images-idx3-ubyte", root), 3)
        labels = read_idx(_packed_or_not(folder, f"{_FILES[part]}-labels-idx1-ubyte", root), 1)
    if len(pixels) != len(labels) or len(pixels) == 0:
        raise ValueError(
            f"{name}, {part}: {len(pixels)} images and {len(labels)} labels; as many of each are needed, "
            "at least one. Fetch the files again from their source."
        )
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))


def read_idx(path: Path, dims: int) -> np.ndarray:
    """The array of an idx file, uint8: two zeros, the kind, the number of dimensions, their sizes, the bytes.

    Args:
        path: Packed with gzip where its name ends in ``.gz``.
        dims: It must have.
    """
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


def _packed_or_not(folder: Folder, file: str, root: str | Path | None) -> Path:
    return folder.path(f"{file}.gz" if folder.has(f"{file}.gz", root) else file, root)
