"""A picture with its detections: boxes, intervals of their edges, and novelty."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..likelihoods.detections import Detections
from .style import INK, ORANGE, RED, figure, numbers, require_matplotlib

Array = NDArray[np.float64]
FONT = 7.5  # points
WARNING = "\N{WARNING SIGN}"  # marks boxes above the threshold
DASHES = (0, (3.5, 1.6))  # of the frame around novel boxes
LETTER_WIDTH, LABEL_HEIGHT = 0.56, 1.7  # relative to the size of the font
MIN_THRESHOLD = 1e-12
CALM, PALE, MIDDLE = "#2b8cd6", "#8fd3f0", "#f6d55c"
SCALE = ((0.0, CALM), (0.35, PALE), (0.5, MIDDLE), (0.75, ORANGE), (1.0, RED))
"""Positions and colours, from calm to alarming by way of yellow: distinguishable without green."""


def detections(
    image: Any,
    detections: Detections,
    *,
    names: Sequence[str] | None = None,
    level: float = 0.95,
    axes: Any = None,
    title: str | None = None,
) -> Any:
    """Draw a picture with its detected boxes, bands around their edges, and colours by novelty.

    A band is as wide as the interval of its edge. Labels show class, confidence and novelty. Novel boxes have
    a thick dashed frame and a warning; a picture that is novel as a whole has one around it. Colours are
    spread around the model's threshold; without one they run from novelty 0 to 1, and no box is marked. The
    axes are returned.

    Args:
        image: [3, h, w] or [h, w, 3], from 0 to 255 (uint8 or floats) or from 0 to 1 (floats).
        detections: Detections in that picture, `model.predict(...)[i]`.
        names: Names of the classes; None: "class 0" and so on.
        level: Level of the edges' intervals.
        axes: Axes of matplotlib; None: new ones.
        title: Title above the picture.
    """
    require_matplotlib()
    picture = as_picture(image)
    if axes is None:
        with figure(None, width=5, height=5.2 if title else 5) as drawn:
            axes = drawn.subplots()
    height, width = picture.shape[:2]  # its first pixel reaches from 0 to 1
    axes.imshow(picture, extent=(0, width, height, 0), interpolation="bicubic")
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[], title=title or "")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if (engine := axes.figure.get_layout_engine()) is not None:
        engine.execute(axes.figure)  # now: the size of labels depends on it
    labels = [_label(detections, k, names) for k in range(len(detections))]
    colours = [colour_of(float(novelty), detections.threshold) for novelty in detections.novelty]
    for k in reversed(range(len(detections))):  # the most confident is drawn last, on top
        _draw_box(axes, detections, k, level=level, colour=colours[k], novel=labels[k].startswith(WARNING))
    taken = _draw_remarks(axes, detections)
    for label, box, colour in zip(labels, numbers(detections.boxes), colours, strict=True):
        taken.append(_draw_label(axes, label, box, colour, taken))
    return axes


def _draw_remarks(axes: Any, detected: Detections) -> list[Array]:
    """Draw remarks on the whole picture at its top, and return the boxes that they cover."""
    from matplotlib.patches import Rectangle

    novel = detected.picture_threshold is not None and detected.picture_is_novel
    remarks = [f"{WARNING} novel picture {detected.picture_novelty:.2f}"] if novel else []
    remarks += [] if len(detected) else ["nothing found"]
    if novel:
        frame: dict[str, Any] = {"fill": False, "edgecolor": RED, "linestyle": DASHES, "linewidth": 7.0}
        axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, gid="picture", **frame))
    if not remarks:
        return []
    room = _room(axes, text := ", ".join(remarks))
    corner = np.array([min(axes.get_xlim()), min(axes.get_ylim())]) + 0.6 * room[1]
    back, ink = (RED, "white") if novel else ("white", INK)
    axes.text(corner[0], corner[1] + room[1] / 2, text, color=ink, **_style(back))
    return [np.concatenate([corner, corner + room])]


def as_picture(image: Any) -> Array:
    """A picture as matplotlib takes it, [h, w, 3] from 0 to 1."""
    shape = tuple((values := torch.as_tensor(image).detach().cpu()).shape)
    if len(shape) != 3 or 3 not in (shape[0], shape[2]) or 0 in shape:
        raise ValueError(f"the picture has the shape {shape}; [3, h, w] or [h, w, 3] is needed.")
    if shape[0] == 3 and not (shape[2] == 3 and shape[1] > 3):
        values = values.permute(1, 2, 0)
    pixels = numbers(values)
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0.0 and high <= 255.0):
        what = f"the picture runs from {low:g} to {high:g}; from 0 to 255 or 0 to 1 is needed"
        raise ValueError(f"{what}: as it was before it was scaled for the detector.")
    return pixels if values.is_floating_point() and high <= 1.0 else pixels / 255


def _label(detected: Detections, k: int, names: Sequence[str] | None) -> str:
    """Class, confidence and novelty of a detection; a warning if the novelty is above the threshold."""
    kind, novelty, threshold = int(detected.labels[k]), float(detected.novelty[k]), detected.threshold
    if names is not None and kind >= len(names):
        raise ValueError(f"class {kind} was found, but names= has {len(names)}: each class needs one.")
    name = f"class {kind}" if names is None else names[kind]
    text = f"{name} {100 * float(detected.confidence[k]):.0f} %"
    if threshold is not None and not novelty <= threshold:
        return f"{WARNING} novel {novelty:.2f} ({text})"
    return f"{text}, nov. {novelty:.2f}"


def _draw_box(axes: Any, detected: Detections, k: int, *, level: float, colour: Any, novel: bool) -> None:
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path
    from matplotlib.patheffects import Normal, Stroke

    (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    low, high = (numbers(end[k]) for end in detected.interval(level))
    outer, inner = np.concatenate([low[:2], high[2:]]), np.concatenate([high[:2], low[2:]])
    far = np.array([left - right, bottom - top, 2 * right, 2 * top])  # out of sight
    outer = np.where(np.isfinite(outer), outer, far)
    around = [0, 1, 2, 1, 2, 3, 0, 3, 0, 1]  # corners in order, the first once more
    rings = [outer[around].reshape(5, 2)]
    if (inner[2:] > inner[:2]).all():  # the intervals of opposite edges do not meet
        rings.append(inner[around].reshape(5, 2)[::-1])
    path = Path.make_compound_path(*(Path(ring, closed=True) for ring in rings))
    axes.add_patch(PathPatch(path, facecolor=colour, alpha=0.38, linewidth=0, gid="band"))
    box = numbers(detected.boxes[k])
    wide, dashes = (3.0, DASHES) if novel else (1.8, "-")
    style: dict[str, Any] = {"fill": False, "edgecolor": colour, "linewidth": wide, "linestyle": dashes}
    line = Rectangle((box[0], box[1]), *(box[2:] - box[:2]), gid="box", **style)
    line.set_path_effects([Stroke(linewidth=wide + 1.2, foreground=INK, alpha=0.45), Normal()])
    axes.add_patch(line)


def _draw_label(axes: Any, text: str, box: Array, colour: tuple[float, ...], taken: Sequence[Array]) -> Array:
    """Draw a label at its box, over no other if possible; return what it covers: left, top, right, bottom."""
    axes.apply_aspect()
    (left, right), (top, bottom) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    width, height = _room(axes, text)
    start = float(np.clip(box[0], left, max(left, right - width)))
    heights = [box[1] - height, box[3], box[1], box[3] - height]  # above, below, inside
    heights += [box[1] - k * height for k in (2, 3, 4)] + [box[3] + k * height for k in (1, 2, 3)]
    candidates = [np.array([start, y, start + width, y + height]) for y in heights]
    inside = [one for one in candidates if one[1] >= top and one[3] <= bottom] or candidates[2:3]
    others = np.reshape(taken, (-1, 4))
    covers = [((one[2:] > others[:, :2]) & (one[:2] < others[:, 2:])).all(axis=1).any() for one in inside]
    where = inside[int(np.argmin(covers))]  # the first that is free; the first where none is
    place = where[0] + 0.3 / LABEL_HEIGHT * height, (where[1] + where[3]) / 2
    axes.text(*place, text, color=ink_on(colour), clip_on=True, **_style(colour))
    return where


def _room(axes: Any, text: str) -> Array:
    """Width and height of a label, in pixels of the picture."""
    left, right = sorted(axes.get_xlim())
    points = axes.get_window_extent().width * 72 / axes.figure.dpi / (right - left)  # per pixel
    return np.array([(LETTER_WIDTH * len(text) + 0.6) * FONT, LABEL_HEIGHT * FONT]) / points


def _style(colour: Any) -> dict[str, Any]:
    plate = {"facecolor": colour, "edgecolor": "none", "boxstyle": "square,pad=0.25", "alpha": 0.9}
    return {"fontsize": FONT, "va": "center", "bbox": plate}


def scale_position(novelty: float, threshold: float | None = None) -> float:
    """Position of a novelty on the scale of colours, in [0, 1]; NaN is at the end. A threshold is in the
    middle of the scale, which then ends at twice the threshold, or at 1, which no novelty exceeds."""
    middle = 0.5 if threshold is None else max(threshold, MIN_THRESHOLD)
    end = 2.0 * middle if middle >= 1.0 else min(2.0 * middle, 1.0)
    return 1.0 if np.isnan(novelty) else float(np.interp(novelty, [0.0, middle, end], [0.0, 0.5, 1.0]))


def colour_of(novelty: float, threshold: float | None = None) -> tuple[float, ...]:
    """Colour of a novelty: red, green and blue, each from 0 to 1."""
    place, stops = scale_position(novelty, threshold), [at for at, _ in SCALE]
    shades = zip(*(shade_of(colour) for _, colour in SCALE), strict=True)
    return tuple(float(np.interp(place, stops, shade)) for shade in shades)


def ink_on(colour: Sequence[float]) -> str:
    """White or nearly black, whichever is more readable on a colour."""
    red, green, blue = colour
    return "#1b1e22" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def shade_of(colour: str) -> tuple[float, ...]:
    """Red, green and blue of "#rrggbb", each from 0 to 1."""
    return tuple(int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
