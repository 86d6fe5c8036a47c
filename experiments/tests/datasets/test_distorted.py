"""Turned and noisy images, against what torch does by other means."""

import math

import pytest
import torch

from trustgp_experiments.datasets import add_noise, rotate, uniform_noise


@pytest.fixture
def images(generator):
    return torch.rand(3, 2, 9, 9, generator=generator, dtype=torch.float64)


def test_every_pixel_is_interpolated_from_where_it_came(images):
    degrees, size = 25.0, images.shape[-1]
    angle, centre = math.radians(degrees), (size - 1) / 2
    expected = torch.zeros_like(images)
    for row in range(size):
        for column in range(size):
            # against the clock with rows growing downward
            x, y = column - centre, row - centre
            from_x = math.cos(angle) * x - math.sin(angle) * y + centre
            from_y = math.sin(angle) * x + math.cos(angle) * y + centre
            for i in (math.floor(from_y), math.floor(from_y) + 1):
                for j in (math.floor(from_x), math.floor(from_x) + 1):
                    if 0 <= i < size and 0 <= j < size:
                        share = (1 - abs(from_y - i)) * (1 - abs(from_x - j))
                        expected[:, :, row, column] += share * images[:, :, i, j]
    torch.testing.assert_close(rotate(images, degrees), expected, rtol=0, atol=1e-12)


def test_noise_has_its_std_and_is_cut_to_the_range():
    grey = torch.full((50, 1, 20, 20), 0.5)
    found = add_noise(grey, 0.1)
    assert float((found - grey).std()) == pytest.approx(0.1, rel=0.02)
    assert torch.equal(add_noise(grey, 0.0), grey)
    wild = add_noise(grey, 2.0)
    assert float(wild.min()) == 0.0
    assert float(wild.max()) == 1.0


def test_the_seed_decides_the_noise_and_no_global_generator_moves(images):
    before = torch.get_rng_state()
    assert torch.equal(add_noise(images, 0.2, seed=3), add_noise(images, 0.2, seed=3))
    assert not torch.equal(add_noise(images, 0.2, seed=3), add_noise(images, 0.2, seed=4))
    assert torch.equal(uniform_noise(4, seed=1), uniform_noise(4, seed=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_no_image_is_refused(images):
    with pytest.raises(ValueError, match="uint8"):
        rotate((255 * images).byte(), 10.0)
    with pytest.raises(ValueError, match=r"shape \(2, 9, 9\)"):
        add_noise(images[0], 0.1)
    with pytest.raises(ValueError, match="std=-1"):
        add_noise(images, -1.0)
