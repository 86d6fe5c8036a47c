"""A film of the rendered flight: what the detector finds in each frame, and what a monitor says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..datasets.scene_flight import flight
from ..datasets.scenes import CLASSES
from ..detection import DetectionModel
from ..monitor import Verdict
from ..progress import reporting
from .detection_film import draw_frame, write_gif
from .detection_network import pixels


def flight_gif(
    model: DetectionModel,
    path: str | Path,
    *,
    threshold: float,
    monitor: Callable[[Tensor], Verdict],
    frames: int = 60,
    names: Sequence[str] = CLASSES,
    prepare: Callable[[Tensor], Tensor] = pixels,
    fps: float = 8.0,
    seed: int = 0,
    novel: str = "tracked rover",
    progress: bool = False,
) -> list[Verdict]:
    """Writes a GIF of a flight: boxes coloured by novelty, the verdict, and the novelty so far.

    Args:
        model: From `fit_detector`, on the rendered scenes.
        path: To write.
        threshold: Of the novelty, for colours and the line in the trace; the monitor has its own.
        monitor: From a frame, as the detector takes it, [3, h, w], to a verdict: a `trustgp.Monitor`.
        frames: Of the flight; at least 2.
        names: Of the classes.
        prepare: From pictures, uint8 [n, 3, h, w], to what the detector takes.
        fps: Frames in a second.
        seed, novel: Of the flight.
        progress: Show a bar, in a terminal.

    Returns:
        What the monitor said of each frame.
    """
    if frames < 2 or not fps > 0:
        raise ValueError(f"frames={frames}, fps={fps}; at least 2 frames are needed, and fps above 0.")
    with torch.no_grad(), reporting(enabled=progress) as reporter:
        scenes = flight(frames, seed=seed, side=model.size[0], novel=novel)
        said, trace, film = [], [], []
        for image in reporter.track(scenes.images, stage="flying", total=frames):
            given = prepare(image[None])[0]
            (found,) = model.predict(given)
            said.append(monitor(given))
            trace.append(found.summary["novelty"])
            status, so_far = said[-1].status, trace.copy()
            film.append(
                draw_frame(image, found, status, so_far, frames=frames, names=names, threshold=threshold)
            )
    write_gif(film, path, fps=fps)
    return said
