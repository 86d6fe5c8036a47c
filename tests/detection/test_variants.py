"""Photometric variants change brightness and contrast of each picture by itself, at any scale."""

import torch

from trustgp.detection.picture_pass import BRIGHTNESS, CONTRAST, VARIANTS, photometric_variants

IMAGES = torch.randn(3, 3, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_brightness_and_contrast_of_each_picture_change_by_itself():
    variants = photometric_variants(IMAGES)
    assert len(variants) == VARIANTS
    for shift, other in zip(BRIGHTNESS, variants, strict=False):
        spread = IMAGES.flatten(2).std(dim=2, correction=0)
        torch.testing.assert_close((other - IMAGES).mean(dim=(2, 3)), shift * spread)
        torch.testing.assert_close(other.std(dim=(2, 3)), IMAGES.std(dim=(2, 3)))
    for times, other in zip(CONTRAST, variants[len(BRIGHTNESS) :], strict=True):
        torch.testing.assert_close(other.mean(dim=(2, 3)), IMAGES.mean(dim=(2, 3)))
        torch.testing.assert_close(other.std(dim=(2, 3)), times * IMAGES.std(dim=(2, 3)))
    single, scaled = photometric_variants(IMAGES[1:2]), photometric_variants(255 * IMAGES + 7)
    for i, plain in enumerate(variants):
        assert torch.equal(single[i][0], plain[1])
        torch.testing.assert_close(255 * plain + 7, scaled[i])
