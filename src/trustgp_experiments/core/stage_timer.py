"""How long does each stage of a fit take, and how much memory? Told by the log of the fit itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from trustgp.executors.progress import LOGGER

from .memory import Peak

FIRST = "preparing"  # until a fit says otherwise


@dataclass
class Ledger:
    """What was used by stage, in the order of their first beginning.

    Args:
        seconds: Of each stage; a stage that comes again, for another kernel, adds to it.
        peaks: Bytes by stage and place, the most beside what there was before all stages.
        held: Bytes by place before all stages.
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
        """Bytes at the peak of all stages; None: nothing is known of that place."""
        found = [peaks[place] for peaks in self.peaks.values() if place in peaks]
        return max(found) if found else None


@contextmanager
def stages(device: str | torch.device) -> Iterator[Ledger]:
    """Times the stages of the fit inside the block; the ledger is complete at its end.

    A stage lasts until the next one begins. On a GPU the device is waited for where they meet.

    Args:
        device: Where the work is done.
    """
    clock, level = _Clock(torch.device(device)), LOGGER.level
    LOGGER.addHandler(clock)
    LOGGER.setLevel(logging.DEBUG)
    try:
        yield clock.ledger
    finally:
        clock.turn(FIRST)
        LOGGER.setLevel(level)
        LOGGER.removeHandler(clock)


class _Clock(logging.Handler):
    """Turns when a stage begins."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(logging.DEBUG)
        self._device, self._stage = device, FIRST
        self._peak, self._since = Peak(device), self._now()
        self.ledger = Ledger(held=self._peak.held)

    def emit(self, record: logging.LogRecord) -> None:
        stage = getattr(record, "stage", None)
        if stage is not None and stage != self._stage:
            self.turn(stage)

    def turn(self, stage: str) -> None:
        """What was used since the last turn belongs to the stage that ends."""
        now, peaks, ended = self._now(), self._peak.lap(), self._stage
        ledger = self.ledger
        ledger.seconds[ended] = ledger.seconds.get(ended, 0.0) + now - self._since
        before = ledger.peaks.get(ended, {})
        ledger.peaks[ended] = {place: max(size, before.get(place, 0)) for place, size in peaks.items()}
        self._stage, self._since = stage, now

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
