"""Foreign pictures, as a user has them: alone, or with things that the detector may not know."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .adapter import Detector
from .pictures import LISTS, Pictures
from .scenes import as_scenes
from .things import Things


def foreign_scenes(
    given: Any, detector: Detector, *, name: str, size: tuple[int, int] | None = None
) -> tuple[Pictures, list[Things] | None]:
    """Pictures and their things, None where they came alone; `given` as for `as_scenes`, or pictures only: a
    tensor, a list, or a Dataset or DataLoader of them. Things may have any label."""
    if isinstance(given, DataLoader):
        batches = [_alone(batch) for batch in given]
        if all(isinstance(batch, Tensor) for batch in batches):
            given = [image for batch in batches for image in batch]
        elif all(isinstance(batch, LISTS) and len(batch) == 2 for batch in batches):
            given = tuple([one for batch in batches for one in batch[part]] for part in (0, 1))
    elif isinstance(given, Dataset):
        rows = [_alone(given[i]) for i in range(len(given))]  # type: ignore[arg-type]
        if all(isinstance(row, Tensor) for row in rows):
            given = rows
        elif all(isinstance(row, LISTS) and len(row) == 2 for row in rows):
            given = [row[0] for row in rows], [row[1] for row in rows]
    if isinstance(given, Tensor):
        given = list(given if given.ndim == 4 else given[None])
    if not isinstance(given, LISTS) or not all(isinstance(one, Tensor) and one.ndim == 3 for one in given):
        return as_scenes(given, detector, name=name, size=size, unknown=True)
    nothing = Things(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    images, _ = as_scenes((list(given), [nothing] * len(given)), detector, name=name, size=size)
    return images, None


def _alone(row: Any) -> Any:
    """What a Dataset of pictures only gives, which may wrap each in a list of one."""
    return row[0] if isinstance(row, LISTS) and len(row) == 1 else row
