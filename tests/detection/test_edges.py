"""How far off edges are: a noise, and a share of the novelty."""

from __future__ import annotations

import torch

from trustgp.detection.state import FLOOR, Edges


def drawn(m: int = 4000, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    novelty = torch.rand(m, generator=generator, dtype=torch.float64) ** 2
    noise, latent = torch.tensor([0.5, 1.0, 2.0, 0.3]).double(), torch.tensor([3.0, 0.5, 1.0, 4.0]).double()
    std = (noise**2 + latent**2 * novelty[:, None]).sqrt()
    return std * torch.randn(m, 4, generator=generator, dtype=torch.float64), novelty, noise, latent


def loss(errors, novelty, noise, latent):
    """Of normal errors, written out once more."""
    total = torch.zeros((), dtype=torch.float64)
    for c in range(4):
        variance = noise[c] ** 2 + latent[c] ** 2 * novelty
        total = total + (errors[:, c] ** 2 / (2 * variance) + variance.log() / 2).mean() / 4
    return total


def test_std_is_the_root_of_noise_and_novelty():
    edges = Edges(torch.tensor([3.0, 0.0, 1.0, 2.0]).double(), torch.tensor([4.0, 2.0, 0.0, 1.0]).double())
    expected = [[5.0, 2.0, 1.0, 5.0**0.5], [3.0, 0.0, 1.0, 2.0]]
    torch.testing.assert_close(edges.std(torch.tensor([1.0, 0.0])), torch.tensor(expected).double())


def test_the_scales_that_made_the_errors_are_found():
    errors, novelty, noise, latent = drawn()
    found = Edges.fit(errors, novelty)
    torch.testing.assert_close(found.noise, noise, rtol=0.1, atol=0.05)
    torch.testing.assert_close(found.latent, latent, rtol=0.1, atol=0.1)


def test_no_scales_nearby_are_likelier():
    errors, novelty, *_ = drawn()
    found = Edges.fit(errors, novelty)
    best = loss(errors, novelty, found.noise, found.latent)
    for c in range(4):
        for factor in (0.97, 1.03):
            turned = torch.ones(4, dtype=torch.float64)
            turned[c] = factor
            assert loss(errors, novelty, found.noise * turned, found.latent) > best
            assert loss(errors, novelty, found.noise, found.latent * turned) > best


def test_the_noise_never_vanishes():
    errors, novelty, *_ = drawn(200, seed=2)
    found = Edges.fit(errors * novelty[:, None].sqrt() * 10, novelty)
    typical = (errors * novelty[:, None].sqrt() * 10).square().mean(dim=0).sqrt()
    assert bool((found.noise >= FLOOR * typical).all())


def test_a_perfect_detector_has_finite_scales():
    found = Edges.fit(torch.zeros(30, 4), torch.rand(30, generator=torch.Generator().manual_seed(0)))
    assert bool(torch.isfinite(found.std(torch.tensor([0.0, 1.0]))).all())
