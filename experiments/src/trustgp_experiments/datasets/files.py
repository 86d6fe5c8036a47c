"""Paths and readers of the recordings' files, below ``TRUSTGP_DATA`` or ``root=``."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VARIABLE = "TRUSTGP_DATA"


@dataclass(frozen=True)
class Folder:
    """A folder of recordings below the root."""

    name: str
    origin: str  # where its files come from, for the message when they are not there

    def has(self, file: str, root: str | Path | None) -> bool:
        """Whether the file exists; also False if no root is known."""
        return (place := _root(root)) is not None and (place / self.name / file).is_file()

    def path(self, file: str, root: str | Path | None) -> Path:
        """Path of a file in this folder; raise FileNotFoundError, with its source, if it is missing."""
        place = _root(root)
        if place is None or not self.has(file, root):
            fault = f"is needed and {VARIABLE} is not set" if place is None else f"does not exist in {place}"
            raise FileNotFoundError(
                f"{self.name}/{file} {fault}; set {VARIABLE} (or pass root=) to the folder that holds "
                f"{self.name}/{file}. The data comes from {self.origin}."
            )
        return place / self.name / file


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Arrays of a NumPy archive, by name."""
    with np.load(path) as data:
        return dict(data)


def read_mat(path: Path, key: str, columns: int) -> np.ndarray:
    """One matrix of a MATLAB file up to version 7 (7.3 is HDF5), by its key, float64, shape [n, columns]."""
    from scipy.io import loadmat  # comes with scikit-learn, and is slow to import

    data = loadmat(path)
    if key not in data:
        names = sorted(name for name in data if not name.startswith("__"))
        raise ValueError(f"{path} holds {names}, not {key!r}; is it the file of that name from its source?")
    rows = np.asarray(data[key], dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != columns or len(rows) == 0:
        raise ValueError(f"{path} has the shape {rows.shape}; rows of {columns} numbers are expected.")
    if not np.isfinite(rows).all():
        raise ValueError(f"{path} holds values that are not finite; fetch it again from its source.")
    return rows


def _root(root: str | Path | None) -> Path | None:
    place = os.environ.get(VARIABLE) if root is None else root
    return Path(place) if place else None
