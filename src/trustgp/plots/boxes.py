"""A picture with what was found in it: boxes, how sure their edges are, and how novel they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..likelihoods.detections import Detections
from .novelty import colour_of, ink_on
from .style import INK, figure, numbers, require_matplotlib

Array = NDArray[np.float64]
FONT = 7.5  # points
WIDE, TALL = 0.56, 1.7  # of a letter, and of a label, over the size of the font


def detections(
    image: Any,
    detections: Detections,
    *,
    names: Sequence[str] | None = None,
    level: float = 0.95,
    threshold: float | None = None,
    axes: Any = None,
    title: str | None = None,
) -> Any:
    """A picture with the boxes found in it, bands around their edges, and colours by novelty.

    A band is as wide as the interval of its edge. Labels tell class, confidence and novelty.

    Args:
        image: [3, h, w] or [h, w, 3], from 0 to 255 (uint8 or floats) or from 0 to 1 (floats).
        detections: Of that picture, `model.predict(...)[i]`.
        names: Of the classes; None: "class 0" and so on.
        level: Of the edges' intervals.
        threshold: Of the novelty: colours are spread around it, and what lies above is dashed, with a
            warning in its label. None: colours run from novelty 0 to 1.
        axes: Of matplotlib; None: new ones.
        title: Above the picture.

    Returns:
        The axes.
    """
    require_matplotlib()
    picture = as_picture(image)
    if axes is None:
        with figure(None, width=5, height=5.2 if title else 5) as drawn:
            axes = drawn.subplots()
    draw_picture(axes, picture, title)
    lay_out(axes.figure)
    annotate(axes, detections, names=names, level=level, threshold=threshold)
    return axes


def draw_picture(axes: Any, picture: Array, title: str | None = None) -> None:
    """A picture [h, w, 3] alone, in its own pixels: the first one reaches from 0 to 1."""
    height, width = picture.shape[:2]
    axes.imshow(picture, extent=(0, width, height, 0), interpolation="bicubic")
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
    axes.set_title(title or "")
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)


def lay_out(drawn: Any) -> None:
    """Give axes their places now, so that labels know how much room there is."""
    engine = drawn.get_layout_engine()
    if engine is not None:
        engine.execute(drawn)


def annotate(
    axes: Any, found: Detections, *, names: Sequence[str] | None, level: float, threshold: float | None
) -> None:
    """Boxes, bands and labels on a picture that is drawn already."""
    labels = [label_of(found, k, names=names, threshold=threshold) for k in range(len(found))]
    colours = [colour_of(float(novelty), threshold) for novelty in found.novelty]
    for k in reversed(range(len(found))):  # the surest is drawn last, on top
        above = threshold is not None and not float(found.novelty[k]) <= threshold
        _draw_box(axes, found, k, level=level, colour=colours[k], dashed=above)
    taken: list[Array] = []
    boxes = numbers(found.boxes)
    for label, box, colour in zip(labels, boxes, colours, strict=True):
        taken.append(_draw_label(axes, label, box, colour, taken, boxes))
    if not len(found):
        style = {"transform": axes.transAxes, "va": "top", "bbox": _plate("white"), "fontsize": FONT}
        axes.text(0.03, 0.97, "nothing found", color=INK, **style)


def as_picture(image: Any) -> Array:
    """A picture as matplotlib takes it, [h, w, 3] from 0 to 1."""
    values = torch.as_tensor(image).detach().cpu()
    if values.ndim != 3 or 3 not in (values.shape[0], values.shape[2]) or values.numel() == 0:
        raise ValueError(
            f"the picture has the shape {tuple(values.shape)}; [3, h, w] or [h, w, 3] is needed."
        )
    if values.shape[0] == 3 and not (values.shape[2] == 3 and values.shape[1] > 3):
        values = values.permute(1, 2, 0)
    found = numbers(values)
    low, high = (float(end) for end in (found.min(), found.max()))
    if not (low >= 0.0 and high <= 255.0):
        raise ValueError(
            f"the picture runs from {low:g} to {high:g}; from 0 to 255 or 0 to 1 is needed: the picture "
            "as it was, before it was scaled for the detector."
        )
    whole = not values.is_floating_point() or high > 1.0
    return found / 255 if whole else found


def label_of(
    found: Detections, k: int, *, names: Sequence[str] | None = None, threshold: float | None = None
) -> str:
    """Class, confidence and novelty of a detection; a warning sign where that lies above the threshold."""
    kind = int(found.labels[k])
    if names is not None and kind >= len(names):
        raise ValueError(
            f"class {kind} was found, but names= has {len(names)}: one for each class is needed."
        )
    name = f"class {kind}" if names is None else names[kind]
    novelty = float(found.novelty[k])
    sign = "\N{WARNING SIGN} " if threshold is not None and not novelty <= threshold else ""
    return f"{sign}{name} {100 * float(found.confidence[k]):.0f} %, nov. {novelty:.2f}"


def band_of(found: Detections, k: int, level: float) -> tuple[Array, Array | None]:
    """Left, top, right and bottom of the outer and the inner end of the edges' intervals, [4] each.

    The inner one is None where the intervals of opposite edges meet.
    """
    low, high = (numbers(end[k]) for end in found.interval(level))
    outer = np.concatenate([low[:2], high[2:]])
    inner = np.concatenate([high[:2], low[2:]])
    return outer, inner if (inner[2:] > inner[:2]).all() else None


def _draw_box(
    axes: Any, found: Detections, k: int, *, level: float, colour: tuple[float, ...], dashed: bool
) -> None:
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path
    from matplotlib.patheffects import Normal, Stroke

    (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    outer, inner = band_of(found, k, level)
    far = np.array([left - right, bottom - top, 2 * right, 2 * top])  # out of sight
    nearer = np.where(np.isfinite(outer), outer, far)
    rings = [_ring(nearer)] if inner is None else [_ring(nearer), _ring(inner)[::-1]]
    path = Path.make_compound_path(*(Path(ring, closed=True) for ring in rings))
    axes.add_patch(PathPatch(path, facecolor=colour, alpha=0.38, linewidth=0, gid="band"))
    box = numbers(found.boxes[k])
    style: dict[str, Any] = {"linestyle": (0, (3.5, 1.6))} if dashed else {}
    line = Rectangle((box[0], box[1]), *(box[2:] - box[:2]), fill=False, edgecolor=colour, gid="box", **style)
    line.set_linewidth(1.8)
    line.set_path_effects([Stroke(linewidth=3.0, foreground=INK, alpha=0.45), Normal()])
    axes.add_patch(line)


def _ring(box: Array) -> Array:
    """Corners in order, the first once more, [5, 2]."""
    left, top, right, bottom = box
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom], [left, top]])


def _draw_label(
    axes: Any, text: str, box: Array, colour: tuple[float, ...], taken: Sequence[Array], boxes: Array
) -> Array:
    """Writes it where there is most room, and tells which place it has taken: left, top, right, bottom."""
    axes.apply_aspect()
    (left, right), (top, bottom) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    points = axes.get_window_extent().width * 72 / axes.figure.dpi / (right - left)  # of a pixel
    size = np.array([(WIDE * len(text) + 0.6) * FONT, TALL * FONT]) / points
    start = float(np.clip(box[0], left, max(left, right - size[0])))
    heights = [box[1] - size[1], box[3], box[1], box[3] - size[1]]  # above, below, inside
    heights += [box[1] - k * size[1] for k in (2, 3, 4)] + [box[3] + k * size[1] for k in (1, 2, 3)]
    places = [np.array([start, y, start + size[0], y + size[1]]) for y in heights]
    inside = [one for one in places if one[1] >= top and one[3] <= bottom] or places[2:3]
    far = 0.2 * np.prod(size) * np.arange(len(inside))  # the first places are nearer to the box
    weights = [(10.0, taken), (0.5, boxes)]  # labels must not be covered, boxes rather not
    cover = [sum(w * _shared(one, other) for w, others in weights for other in others) for one in inside]
    where = inside[int(np.argmin(np.array(cover) + far))]
    place = where[0] + 0.3 * FONT / points, (where[1] + where[3]) / 2
    style = {"fontsize": FONT, "va": "center", "bbox": _plate(colour), "clip_on": True}
    axes.text(*place, text, color=ink_on(colour), **style)
    return where


def _shared(one: Array, other: Array) -> float:
    """Area that two boxes have in common."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    return float(np.prod(np.maximum(sides, 0.0)))


def _plate(colour: Any) -> dict[str, Any]:
    return {"facecolor": colour, "edgecolor": "none", "boxstyle": "square,pad=0.25", "alpha": 0.9}
