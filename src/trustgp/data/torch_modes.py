"""Modes of torch that a user may have switched on around a call, and in which gradients would be others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Mixed precision switched off: an error bar is that of the network in the precision it has."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


@contextmanager
def plain_modes() -> Iterator[None]:
    """Neither mixed precision nor inference mode, in which no tensor that is made can have a gradient."""
    with torch.inference_mode(False), without_autocast("cpu"), without_autocast("cuda"):
        yield
