"""Seconds of each stage of a fit, read from its log, and the peak of its memory."""

import ctypes
import gc
import logging
from collections.abc import Callable, Iterator
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
    """Seconds by stage, in the order in which stages begin (a stage repeated for another kernel adds to its
    seconds), and peak bytes by kind of memory: see `Peak`."""

    seconds: dict[str, float] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


class Peak:
    """Peak memory in bytes since this object was made, beyond what was allocated then (`before`).

    "cpu" is the process's resident memory (Linux only), "cuda" what torch has allocated on the GPU, "cuda
    reserved" what it has reserved there. An allocator may keep freed memory: "cpu" is an upper bound.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._cuda = torch.device(device) if torch.device(device).type == "cuda" else None
        gc.collect()
        with suppress(OSError, AttributeError):  # freed memory that is not returned would hide as much
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        if self._cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._cuda)
        with suppress(OSError):
            (_PROCESS / "clear_refs").write_text("5")
        self.before = self._marks()

    def bytes(self) -> dict[str, int]:
        """Peak bytes beyond `before`, by kind of memory."""
        return {place: max(0, size - self.before[place]) for place, size in self._marks().items()}

    def _marks(self) -> dict[str, int]:
        """High-water marks by kind of memory, which are the present sizes right after a reset."""
        marks = {} if (high := status_bytes("VmHWM")) is None else {"cpu": high}
        if self._cuda:
            marks["cuda"] = torch.cuda.max_memory_allocated(self._cuda)
            marks["cuda reserved"] = torch.cuda.max_memory_reserved(self._cuda)
        return marks


def call_peak(call: Callable[[], object], device: str | torch.device) -> int | None:
    """Peak bytes of one call beyond those allocated before; None where that is unknown."""
    peak = Peak(device)
    call()
    return peak.bytes().get(torch.device(device).type)


class _Clock(logging.Handler):
    """Log handler that adds elapsed seconds to the current stage when the log names the next one."""

    def __init__(self, device: str | torch.device) -> None:
        super().__init__(logging.DEBUG)
        self._device, self._stage, self.ledger, self._since = device, FIRST, Ledger(), now(device)

    def emit(self, record: logging.LogRecord) -> None:
        self.turn(getattr(record, "stage", self._stage))

    def turn(self, stage: str | None) -> None:
        """End the present stage and begin another."""
        if stage != self._stage:
            time, seconds = now(self._device), self.ledger.seconds
            seconds[self._stage] = seconds.get(self._stage, 0.0) + time - self._since
            self._stage, self._since = stage or FIRST, time


@contextmanager
def stages(device: str | torch.device) -> Iterator[Ledger]:
    """Measure the seconds of each stage of a fit in the block, and peak memory; a GPU is synchronised."""
    peak, clock, level = Peak(device), _Clock(device), LOGGER.level
    LOGGER.addHandler(clock)
    LOGGER.setLevel(logging.DEBUG)
    try:
        yield clock.ledger
    finally:
        clock.turn(None)
        clock.ledger.peak.update(peak.bytes())
        LOGGER.setLevel(level)
        LOGGER.removeHandler(clock)


def status_bytes(name: str) -> int | None:
    """Bytes in a line of /proc/self/status, such as VmRSS; None on other systems."""
    with suppress(OSError):
        lines = dict(line.split(":", 1) for line in (_PROCESS / "status").read_text().splitlines())
        return 1024 * int(lines[name].split()[0]) if name in lines else None
    return None
