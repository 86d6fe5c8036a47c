"""A film of a flight with a detector: its boxes, the monitor's verdict on each frame, and the cause."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter
from torch import Tensor

from trustgp import plots
from trustgp.data.atomic_file import atomic_file
from trustgp.detection import DetectionModel, Detections
from trustgp.executors.progress import reporting
from trustgp.monitor.monitor import INVALID, NOVEL, OK, UNCERTAIN, Monitor, Verdict
from trustgp.plots.boxes import CALM, MIDDLE, colour_of, ink_on, shade_of

from ..datasets.scenes import CLASSES, flight, path
from ..training.detector_network import pixels

COLOURS = 40  # of the pictures; those of verdicts and of novelty are added
BLUR = 0.6  # pixels: noise would make the file large
VERDICTS = {OK: CALM, UNCERTAIN: MIDDLE, NOVEL: plots.RED, INVALID: plots.GREY}
LIMITS = {"std": 8.0, "patience": 3, "leave": 0.9}  # of the monitor
BLIND = (0.085, 0.21)  # shares of the flight between which the camera is blind
HIGH = 5.0  # metres, above which objects look other than in training
TINT = 0.5  # share of a verdict's colour in the strip
SCORE_RANGE = (0.5, 1.25)  # of the strip, over the threshold
MILLISECONDS = 125  # of a frame


def flight_gif(model: DetectionModel, target: Path, *, frames: int, progress: bool = False) -> list[Verdict]:
    """Write a GIF of a flight during which the camera is blind for a while; return the verdicts of a monitor
    with the threshold of the model and the `LIMITS`."""
    runner = model.watch()
    monitor = Monitor(runner, **LIMITS)
    verdicts: list[Verdict] = []
    film, pairs = [], zip(*flown(frames, side=model.size[0]), strict=True)
    with reporting(enabled=progress) as reporter:
        for image, shown in reporter.track(pairs, stage="filming a flight", total=frames):
            verdicts.append(monitor(pixels(image[None])[0]))
            film.append(_draw_frame(image, shown, runner.detections[0], verdicts, monitor, frames))
    _write_gif(film, target)
    return verdicts


def blind_frames(frames: int) -> range:
    """Numbers of the frames, of so many, in which the camera is blind."""
    return range(*(round(frames * share) for share in BLIND))


def flown(frames: int, *, side: int) -> tuple[Tensor, list[str]]:
    """The flight, uint8 [n, 3, side, side], black where the camera is blind, and its views in words."""
    seen, heights = flight(frames, side=side), path(np.linspace(0.0, 1.0, frames))[:, 3]
    images, shown, blind = seen.images.clone(), [], blind_frames(frames)
    images[list(blind)] = 0
    for i, (height, labels) in enumerate(zip(heights, seen.labels, strict=True)):
        new = bool((labels >= len(CLASSES)).any())
        scene = "a vehicle never trained on" if new else "as in training"
        scene = "from high up, low sun, haze" if height > HIGH else scene
        shown.append("blind, the picture is black" if i in blind else scene)
    return images, shown


def why(verdict: Verdict, detections: Detections) -> str:
    """The verdict, and its cause; a monitor ends an alarm only after enough quiet frames."""
    if verdict.status != NOVEL:
        return verdict.status
    parts = ["the picture"] if detections.picture_is_novel else []
    parts += ["what is found"] if bool(detections.is_novel.any()) else []
    return f"novel: {' and '.join(parts)}" if parts else "novel, held"


def _draw_frame(
    image: Tensor, shown: str, found: Detections, verdicts: Sequence[Verdict], monitor: Monitor, frames: int
) -> Image.Image:
    """The verdict, the picture with its detections and its true view in words, and the score so far."""
    verdict, stream = verdicts[-1], BytesIO()
    picture = Image.fromarray(image.permute(1, 2, 0).cpu().numpy())
    smooth = np.array(picture.filter(ImageFilter.GaussianBlur(BLUR)))
    with plots.figure(None, width=3.2, height=4.7) as drawn:
        upper, strip = drawn.subplots(2, 1, height_ratios=(4.6, 1))
        _draw_strip(strip, verdicts, monitor, frames)
        colour = VERDICTS[verdict.status]
        style = {"color": ink_on(shade_of(colour)), "backgroundcolor": colour}
        drawn.suptitle(why(verdict, found), fontsize=11, fontweight="bold", **style)
        upper.set_xlabel(f"camera: {shown}", fontsize=8)
        plots.detections(smooth, found, names=CLASSES, axes=upper, title=" ")
        calm = f"alarm, calm for {verdict.quiet} of {monitor.patience} frames"
        upper.set_title(verdict.reason or ("no alarm" if verdict.quiet is None else calm), fontsize=8)
        drawn.savefig(stream, dpi=100)
    return Image.open(stream).convert("RGB")


def _tint(colour: str) -> tuple[float, ...]:
    """A colour "#rrggbb", paler."""
    return tuple(1.0 - TINT * (1.0 - part) for part in shade_of(colour))


def _draw_strip(axes: Any, verdicts: Sequence[Verdict], monitor: Monitor, frames: int) -> None:
    """The score over the threshold, on the colours of the verdicts."""
    scores = [np.nan if one.score is None else one.score / max(monitor.threshold, 1e-12) for one in verdicts]
    clipped = np.clip(scores, *SCORE_RANGE)
    for frame, one in enumerate(verdicts):
        axes.axvspan(frame - 0.5, frame + 0.5, color=_tint(VERDICTS[one.status]), linewidth=0)
    for height, line in ((1.0, "--"), (monitor.leave, ":")):
        axes.axhline(height, color=plots.INK, linestyle=line, linewidth=1.0)
    axes.plot(clipped, color=plots.INK)
    axes.plot(len(clipped) - 1, clipped[-1], "o", color=plots.INK, markersize=5, clip_on=False)
    axes.set(xlim=(-0.5, frames - 0.5), ylim=SCORE_RANGE, xticks=[], yticks=[])
    axes.set_title("novelty; dashed: alarm above, dotted: calm below", fontsize=7)
    axes.set_xlabel(f"frame {len(verdicts)} of {frames}", fontsize=7)


def _write_gif(film: Sequence[Image.Image], target: Path) -> None:
    """One palette for all frames, and no dithering, which would look like noise."""
    sheet = Image.fromarray(np.concatenate([np.asarray(frame) for frame in film[:: max(1, len(film) // 8)]]))
    colours = (sheet.quantize(COLOURS, method=Image.Quantize.MEDIANCUT).getpalette() or [])[: 3 * COLOURS]
    fixed = [*map(shade_of, VERDICTS.values()), *map(_tint, VERDICTS.values())]
    fixed += [colour_of(k / 8) for k in range(9)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*colours, *(round(255 * part) for shade in fixed for part in shade)])
    flat = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in film]
    options = {"duration": MILLISECONDS, "loop": 0, "optimize": True}
    with atomic_file(target, named=True) as made:
        flat[0].save(made, save_all=True, append_images=flat[1:], **options)
