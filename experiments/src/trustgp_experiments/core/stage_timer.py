"""Seconds and peak memory of each stage of a fit, read from the log of the fit."""

import ctypes
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from trustgp.executors.progress import LOGGER

from ..training.train import now

_PROCESS = Path("/proc/self")
FIRST = "preparing"  # until the log names a stage


@dataclass
class Ledger:
    """Seconds by stage, in the order in which stages begin, and peak bytes by stage and kind of memory.

    A stage that is repeated, for another kernel, adds to its seconds. Peaks exclude what was allocated before
    the first stage (`held`).
    """

    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, dict[str, int]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Of each stage in all seconds."""
        return {stage: seconds / self.total for stage, seconds in self.seconds.items()}

    def peak(self, place: str) -> int | None:
        """Bytes at the peak of all stages; None where that memory was not watched."""
        return max((peaks[place] for peaks in self.peaks.values() if place in peaks), default=None)


class Peak:
    """Bytes at the peak since it was made, beside those that were allocated then (`held`).

    "cpu" is the process's resident memory (Linux only), "cuda" what torch has allocated on the GPU, "cuda
    reserved" what it keeps there. An allocator may keep what was freed: resident memory is an upper bound.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._cuda = torch.device(device) if torch.device(device).type == "cuda" else None
        gc.collect()
        with suppress(OSError, AttributeError):  # freed memory that is not returned would hide as much
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        if self._cuda:
            torch.cuda.empty_cache()
        self._reset()
        self.held = self._marks()

    def bytes(self) -> dict[str, int]:
        """By kind of memory."""
        return {place: max(0, size - self.held[place]) for place, size in self._marks().items()}

    def lap(self) -> dict[str, int]:
        """As `bytes`, since the last lap; the next one begins."""
        sizes = self.bytes()
        self._reset()
        return sizes

    def _marks(self) -> dict[str, int]:
        """The high-water marks, which right after a reset are the present sizes."""
        marks = {} if (high := status_bytes("VmHWM")) is None else {"cpu": high}
        if self._cuda:
            marks["cuda"] = torch.cuda.max_memory_allocated(self._cuda)
            marks["cuda reserved"] = torch.cuda.max_memory_reserved(self._cuda)
        return marks

    def _reset(self) -> None:
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._cuda)
        with suppress(OSError):
            (_PROCESS / "clear_refs").write_text("5")


class _Clock(logging.Handler):
    """Books seconds and peaks to the stage that ends when the log names the next one."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(logging.DEBUG)
        self._device, self._stage = device, FIRST
        self._peak, self._since = Peak(device), now(device)
        self.ledger = Ledger(held=self._peak.held)

    def emit(self, record: logging.LogRecord) -> None:
        stage = getattr(record, "stage", None)
        if stage is not None and stage != self._stage:
            self.turn(stage)

    def turn(self, stage: str) -> None:
        """End the present stage and begin another."""
        time, peaks, ended, ledger = now(self._device), self._peak.lap(), self._stage, self.ledger
        ledger.seconds[ended] = ledger.seconds.get(ended, 0.0) + time - self._since
        before = ledger.peaks.get(ended, {})
        ledger.peaks[ended] = {place: max(size, before.get(place, 0)) for place, size in peaks.items()}
        self._stage, self._since = stage, time


@contextmanager
def stages(device: str | torch.device) -> Iterator[Ledger]:
    """Times the fit's stages in the block, each until the next; synchronises a GPU between them."""
    clock, level = _Clock(torch.device(device)), LOGGER.level
    LOGGER.addHandler(clock)
    LOGGER.setLevel(logging.DEBUG)
    try:
        yield clock.ledger
    finally:
        clock.turn(FIRST)
        LOGGER.setLevel(level)
        LOGGER.removeHandler(clock)


def status_bytes(name: str) -> int | None:
    """A line of /proc/self/status, such as VmRSS; None on other systems."""
    with suppress(OSError):
        for line in (_PROCESS / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return 1024 * int(line.split()[1])
    return None
