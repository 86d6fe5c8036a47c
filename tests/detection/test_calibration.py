"""Temperatures and scales of edges: fits recover those that generated the data, and are maxima."""

import pytest
import torch
from scipy.stats import t as student

from trustgp.detection.class_gaussians import ClassTemperature, EdgeNoise

TRUE = EdgeNoise(
    torch.tensor([1.0, 2.0, 0.5, 4.0], dtype=torch.float64),
    *(torch.tensor(value, dtype=torch.float64) for value in (0.7, 0.3, 5.0)),
)


def drawn(m: int = 20_000, seed: int = 0):
    """Errors [m, 4] of TRUE, u and w [m]."""
    generator = torch.Generator().manual_seed(seed)
    unknown, picture = (torch.randn(m, generator=generator).double().exp() for _ in range(2))
    noise = torch.from_numpy(student.rvs(5, size=(m, 4), random_state=seed))
    return noise * TRUE.scale(unknown, picture), unknown, picture


def test_the_scale_is_a_product_of_powers():
    u, w = torch.tensor([4.0, 1.0]), torch.tensor([2.0, 1.0])
    expected = TRUE.level * torch.tensor([[4.0**0.7 * 2.0**0.3], [1.0]], dtype=torch.float64)
    torch.testing.assert_close(TRUE.scale(u, w), expected)
    torch.testing.assert_close(TRUE.std(u, w), expected * (5 / 3) ** 0.5)


def test_no_scales_nearby_are_likelier():
    errors, u, w = drawn(2000, seed=1)
    found = EdgeNoise.fit((errors, u, w))

    def loss(level, growth, picture, df):
        scale = EdgeNoise(level, growth, picture, df).scale(u, w).numpy()
        return -student.logpdf(errors.numpy(), float(df), scale=scale).mean()

    own = (found.level, found.growth, found.picture, found.df)
    best = loss(*own)
    for place in range(4):
        for factor in (0.95, 1.05):
            assert loss(*(part * factor if i == place else part for i, part in enumerate(own))) > best


def test_powers_are_fitted_to_variants_too_and_levels_to_held_out_pictures_alone():
    errors, u, w = drawn(20_000)
    near = (u > 0.9) & (u < 1.1) & (w > 0.9) & (w < 1.1)  # as in training: powers cannot be identified
    held = errors[near], u[near], w[near]
    changed = 3.0 * errors, u, w  # and errors are larger there
    found = EdgeNoise.fit(held, changed)
    assert float(found.growth) == pytest.approx(0.7, abs=0.03)
    assert float(found.picture) == pytest.approx(0.3, abs=0.03)
    torch.testing.assert_close(found.level, TRUE.level, rtol=0.15, atol=0)
    reach = student.ppf(0.975, float(found.df)) * found.scale(*held[1:])
    assert float((held[0].abs() <= reach).double().mean()) == pytest.approx(0.95, abs=0.02)


def test_probabilities_are_a_softmax_whose_temperature_grows_with_the_variance():
    told = ClassTemperature(torch.tensor(1.5).double(), torch.tensor(0.5).double())
    logits, u = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6.0)
    expected = (logits.double() / (1.5**2 + 0.5 * u.double()).sqrt()[:, None]).softmax(dim=1)
    torch.testing.assert_close(told(logits, u), expected)


def test_the_temperature_that_generated_the_classes_is_recovered():
    generator = torch.Generator().manual_seed(0)
    logits = 6 * torch.randn(20_000, 3, generator=generator)
    u = torch.randn(20_000, generator=generator).exp()
    true = ClassTemperature(torch.tensor(1.2).double(), torch.tensor(0.8).double())
    labels = torch.multinomial(true(logits, u), 1, generator=generator).squeeze(1)
    found = ClassTemperature.fit(logits, u, labels)
    assert float(found.least) == pytest.approx(1.2, rel=0.1)
    assert float(found.growth) == pytest.approx(0.8, rel=0.15)
