"""Photographs with boxes: BCCD's blood cells, and raccoons, of which a detector of cells knows nothing.

Neither is part of this package; the folder that holds them is named by ``TRUSTGP_DATA`` or ``root=``.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .files import Folder
from .scenes import Scenes

_FOLDERS = {
    "bccd": Folder("detection_bccd", "https://github.com/Shenggan/BCCD_Dataset"),
    "raccoon": Folder("detection_raccoon", "https://github.com/experiencor/raccoon_dataset"),
}
_KINDS = {"bccd": ("RBC", "WBC", "Platelets"), "raccoon": ("raccoon",)}
_PARTS = {"bccd": ("train", "val", "trainval", "test"), "raccoon": ("all",)}
LEAST = 1.0  # pixels of a box's shorter side, after the picture was made smaller


@dataclass(frozen=True)
class Photographs(Scenes):
    """Real pictures and what is in them; labels are indices into `kinds`."""

    kinds: tuple[str, ...]  # names of the classes
    dropped: int  # boxes of the source that were left out, since nothing of them lies in the picture


def load_photographs(
    name: str, part: str, root: str | Path | None = None, *, size: tuple[int, int] = (144, 192)
) -> Photographs:
    """Read one part of a set of photographs, all brought to one size.

    The folder holds ``images/``, ``annotations.json`` (a list of {"file", "w", "h", "boxes": [[kind, left,
    top, right, bottom], ...]}) and, of cells, the lists ``train.txt``, ``val.txt``, ``trainval.txt`` and
    ``test.txt``. Where it holds a file SHA256SUMS, what that lists is checked before it is read. Parts of
    "bccd" are "train" (205 pictures in the source), "val" (87), "trainval" and "test" (72); of "raccoon"
    "all" (200). Pictures are stretched to a size, height and width.
    """
    if name not in _FOLDERS:
        raise ValueError(f"name={name!r} is unknown; choose one of {tuple(_FOLDERS)}.")
    if part not in _PARTS[name]:
        raise ValueError(f"part={part!r} is unknown; choose one of {_PARTS[name]}.")
    if min(size) < 1:
        raise ValueError(f"size={size}; height and width must be at least 1.")
    folder = _FOLDERS[name]
    entries = _entries(folder.path("annotations.json", root))
    if part != "all":
        listed = folder.path(f"{part}.txt", root).read_text().split()
        missing = [one for one in listed if f"{one}.jpg" not in entries]
        if missing:
            raise ValueError(f"{name}, {part}: {missing[0]} is listed, but annotations.json has it not.")
        entries = {f"{one}.jpg": entries[f"{one}.jpg"] for one in listed}
    images, boxes, labels, dropped = [], [], [], 0
    for file, entry in entries.items():
        images.append(_picture(folder.path(f"images/{file}", root), size))
        found, kinds = _boxes(entry, _KINDS[name], size)
        whole = (found[:, 2:] - found[:, :2]).amin(dim=1) >= LEAST
        dropped += int((~whole).sum())
        boxes.append(found[whole])
        labels.append(kinds[whole])
    pictures = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    return Photographs(pictures, tuple(boxes), tuple(labels), _KINDS[name], dropped)


def _entries(path: Path) -> dict[str, dict]:
    try:
        found = {entry["file"]: entry for entry in json.loads(path.read_text())}
    except (json.JSONDecodeError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no list of pictures ({error}); fetch it again.") from error
    if not found:
        raise ValueError(f"{path} lists no picture.")
    return found


def _picture(path: Path, size: tuple[int, int]) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((size[1], size[0]), Image.Resampling.BOX))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error}); fetch it again from its source.") from error


def _boxes(entry: dict, kinds: tuple[str, ...], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """In pixels of the new size, within the picture."""
    unknown = [box[0] for box in entry["boxes"] if box[0] not in kinds]
    if unknown:
        raise ValueError(f"{entry['file']} shows a {unknown[0]!r}; known are {kinds}.")
    rows = torch.tensor([box[1:] for box in entry["boxes"]], dtype=torch.float32).reshape(-1, 4)
    scale = torch.tensor([size[1] / entry["w"], size[0] / entry["h"]] * 2)
    edge = torch.tensor([size[1], size[0]] * 2, dtype=torch.float32)
    labels = torch.tensor([kinds.index(box[0]) for box in entry["boxes"]], dtype=torch.int64)
    return torch.minimum((rows * scale).clamp_min(0.0), edge), labels
