"""Textures as small grey images, from a seed: stripes, checks, clouds and blobs, without objects."""

import math

import torch
from torch import Tensor
from torch.nn.functional import interpolate

SIDE = 28
OCTAVES = (3, 5, 9, 17)  # points along a side, each half as strong as the one before


def draw_textures(n: int, *, seed: int = 0) -> tuple[Tensor, list[str]]:
    """Images, float32 from 0 to 1, shape [n, 1, 28, 28], and their kinds, in turn.

    Widths, angles, phases and contrasts are drawn from the seed, one after another for all kinds.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack([MAKERS[kind](n, generator) for kind in KINDS])  # [K, n, side, side]
    kinds = torch.arange(n) % len(KINDS)
    images = drawn[kinds, torch.arange(n)]
    low = 0.5 * torch.rand(n, 1, 1, generator=generator)
    high = 1 - 0.3 * torch.rand(n, 1, 1, generator=generator)
    return (low + (high - low) * images)[:, None], [KINDS[kind] for kind in kinds.tolist()]


def waves(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two sine waves at right angles, of 2 to 7 periods per side, from -1 to 1, each [n, side, side]."""
    angle = math.pi * torch.rand(n, 1, 1, generator=generator)
    periods = 2 + 5 * torch.rand(n, 1, 1, generator=generator)
    phase = 2 * math.pi * torch.rand(2, n, 1, 1, generator=generator)
    at = (torch.arange(SIDE) + 0.5) / SIDE
    x, y = at[None, None, :], at[None, :, None]
    along, across = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    pulsation = 2 * math.pi * periods
    return (pulsation * along + phase[0]).sin(), (pulsation * across + phase[1]).sin()


def stripes(n: int, generator: torch.Generator) -> Tensor:
    """Soft-edged stripes, from 0 to 1, [n, side, side]."""
    return torch.sigmoid(4 * waves(n, generator)[0])


def checks(n: int, generator: torch.Generator) -> Tensor:
    """Soft-edged checks, from 0 to 1, [n, side, side]."""
    first, second = waves(n, generator)
    return torch.sigmoid(6 * first * second)


def clouds(n: int, generator: torch.Generator) -> Tensor:
    """Value noise in octaves, as Perlin's: each image from 0 to 1, [n, side, side]."""
    total = torch.zeros(n, 1, SIDE, SIDE)
    for octave, points in enumerate(OCTAVES):
        coarse = torch.rand(n, 1, points, points, generator=generator)
        total += 0.5**octave * interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=True)
    low, high = (total.flatten(1).quantile(q, dim=1)[:, None, None] for q in (0.0, 1.0))
    return (total[:, 0] - low) / (high - low)


def blobs(n: int, generator: torch.Generator) -> Tensor:
    """Round spots where a smooth noise is high, soft-edged, from 0 to 1, [n, side, side]."""
    coarse = torch.rand(n, 1, 7, 7, generator=generator)
    smooth = interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=True)[:, 0]
    return torch.sigmoid(25 * (smooth - 0.6))


MAKERS = {"stripes": stripes, "checks": checks, "clouds": clouds, "blobs": blobs}
KINDS = tuple(MAKERS)
