"""How much memory does some work take at its peak?"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

import torch

_PROCESS = Path("/proc/self")


class Peak:
    """Bytes at the peak since it was made, beside those there were then.

    The process's resident memory as "cpu", where Linux tells it, and on a GPU what torch has allocated there
    as "cuda", and what it keeps there as "cuda reserved". `held` is what there was before. An allocator may
    keep what was freed (torch's own on AArch64 does, for a while): resident memory is then an upper bound.

    Args:
        device: Where the work is done.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._device = torch.device(device)
        gc.collect()
        with suppress(OSError, AttributeError):  # what was freed but not given back would hide as much
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._reset()
        self.held = self._marks()

    def bytes(self) -> dict[str, int]:
        """By place."""
        return {place: max(0, size - self.held[place]) for place, size in self._marks().items()}

    def lap(self) -> dict[str, int]:
        """As `bytes`, since the last lap; the next one begins."""
        found = self.bytes()
        self._reset()
        return found

    def _marks(self) -> dict[str, int]:
        """The high-water marks, which right after a reset are what is held."""
        found, high = {}, status_bytes("VmHWM")
        if high is not None:
            found["cpu"] = high
        if self._device.type == "cuda":
            found["cuda"] = torch.cuda.max_memory_allocated(self._device)
            found["cuda reserved"] = torch.cuda.max_memory_reserved(self._device)
        return found

    def _reset(self) -> None:
        """The high-water marks begin anew."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        with suppress(OSError):
            (_PROCESS / "clear_refs").write_text("5")


def status_bytes(name: str) -> int | None:
    """A line of /proc/self/status, such as VmRSS; None where there is none."""
    with suppress(OSError):
        for line in (_PROCESS / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return 1024 * int(line.split()[1])
    return None
