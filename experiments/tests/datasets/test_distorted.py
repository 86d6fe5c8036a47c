"""Turned and noisy images, against what torch does by other means."""

import math

import pytest
import torch

from trustgp_experiments.datasets import add_noise, rotate, uniform_noise


@pytest.fixture
def images(generator):
    return torch.rand(3, 2, 9, 9, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("quarters", [0, 1, 2, 3, 4])
def test_quarter_turns_are_those_of_rot90(images, quarters):
    expected = torch.rot90(images, quarters, dims=(2, 3))
    torch.testing.assert_close(rotate(images, 90.0 * quarters), expected, rtol=0, atol=1e-12)


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


def test_images_that_are_not_square_turn_about_their_centre():
    image = torch.zeros(1, 1, 5, 11, dtype=torch.float64)
    image[0, 0, 2, 7] = 1.0  # two pixels to the right of the centre
    turned = rotate(image, 90.0)
    assert turned[0, 0, 0, 5] == pytest.approx(1.0, abs=1e-12)  # two above it
    assert float(turned.sum()) == pytest.approx(1.0, abs=1e-12)


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


def test_uniform_noise_is_uniform():
    found = uniform_noise(200).flatten().sort().values
    assert found.dtype == torch.float32
    assert float((found - torch.linspace(0, 1, len(found))).abs().max()) < 0.01  # Kolmogorov's distance


def test_what_is_no_image_is_refused(images):
    with pytest.raises(ValueError, match="uint8"):
        rotate((255 * images).byte(), 10.0)
    with pytest.raises(ValueError, match=r"shape \(2, 9, 9\)"):
        add_noise(images[0], 0.1)
    with pytest.raises(ValueError, match="std=-1"):
        add_noise(images, -1.0)
