"""Gaussians of the features of each class, against plain loops in float64."""

import numpy as np
import torch

from trustgp.detection.class_gaussians import PRIOR_ROWS, SPHERES, WEIGHTS, ClassGaussians, ClassMoments

WIDTH = 5


def sums_of(seen: torch.Tensor, kinds: torch.Tensor, classes: int) -> ClassMoments:
    sums = ClassMoments.zero(classes, seen.shape[1])
    for part in (slice(None, 7), slice(7, None)):  # batches
        sums.include(seen[part], kinds[part])
    return sums


def rows(m: int, seed: int = 0, classes: int = 3):
    """Features [m, 5], of classes with means and spreads of their own, and the classes [m]."""
    chance = np.random.default_rng(seed)
    kinds = chance.integers(0, classes, m)
    spread = np.random.default_rng(9).normal(size=(classes, WIDTH, WIDTH))
    means = 3 * np.random.default_rng(8).normal(size=(classes, WIDTH))
    seen = means[kinds] + np.einsum("mij,mj->mi", spread[kinds], chance.normal(size=(m, WIDTH)))
    return torch.from_numpy(seen), torch.from_numpy(kinds)


def reference(seen, kinds, classes, weight, sphere):
    """Means and covariances, one class after another."""
    seen, kinds = seen.numpy(), kinds.numpy()
    mean, count = seen.mean(axis=0), [(kinds == c).sum() for c in range(classes)]
    own = [seen[kinds == c] for c in range(classes) if count[c]]
    within = sum((s - s.mean(axis=0)).T @ (s - s.mean(axis=0)) for s in own) / len(seen)
    between = (seen - mean).T @ (seen - mean) / len(seen)
    centres, spreads = [], []
    for c in range(classes):
        own = seen[kinds == c]
        centre = (own.sum(axis=0) + PRIOR_ROWS * mean) / (len(own) + PRIOR_ROWS)
        common = within if len(own) else between
        prior = (1 - sphere) * common + sphere * np.trace(common) / WIDTH * np.eye(WIDTH)
        scatter = (own - centre).T @ (own - centre)
        centres.append(centre)
        spreads.append((scatter + weight * WIDTH * prior) / (len(own) + weight * WIDTH))
    return np.array(centres), np.array(spreads)


def distance(seen, kinds, centres, spreads):
    pairs = zip(seen.numpy(), kinds.numpy(), strict=True)
    return np.array(
        [(s - centres[c]) @ np.linalg.inv(spreads[c]) @ (s - centres[c]) / WIDTH for s, c in pairs]
    )


def test_shrinkage_is_the_likeliest_of_the_grid_on_held_out_rows():
    seen, kinds = rows(60)
    held_out, held_kinds = rows(40, seed=1)
    gaussians = ClassGaussians.fit(sums_of(seen, kinds, 4), held_out, held_kinds)  # the last has no rows

    def loss(weight, sphere):
        centres, spreads = reference(seen, kinds, 4, weight, sphere)
        logs = np.array([np.linalg.slogdet(spreads[c])[1] for c in held_kinds.numpy()])
        return float((0.5 * WIDTH * distance(held_out, held_kinds, centres, spreads) + 0.5 * logs).mean())

    best = min(((w, s) for w in WEIGHTS for s in SPHERES), key=lambda pair: loss(*pair))
    for label in (held_kinds, torch.full_like(held_kinds, 3)):
        expected = distance(held_out, label, *reference(seen, kinds, 4, *best))
        np.testing.assert_allclose(gaussians(held_out, label).numpy(), expected, rtol=1e-4)


def test_constant_features_have_a_finite_variance():
    same, label = torch.ones(30, WIDTH), torch.zeros(30).long()
    gaussians = ClassGaussians.fit(sums_of(same, label, 1), same, label)
    assert bool(torch.isfinite(gaussians(same[:1], torch.zeros(1).long())).all())
    assert float(gaussians(same[:1] + 1.0, torch.zeros(1).long())) > 1e3
