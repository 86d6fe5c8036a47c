"""Pictures in another light, in which things are where they were: what error bars learn from beyond those
that were held out."""

from __future__ import annotations

from torch import Tensor

BRIGHTER = (-0.75, 0.75)  # standard deviations by which a picture becomes darker or brighter
CONTRAST = (0.5, 1.5)  # times the contrast
CHANGES = len(BRIGHTER) + len(CONTRAST)


def in_other_light(images: Tensor) -> list[Tensor]:
    """Pictures [n, channels, height, width] as they are, made darker, brighter, paler and harsher."""
    spread = images.std(dim=(2, 3), keepdim=True, correction=0)  # of each channel: any scale will do
    middle = images.mean(dim=(2, 3), keepdim=True)
    shifted = [images + shift * spread for shift in BRIGHTER]
    return shifted + [middle + times * (images - middle) for times in CONTRAST]
