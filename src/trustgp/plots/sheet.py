"""A contact sheet: many pictures with what was found in them, the most novel first."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..executors.progress import reporting
from ..likelihoods.detections import Detections
from .boxes import annotate, as_picture, colour_of, draw_picture, lay_out, limit_of
from .style import INK, figure, require_matplotlib

KINDS = (".png", ".jpg", ".jpeg")
ORDERS = ("novelty", "given")
PICTURES = 16  # that go through the detector at a time
NAMED = 5  # files that a warning names
INCHES = 2.6  # of a picture


def contact_sheet(
    folder_or_images: Any,
    model: Any,
    *,
    columns: int = 4,
    size: tuple[int, int] | None = None,
    prepare: Callable[[Tensor], Tensor] | None = None,
    names: Sequence[str] | None = None,
    out: str | Path | None = None,
    most: int = 48,
    order: str = "novelty",
    threshold: float | None = None,
    level: float = 0.95,
    progress: bool = True,
) -> Any:
    """All pictures of a folder with what a detector finds in them, on one sheet, a matplotlib figure.

    Args:
        folder_or_images: A folder with PNG and JPEG files, or pictures: a list, or [n, 3, h, w], as
            `plots.detections` takes them. Files that cannot be read are named in a warning and left out.
        model: A `DetectionModel`, or anything else with a `size` and a `predict` that gives `Detections`.
        columns: Pictures in a row.
        size: Height and width that pictures are stretched to; None: those that the model was fitted on.
        prepare: From pictures, uint8 [n, 3, h, w], to what the detector takes; None: divided by 255.
        names, threshold, level: As in `plots.detections`.
        out: The PNG, PDF or SVG to write; None: none.
        most: Pictures drawn; all of them go through the detector.
        order: "novelty": the picture with the most novel detection comes first. "given": as they come.
        progress: Show a bar, in a terminal.
    """
    require_matplotlib()
    if columns < 1 or most < 1:
        raise ValueError(f"columns={columns}, most={most}; both must be at least 1.")
    if order not in ORDERS:
        raise ValueError(f"order={order!r}; allowed are {', '.join(ORDERS)}.")
    images, titles = _gathered(folder_or_images, size or model.size, progress)
    parts, found = images.split(PICTURES), []
    with reporting(enabled=progress) as reporter:
        for part in reporter.track(parts, stage="looking at pictures", total=len(parts), rows=len):
            found += model.predict(prepare(part) if prepare is not None else part.float() / 255)
    shown = list(range(len(found)))
    if order == "novelty":
        shown.sort(key=lambda i: (not len(found[i]), -found[i].summary["novelty"]))
    shown = shown[:most]
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    with figure(out, width=INCHES * columns + 0.1, height=(INCHES + 0.2) * rows + 0.3) as drawn:
        grid = drawn.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(shown) :]:
            axes.set_axis_off()
        for axes, i in zip(grid.flat, shown, strict=False):
            draw_picture(axes, as_picture(images[i]))
            _caption(axes, titles[i], found[i], threshold)
        count = f"{len(shown)} of {len(found)}" if len(shown) < len(found) else len(found)
        heading = f"{count} pictures" + (", the most novel first" if order == "novelty" else "")
        drawn.suptitle(heading, fontsize=10, x=0.01, ha="left")
        lay_out(drawn)
        for axes, i in zip(grid.flat, shown, strict=False):
            annotate(axes, found[i], names=names, level=level, threshold=threshold)
    return drawn


def _gathered(given: Any, size: tuple[int, int], progress: bool) -> tuple[Tensor, list[str]]:
    """Pictures of one size, from 0 to 255, uint8, [n, 3, h, w], and the title of each."""
    if isinstance(given, (str, Path)):
        return _read(Path(given), size, progress)
    if isinstance(given, (Tensor, np.ndarray)) and given.ndim == 3:
        given = [given]
    if len(given) == 0:
        raise ValueError("there are no pictures to draw; at least one is needed.")
    resized = [_resized(np.round(255 * as_picture(one)).astype(np.uint8), size) for one in given]
    return torch.stack(resized), [f"picture {i}" for i in range(len(resized))]


def _read(folder: Path, size: tuple[int, int], progress: bool) -> tuple[Tensor, list[str]]:
    """Every picture of a folder that can be read, by name."""
    from PIL import Image, UnidentifiedImageError

    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; pass one with pictures, or the pictures themselves.")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in KINDS)
    if not paths:
        raise ValueError(f"{folder} holds no pictures; files that end with {', '.join(KINDS)} are read.")
    images, titles, broken = [], [], []
    with reporting(enabled=progress) as reporter:
        for path in reporter.track(paths, stage="reading pictures", total=len(paths)):
            try:
                with Image.open(path) as file:
                    images.append(_resized(np.asarray(file.convert("RGB")), size))
                titles.append(path.name)
            except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError):
                broken.append(path.name)
    if broken:
        listed = ", ".join(broken[:NAMED]) + (", ..." if len(broken) > NAMED else "")
        text = f"{len(broken)} of {len(paths)} files of {folder} cannot be read as pictures: {listed}"
        if not images:
            raise ValueError(f"{text}.")
        warnings.warn(f"{text}; they are left out.", stacklevel=4)
    return torch.stack(images), titles


def _resized(picture: np.ndarray, size: tuple[int, int]) -> Tensor:
    """[h, w, 3] to [3, *size], uint8; untouched where it has that size."""
    from PIL import Image

    if picture.shape[:2] != tuple(size):
        picture = np.asarray(Image.fromarray(picture).resize((size[1], size[0]), Image.Resampling.BILINEAR))
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def _caption(axes: Any, title: str, found: Detections, threshold: float | None) -> None:
    """Below the picture: its name, and on the right the largest novelty."""
    axes.set_xlabel(title if len(title) <= 30 else f"{title[:28]}...", fontsize=7.5, loc="left")
    if len(found):
        novelty = found.summary["novelty"]
        colour = colour_of(novelty, limit_of(found, threshold))
        style = {"transform": axes.transAxes, "fontsize": 7.5, "ha": "right", "va": "top"}
        axes.text(0.94, -0.022, f"novelty {novelty:.2f}", color=INK, **style)
        axes.text(1.0, -0.022, "\N{BLACK SQUARE}", color=colour, **style)
