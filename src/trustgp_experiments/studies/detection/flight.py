"""A film of the rendered flight: what the detector finds in each frame, and what a monitor says of it."""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from trustgp import plots
from trustgp.detection import DetectionModel, Detections
from trustgp.monitor.monitor import INVALID, NOVEL, OK, UNCERTAIN, Verdict
from trustgp.plots.boxes import CALM, MIDDLE, ink_on, shade_of

from ...datasets.scenes import CLASSES, flight
from ...training.detector_network import pixels

COLOURS = 40  # of the pictures; those of verdicts and of novelty come on top
SOFT = 0.6  # pixels by which a picture is smoothed: noise is what makes a film large
VERDICTS = {OK: CALM, UNCERTAIN: MIDDLE, NOVEL: plots.RED, INVALID: plots.GREY}


def flight_gif(
    model: DetectionModel,
    path: Path,
    *,
    threshold: float,
    monitor: Callable[[Tensor], Verdict],
    frames: int = 60,
    fps: float = 8.0,
) -> list[Verdict]:
    """Writes a GIF of a flight: boxes coloured by novelty, the verdict, and the novelty so far.

    Returns what the monitor said of each frame, of which it is given a picture as the detector takes it,
    [3, h, w]. The threshold of colours and of the line in the trace need not be the monitor's own.
    """
    if frames < 2 or not fps > 0:
        raise ValueError(f"frames={frames}, fps={fps}; at least 2 frames are needed, and fps above 0.")
    said, trace, film = [], [], []
    with torch.no_grad():
        for image in flight(frames, side=model.size[0]).images:
            given = pixels(image[None])[0]
            (found,) = model.predict(given)
            said.append(monitor(given))
            trace.append(found.summary["novelty"])
            film.append(draw_frame(image, found, said[-1].status, trace, frames=frames, threshold=threshold))
    _write_gif(film, path, fps)
    return said


def draw_frame(
    image: Tensor, found: Detections, status: str, trace: Sequence[float], *, frames: int, threshold: float
) -> Image.Image:
    """A picture, uint8 [3, side, side], with its detections; above it the verdict, below the novelty so far.

    The trace holds the largest novelty of each of the `frames` pictures up to this one; it is drawn up to
    three times the threshold, and what is higher stands at the top.
    """
    smooth = Image.fromarray(image.permute(1, 2, 0).cpu().numpy()).filter(ImageFilter.GaussianBlur(SOFT))
    told, stream = np.clip(trace, 0.0, 3 * threshold), BytesIO()
    with plots.figure(None, width=3.0, height=3.9) as drawn:
        picture, strip = drawn.subplots(2, 1, height_ratios=(5, 1))
        strip.axhline(threshold, color=plots.GREY, linestyle="--", linewidth=1.0)
        strip.plot(told, color=plots.INK)
        last = plots.colour_of(trace[-1], threshold)
        strip.plot(len(told) - 1, told[-1], "o", color=last, markeredgecolor=plots.INK, clip_on=False)
        strip.set(xlim=(0, frames - 1), ylim=(0, 3 * threshold), xticks=[], yticks=[])
        strip.set_title("novelty; dashed: the threshold", fontsize=7)
        colour = VERDICTS[status]
        style = {"color": ink_on(shade_of(colour)), "backgroundcolor": colour}
        drawn.suptitle(f"{status}, frame {len(trace)} of {frames}", fontsize=10, **style)
        plots.detections(np.array(smooth), found, names=CLASSES, threshold=threshold, axes=picture)
        drawn.savefig(stream, dpi=100)
    return Image.open(stream).convert("RGB")


def _write_gif(film: Sequence[Image.Image], path: Path, fps: float) -> None:
    """One palette for all frames, and no dithering, which would look like noise."""
    sheet = Image.fromarray(np.concatenate([np.asarray(frame) for frame in film[:: max(1, len(film) // 8)]]))
    colours = (sheet.quantize(COLOURS, method=Image.Quantize.MEDIANCUT).getpalette() or [])[: 3 * COLOURS]
    # however small what has them
    fixed = [*map(shade_of, VERDICTS.values()), *(plots.colour_of(k / 8) for k in range(9))]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*colours, *(round(255 * part) for shade in fixed for part in shade)])
    flat = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in film]
    options = {"duration": round(1000 / fps), "loop": 0, "optimize": True}
    flat[0].save(path, save_all=True, append_images=flat[1:], **options)
