"""How a frame of the flight's film looks, and how the film is kept small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from trustgp.detection import Detections
from trustgp.monitor.monitor import INVALID, NOVEL, OK, UNCERTAIN
from trustgp.plots import GREY, INK, RED, colour_of
from trustgp.plots.boxes import band_of
from trustgp.plots.novelty import CALM, MIDDLE, ink_on, shade_of

from ...datasets.scene_objects import BLUE, DARK, GOLD, GREEN
from ...datasets.scene_objects import RED as CLOTH

SIDE, STRIP = 288, 84  # pixels of the picture, and of what stands below it
COLOURS = 24  # of the pictures; those of things and of novelty come on top
SOFT = 0.6  # pixels by which a picture is smoothed: noise is what makes a film large
VERDICTS = {OK: CALM, UNCERTAIN: MIDDLE, NOVEL: RED, INVALID: GREY}
SOIL = (0.62, 0.42, 0.30)
LINE, PAPER = "#d9dce0", "#ffffff"
Shade = tuple[int, int, int]


def draw_frame(
    image: Tensor,
    found: Detections,
    status: str,
    trace: Sequence[float],
    *,
    frames: int,
    names: Sequence[str],
    threshold: float,
    level: float = 0.95,
) -> Image.Image:
    """A picture with its detections; below it the verdict, and the novelty of all pictures so far.

    Args:
        image: uint8, [3, side, side].
        found: In it.
        status: Of the monitor.
        trace: Largest novelty of each picture up to this one.
        frames: Of the whole film.
        names: Of the classes.
        threshold: Of the novelty.
        level: Of the bands around edges.
    """
    picture = Image.fromarray(image.permute(1, 2, 0).cpu().numpy())
    scale = SIDE / picture.width
    frame = Image.new("RGB", (SIDE, SIDE + STRIP), PAPER)
    picture = picture.filter(ImageFilter.GaussianBlur(SOFT))
    frame.paste(picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    pen, order = ImageDraw.Draw(frame), range(len(found))[::-1]  # the surest is drawn last, on top
    boxes = [_inside(box * scale) for box in found.boxes.cpu().numpy()]
    shades = [_shade(float(novelty), threshold) for novelty in found.novelty]
    for k in order:
        outer, inner = band_of(found, k, level)
        _draw_band(frame, shades[k], outer * scale, None if inner is None else inner * scale)
    for k in order:
        above = not float(found.novelty[k]) <= threshold
        pen.rectangle(boxes[k], outline=shades[k], width=3 if above else 2)
    for k in order:
        text = f"{names[int(found.labels[k])]} {100 * float(found.confidence[k]):.0f} %"
        _draw_label(pen, boxes[k], shades[k], text)
    _draw_verdict(pen, status, len(trace), frames)
    _draw_trace(pen, trace, frames, threshold)
    return frame


def write_gif(film: Sequence[Image.Image], path: str | Path, *, fps: float) -> None:
    """One palette for all frames, and no dithering, which would look like noise."""
    some = film[:: max(1, len(film) // 8)]
    sheet = Image.new("RGB", (SIDE, SIDE * len(some)))
    for k, frame in enumerate(some):
        sheet.paste(frame.crop((0, 0, SIDE, SIDE)), (0, k * SIDE))
    colours = (sheet.quantize(COLOURS, method=Image.Quantize.MEDIANCUT).getpalette() or [])[: 3 * COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*colours, *(round(255 * part) for shade in _fixed() for part in shade)])
    flat = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in film]
    flat[0].save(
        path, save_all=True, append_images=flat[1:], duration=round(1000 / fps), loop=0, optimize=True
    )


def _fixed() -> list[tuple[float, float, float]]:
    """Colours that a palette must have, however small what has them: of text, novelty and things."""
    plain = [shade_of(colour) for colour in (PAPER, INK, GREY, LINE, *VERDICTS.values())]
    novelty = [colour_of(k / 8) for k in range(9)]
    kinds = ((GOLD, 0.9), (BLUE, 0.6), (CLOTH, 0.6), (CLOTH, 0.9), (GREEN, 0.45), (GREEN, 0.7), (DARK, 0.8))
    kinds += tuple((SOIL, light) for light in (0.25, 0.4, 0.55))  # in shadows
    things = [(light * red, light * green, light * blue) for (red, green, blue), light in kinds]
    return [*plain, *novelty, *things]


def _shade(novelty: float, threshold: float) -> Shade:
    red, green, blue = (round(255 * part) for part in colour_of(novelty, threshold))
    return red, green, blue


def _draw_band(frame: Image.Image, shade: Shade, outer: np.ndarray, inner: np.ndarray | None) -> None:
    mask = Image.new("L", (SIDE, SIDE), 0)
    pen = ImageDraw.Draw(mask)
    pen.rectangle(_inside(outer), fill=110)
    if inner is not None:
        pen.rectangle(_inside(inner), fill=0)
    frame.paste(shade, (0, 0, SIDE, SIDE), mask)


def _draw_label(
    pen: ImageDraw.ImageDraw, box: tuple[float, float, float, float], shade: Shade, text: str
) -> None:
    font = ImageFont.load_default(11)
    left, top, _, bottom = box
    wide = pen.textlength(text, font=font) + 6
    x, y = min(left, SIDE - wide), top - 14 if top >= 15 else min(bottom, SIDE - 15)
    pen.rectangle((x, y, x + wide, y + 14), fill=shade)
    pen.text((x + 3, y + 7), text, font=font, fill=ink_on([part / 255 for part in shade]), anchor="lm")


def _inside(box: np.ndarray) -> tuple[float, float, float, float]:
    """Within the picture."""
    left, top, right, bottom = (float(end) for end in np.clip(np.nan_to_num(box, nan=0.0), 0, SIDE - 1))
    return left, top, right, bottom


def _draw_verdict(pen: ImageDraw.ImageDraw, status: str, number: int, frames: int) -> None:
    colour = VERDICTS[status]
    pen.rounded_rectangle((8, SIDE + 12, 100, SIDE + 46), radius=5, fill=colour)
    ink = ink_on(shade_of(colour))
    font = ImageFont.load_default(17 if len(status) < 10 else 12)
    pen.text((54, SIDE + 29), status, font=font, fill=ink, anchor="mm")
    small = ImageFont.load_default(11)
    pen.text((54, SIDE + 62), f"frame {number} of {frames}", font=small, fill=INK, anchor="mm")


def _draw_trace(pen: ImageDraw.ImageDraw, trace: Sequence[float], frames: int, threshold: float) -> None:
    """Novelty up to three times the threshold; what is higher stands at the top."""
    small = ImageFont.load_default(10)
    left, right, top, bottom = 116, SIDE - 10, SIDE + 20, SIDE + STRIP - 14

    def place(k: int, novelty: float) -> tuple[float, float]:
        share = min(max(novelty / (3 * threshold), 0.0), 1.0)
        return left + (right - left) * k / (frames - 1), bottom - (bottom - top) * share

    pen.text((left, SIDE + 11), "novelty", font=small, fill=INK, anchor="lm")
    pen.text((right, SIDE + 11), "- - threshold", font=small, fill=GREY, anchor="rm")
    pen.line((left, bottom, right, bottom), fill=LINE)
    level = place(0, threshold)[1]
    for x in range(left, right, 8):
        pen.line((x, level, x + 4, level), fill=GREY)
    points = [place(k, value) for k, value in enumerate(trace)]
    if len(points) > 1:
        pen.line(points, fill=INK, width=2)
    x, y = points[-1]
    pen.ellipse((x - 4, y - 4, x + 4, y + 4), fill=_shade(trace[-1], threshold), outline=INK)
