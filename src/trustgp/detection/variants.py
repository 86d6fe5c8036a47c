"""Pictures with another brightness or contrast, whose objects stay where they are: the error bars of boxes
are fitted to them, too."""

from __future__ import annotations

from torch import Tensor

BRIGHTNESS = (-0.75, 0.75)  # shifts, in standard deviations of the picture
CONTRAST = (0.5, 1.5)  # factors
VARIANTS = len(BRIGHTNESS) + len(CONTRAST)


def photometric_variants(images: Tensor) -> list[Tensor]:
    """Pictures [n, channels, height, width] made darker, brighter, and of less and more contrast."""
    spread = images.std(dim=(2, 3), keepdim=True, correction=0)  # of each channel
    middle = images.mean(dim=(2, 3), keepdim=True)
    shifted = [images + shift * spread for shift in BRIGHTNESS]
    return shifted + [middle + times * (images - middle) for times in CONTRAST]
