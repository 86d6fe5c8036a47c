"""A film of a flight with a detector: its boxes, the monitor's verdict on each frame, and the cause."""

from collections.abc import Sequence
from dataclasses import dataclass
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
from trustgp.plots.boxes import CALM, MIDDLE, ink_on, shade_of

from ..datasets.scenes import CLASSES, flight, path
from ..training.detector_network import pixels

COLOURS = 40  # of the pictures; those of verdicts and of novelty are added
BLUR = 0.6  # pixels: noise would make the file large
VERDICTS = {OK: CALM, UNCERTAIN: MIDDLE, NOVEL: plots.RED, INVALID: plots.GREY}
LIMITS = {"std": 8.0, "patience": 3, "leave": 0.9}  # of the monitor
BLIND = (0.085, 0.21)  # shares of the flight between which the camera is blind
HIGH = 5.0  # metres, above which objects look other than in training
ALARM_TINT, LATCHED_TINT = 0.55, 0.25  # shares of a verdict's colour
SCORE_RANGE = (0.5, 1.25)  # of the strip, over the threshold


@dataclass(frozen=True)
class FilmFrame:
    """One frame: the picture, the detections and the verdict."""

    image: Tensor  # uint8 [3, side, side]
    shown: str  # the true view, in words
    found: Detections
    verdict: Verdict


def flight_gif(
    model: DetectionModel, target: Path, *, frames: int = 60, fps: float = 8.0, progress: bool = False
) -> list[Verdict]:
    """Write a GIF of a flight during which the camera is blind for a while; return the verdicts of a monitor
    with the threshold of the model and the `LIMITS`."""
    if frames < 2 or not fps > 0:
        raise ValueError(f"frames={frames}, fps={fps}; at least 2 frames are needed, and fps above 0.")
    runner = model.watch()
    monitor = Monitor(runner, **LIMITS)
    past: list[FilmFrame] = []
    film, pairs = [], zip(*flown(frames, side=model.size[0]), strict=True)
    with reporting(enabled=progress) as reporter:
        for image, shown in reporter.track(pairs, stage="filming a flight", total=frames):
            verdict = monitor(pixels(image[None])[0])
            past.append(FilmFrame(image, shown, runner.detections[0], verdict))
            film.append(draw_frame(past, monitor, frames=frames))
    _write_gif(film, target, fps)
    return [one.verdict for one in past]


def blind_frames(frames: int) -> range:
    """Numbers of the frames, of so many, in which the camera is blind."""
    return range(*(round(frames * share) for share in BLIND))


def flown(frames: int, *, side: int) -> tuple[Tensor, list[str]]:
    """The flight, uint8 [n, 3, side, side], black where the camera is blind, and its views in words."""
    seen, heights = flight(frames, side=side), path(np.linspace(0.0, 1.0, frames))[:, 3]
    images, shown = seen.images.clone(), []
    blind = blind_frames(frames)
    images[list(blind)] = 0
    for i, (height, labels) in enumerate(zip(heights, seen.labels, strict=True)):
        new = bool((labels >= len(CLASSES)).any())
        scene = "from high up, low sun, haze" if height > HIGH else "as in training"
        scene = "a vehicle never trained on" if new and height <= HIGH else scene
        shown.append("blind, the picture is black" if i in blind else scene)
    return images, shown


def why(verdict: Verdict, found: Detections) -> str:
    """The verdict, and its cause."""
    if verdict.status != NOVEL:
        return verdict.status
    parts = ["the picture"] if found.picture_is_novel else []
    parts += ["what is found"] if bool(found.is_novel.any()) else []
    return f"novel: {' and '.join(parts)}" if parts else "novel, held"


def latch_text(verdict: Verdict, monitor: Monitor) -> str:
    """The state of the alarm: a monitor ends one only after enough quiet frames."""
    patience = monitor.patience
    if verdict.status == INVALID or verdict.quiet is None:
        return verdict.reason or "no alarm"
    if verdict.quiet:
        return f"alarm held: calm frame {verdict.quiet} of the {patience} that end it"
    if verdict.status == NOVEL and verdict.score is not None and verdict.score <= monitor.threshold:
        return f"alarm held: not below the lower line yet (0 of {patience})"
    return f"alarm on: {patience} calm frames in a row will end it"


def draw_frame(past: Sequence[FilmFrame], monitor: Monitor, *, frames: int) -> Image.Image:
    """The last of the frames so far: the verdict, the picture with its detections, and the score so far."""
    now, stream = past[-1], BytesIO()
    picture = Image.fromarray(now.image.permute(1, 2, 0).cpu().numpy())
    smooth = np.array(picture.filter(ImageFilter.GaussianBlur(BLUR)))
    with plots.figure(None, width=3.2, height=4.7) as drawn:
        upper, strip = drawn.subplots(2, 1, height_ratios=(4.6, 1))
        _draw_strip(strip, [one.verdict for one in past], monitor, frames)
        colour = VERDICTS[now.verdict.status]
        style = {"color": ink_on(shade_of(colour)), "backgroundcolor": colour}
        drawn.suptitle(why(now.verdict, now.found), fontsize=11, fontweight="bold", **style)
        upper.set_xlabel(f"camera: {now.shown}", fontsize=8)
        plots.detections(smooth, now.found, names=CLASSES, axes=upper, title=" ")
        upper.set_title(latch_text(now.verdict, monitor), fontsize=8)
        drawn.savefig(stream, dpi=100)
    return Image.open(stream).convert("RGB")


def tint(colour: str, share: float) -> tuple[float, ...]:
    """So much of a colour "#rrggbb" on white."""
    return tuple(1.0 - share * (1.0 - part) for part in shade_of(colour))


def _draw_strip(axes: Any, verdicts: Sequence[Verdict], monitor: Monitor, frames: int) -> None:
    """The score over the threshold, on the colours of the verdicts."""
    scores = [np.nan if one.score is None else one.score / max(monitor.threshold, 1e-12) for one in verdicts]
    clipped = np.clip(scores, *SCORE_RANGE)
    for frame, one in enumerate(verdicts):
        colour = tint(VERDICTS[one.status], LATCHED_TINT if one.quiet else ALARM_TINT)
        axes.axvspan(frame - 0.5, frame + 0.5, color=colour, linewidth=0)
    axes.axhline(1.0, color=plots.INK, linestyle="--", linewidth=1.0)
    axes.axhline(monitor.leave, color=plots.INK, linestyle=":", linewidth=1.0)
    axes.plot(clipped, color=plots.INK)
    axes.plot(len(clipped) - 1, clipped[-1], "o", color=plots.INK, markersize=5, clip_on=False)
    axes.set(xlim=(-0.5, frames - 0.5), ylim=SCORE_RANGE, xticks=[], yticks=[])
    axes.set_title("novelty; dashed: alarm above, dotted: calm below", fontsize=7)
    axes.set_xlabel(f"frame {len(verdicts)} of {frames}", fontsize=7)


def _write_gif(film: Sequence[Image.Image], target: Path, fps: float) -> None:
    """One palette for all frames, and no dithering, which would look like noise."""
    sheet = Image.fromarray(np.concatenate([np.asarray(frame) for frame in film[:: max(1, len(film) // 8)]]))
    colours = (sheet.quantize(COLOURS, method=Image.Quantize.MEDIANCUT).getpalette() or [])[: 3 * COLOURS]
    fixed = [*map(shade_of, VERDICTS.values()), *(plots.colour_of(k / 8) for k in range(9))]
    fixed += [tint(colour, share) for colour in VERDICTS.values() for share in (ALARM_TINT, LATCHED_TINT)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*colours, *(round(255 * part) for shade in fixed for part in shade)])
    flat = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in film]
    options = {"duration": round(1000 / fps), "loop": 0, "optimize": True}
    with atomic_file(target, named=True) as made:
        flat[0].save(made, save_all=True, append_images=flat[1:], **options)
