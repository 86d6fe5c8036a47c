"""A film of the rendered flight: what the detector finds in each frame, and what a monitor says of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from trustgp.detection import DetectionModel
from trustgp.monitor.monitor import Verdict

from ...datasets.scene_flight import flight
from ...datasets.scenes import CLASSES
from ...training.detector_network import pixels
from .film import draw_frame, write_gif


def flight_gif(
    model: DetectionModel,
    path: str | Path,
    *,
    threshold: float,
    monitor: Callable[[Tensor], Verdict],
    frames: int = 60,
    fps: float = 8.0,
) -> list[Verdict]:
    """Writes a GIF of a flight: boxes coloured by novelty, the verdict, and the novelty so far.

    Args:
        model: From `fit_detector`, on the rendered scenes.
        path: To write.
        threshold: Of the novelty, for colours and the line in the trace; the monitor has its own.
        monitor: From a frame, as the detector takes it, [3, h, w], to a verdict: a `trustgp.Monitor`.
        frames: Of the flight; at least 2.
        fps: Frames in a second.

    Returns:
        What the monitor said of each frame.
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
            options = {"frames": frames, "names": CLASSES, "threshold": threshold}
            film.append(draw_frame(image, found, said[-1].status, trace.copy(), **options))
    write_gif(film, path, fps=fps)
    return said
