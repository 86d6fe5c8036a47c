"""A module that stays as it was fitted."""

from __future__ import annotations

from typing import Self

import torch
from torch import nn


class FrozenModule(nn.Module):
    """Moves between devices; neither its mode nor its precision can be changed."""

    def train(self, mode: bool = True) -> Self:
        """Does nothing: the network stays in the mode in which it was fitted."""
        return self

    def _apply(self, fn, recurse: bool = True) -> Self:
        """Move to another device; the precision stays as it was fitted."""
        if fn(torch.empty(0, dtype=torch.float64)).dtype != torch.float64:
            raise TypeError("a fitted model keeps its precision; move it with .to(device) only.")
        return super()._apply(fn, recurse)
