"""`trustgp demo --detection`: a film of a detector that meets views and objects it was never trained on."""

import time
from collections import Counter
from pathlib import Path

from rich.console import Console

from trustgp.monitor.monitor import NOVEL

from ..core.flight_film import blind_frames, flight_gif
from ..core.registry import require_extras
from ..training.detector_error_bar import COMMAND, HELD_OUT, PICTURES, load_error_bar
from .run import write_results

FRAMES, QUICK_FRAMES = 48, 10


def run_detection(out: Path, *, seed: int = 0, quick: bool = False, console: Console) -> int:
    """Write `flight.gif` and `results.json`, and print the monitor's verdicts; the flight has no seed."""
    start = time.perf_counter()
    require_extras("The demo of detection", ["plots", "detection"])
    out.mkdir(parents=True, exist_ok=True)
    fitted = f"The error bar was fitted on {PICTURES:,} pictures and calibrated on {HELD_OUT} others."
    console.print(f"{fitted} To fit it again: {COMMAND}", highlight=False, soft_wrap=True)
    frames = QUICK_FRAMES if quick else FRAMES
    verdicts = flight_gif(load_error_bar(), out / "flight.gif", frames=frames, progress=True)
    blind, novel = blind_frames(frames), [one.frame for one in verdicts if one.status == NOVEL]
    noticed = sum(frame in blind for frame in novel)
    verdict = f"The monitor calls {len(novel)} of {frames} frames novel, among them {noticed} of the"
    film = f"{len(blind)} frames in which the camera is blind.\nFilm: {out / 'flight.gif'}"
    console.print(f"{verdict} {film}", highlight=False, soft_wrap=True)
    statuses = [one.status for one in verdicts]
    write_results(out, {"quick": quick, "flight": statuses, "counts": Counter(statuses)}, start, console)
    return 0
