"""A small 1-D regression problem with a gap in its data."""

import math

import torch
from torch import Tensor

LOWER, UPPER = 0.0, 6.0


def truth(x: Tensor) -> Tensor:
    r"""The noise-free function of the toy, smooth and wiggly on [0, 6]; inputs and values of any shape.

    .. math:: f(x) = 0.9 \sin(3.2 x + 2) + 0.5 \sin(1.3 x + 2.6) - 0.3
    """
    return 0.9 * torch.sin(3.2 * x + 2.0) + 0.5 * torch.sin(1.3 * x + 2.6) - 0.3


def snelson_like(
    *, rows: int = 200, seed: int = 0, gap: tuple[float, float] = (2.4, 3.6), noise: float = 0.28
) -> tuple[Tensor, Tensor]:
    """Noisy rows of `truth` in the manner of Snelson's toy set, with a gap in the middle.

    The density is uneven, by a factor of about four, and no row falls inside ``gap``. The rows are in random
    order, as in the original: inputs and targets, float32, each of shape [n, 1].
    """
    start, stop = gap
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(rows, 1, generator=generator, dtype=torch.float64)
    # A monotone warp (its slope 1 + 0.2 pi cos(4 pi u) is positive) makes the density uneven.
    warped = uniform + 0.05 * torch.sin(4 * math.pi * uniform)
    width = stop - start
    x = LOWER + (UPPER - LOWER - width) * warped  # [n, 1], the interval with the gap cut out
    x = torch.where(x < start, x, x + width)
    y = truth(x) + noise * torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    return x.float(), y.float()
