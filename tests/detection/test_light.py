"""Pictures in another light: as many as are said, of any scale, and things stay where they were."""

import torch

from trustgp.detection.light import BRIGHTER, CHANGES, CONTRAST, in_other_light

IMAGES = torch.randn(3, 3, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_light_changes_brightness_and_contrast_of_each_picture_by_itself():
    changed = in_other_light(IMAGES)
    assert len(changed) == CHANGES
    for shift, other in zip(BRIGHTER, changed, strict=False):
        spread = IMAGES.flatten(2).std(dim=2, correction=0)
        torch.testing.assert_close((other - IMAGES).mean(dim=(2, 3)), shift * spread)
        torch.testing.assert_close(other.std(dim=(2, 3)), IMAGES.std(dim=(2, 3)))
    for times, other in zip(CONTRAST, changed[len(BRIGHTER) :], strict=True):
        torch.testing.assert_close(other.mean(dim=(2, 3)), IMAGES.mean(dim=(2, 3)))
        torch.testing.assert_close(other.std(dim=(2, 3)), times * IMAGES.std(dim=(2, 3)))
    alone = in_other_light(IMAGES[1:2])
    assert all(torch.equal(one[0], many[1]) for one, many in zip(alone, changed, strict=True))


def test_light_goes_with_the_scale_of_the_pictures():
    for plain, scaled in zip(in_other_light(IMAGES), in_other_light(255 * IMAGES + 7), strict=True):
        torch.testing.assert_close(255 * plain + 7, scaled)
