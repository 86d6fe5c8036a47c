"""Temperatures and scales of edges: fits recover those that generated the data, and are maxima."""

import math

import numpy as np
import pytest
import torch
from draws import Draws
from scipy.optimize import minimize
from scipy.stats import t as student

from trustgp.detection.class_gaussians import ClassTemperature, EdgeNoise, LocalNoise

TRUE = EdgeNoise(
    torch.tensor([1.0, 2.0, 0.5, 4.0], dtype=torch.float64),
    *(torch.tensor(value, dtype=torch.float64) for value in (0.7, 0.3, 0.5, 5.0)),
)


def drawn(m: int = 20_000, seed: int = 0):
    """Errors [m, 4] of TRUE, u and w [m], and the local noise [m, 4]."""
    draws = Draws(seed)
    unknown, picture, local = draws.normal(m).exp(), draws.normal(m).exp(), draws.normal(m, 4)
    noise = torch.from_numpy(student.rvs(5, size=(m, 4), random_state=seed))
    return noise * TRUE.scale(unknown, picture, local), unknown, picture, local


def test_the_scale_is_a_product_of_powers_and_the_local_noise_fades():
    u, w, local = torch.tensor([4.0, 0.5]), torch.tensor([2.0, 1.0]), torch.tensor([[0.6] * 4, [-1.0] * 4])
    parts = [[4.0**0.7 * 2.0**0.3 * math.exp(0.5 * 0.6 / 2)], [0.5**0.7 * math.exp(-0.5)]]
    expected = TRUE.level * torch.tensor(parts, dtype=torch.float64)
    torch.testing.assert_close(TRUE.scale(u, w, local), expected)
    torch.testing.assert_close(TRUE.std(u, w, local), expected * (5 / 3) ** 0.5)


def test_no_scales_nearby_are_likelier():
    """The powers without the local noise, and then the rest with these."""
    given = drawn(2000, seed=1)
    noise = EdgeNoise.fit(given)

    def loss(*own):
        scale = EdgeNoise(*own).scale(*given[1:]).numpy()
        return -student.logpdf(given[0].numpy(), float(own[-1]), scale=scale).mean()

    own = (noise.level, noise.growth, noise.picture, noise.local, noise.df)
    assert noise.loss(given) == pytest.approx(best := loss(*own), rel=1e-12)
    for place in (0, 3, 4):
        for factor in (0.95, 1.05):
            assert loss(*(part * factor if i == place else part for i, part in enumerate(own))) > best
    without = (*given[:3], torch.zeros_like(given[3]))
    assert torch.equal(EdgeNoise.fit(without).growth, noise.growth)
    assert float(noise.local) == pytest.approx(0.5, abs=0.1)


def test_the_local_noise_that_generated_the_errors_is_recovered_and_no_weight_nearby_is_better():
    chance = torch.Generator().manual_seed(0)
    features, boxes = torch.randn(3000, 3, generator=chance), torch.rand(3000, 4, generator=chance) + 0.1
    offset = torch.randn(3000, generator=chance).double()
    log_scale = features.double() @ torch.tensor([[0.5, 0.0, -0.3, 0.2]] * 3).double() + offset[:, None]
    errors = log_scale.exp() * torch.from_numpy(student.rvs(6, size=(3000, 4), random_state=0))
    local = LocalNoise.fit(features, boxes, errors, offset, 1e-4)
    value = local(features, boxes)
    assert float(torch.corrcoef(torch.stack([value[:, 0], (log_scale - offset[:, None])[:, 0]]))[0, 1]) > 0.95
    rows = torch.cat([features.double(), boxes.double(), boxes[:, 2:].double().log()], dim=1).numpy()
    white = ((rows - rows.mean(axis=0)) / rows.std(axis=0)).clip(-4, 4)
    np.testing.assert_allclose(value.numpy(), white @ local.weights.numpy(), rtol=1e-9, atol=1e-9)
    typical = errors.square().mean(dim=0).sqrt().numpy()

    def loss(weights):
        """With the best level and tails."""

        def given(free):
            scale = typical * np.exp(free[:4] + white @ weights + (offset - offset.mean()).numpy()[:, None])
            return -student.logpdf(errors.numpy(), 2 + 4 * np.exp(free[4]), scale=scale).mean()

        return minimize(given, np.zeros(5)).fun + 0.25e-4 * (weights**2).sum()

    best = loss(local.weights.numpy())
    for place, change in ((0, 0.05), (4, -0.05)):
        other = local.weights.numpy().copy()
        other[place] += change
        assert loss(other) > best
    far = local(100.0 * features, boxes)  # no further than in training
    assert bool((far <= value.amax(dim=0)).all() & (far >= value.amin(dim=0)).all())


def test_powers_are_fitted_to_variants_too_and_levels_to_held_out_pictures_alone():
    errors, u, w, local = drawn(20_000)
    near = (u > 0.9) & (u < 1.1) & (w > 0.9) & (w < 1.1)  # as in training: powers cannot be identified
    held = errors[near], u[near], w[near], local[near]
    changed = 3.0 * errors, u, w, local  # and errors are larger there
    noise = EdgeNoise.fit(held, changed)
    assert float(noise.growth) == pytest.approx(0.7, abs=0.05)
    assert float(noise.picture) == pytest.approx(0.3, abs=0.05)
    torch.testing.assert_close(noise.level, TRUE.level, rtol=0.2, atol=0)
    reach = student.ppf(0.975, float(noise.df)) * noise.scale(*held[1:])
    assert float((held[0].abs() <= reach).double().mean()) == pytest.approx(0.95, abs=0.02)


def test_probabilities_are_a_softmax_whose_temperature_grows_with_the_variance():
    told = ClassTemperature(torch.tensor(1.5).double(), torch.tensor(0.5).double())
    logits, u = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6.0)
    expected = (logits.double() / (1.5**2 + 0.5 * u.double()).sqrt()[:, None]).softmax(dim=1)
    torch.testing.assert_close(told(logits, u), expected)


def test_the_temperature_that_generated_the_classes_is_recovered(generator):
    logits = 6 * torch.randn(20_000, 3, generator=generator)
    u = torch.randn(20_000, generator=generator).exp()
    true = ClassTemperature(torch.tensor(1.2).double(), torch.tensor(0.8).double())
    labels = torch.multinomial(true(logits, u), 1, generator=generator).squeeze(1)
    found = ClassTemperature.fit(logits, u, labels)
    assert float(found.least) == pytest.approx(1.2, rel=0.1)
    assert float(found.growth) == pytest.approx(0.8, rel=0.15)
