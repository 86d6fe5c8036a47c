"""Gaussians of the features of each class, against plain loops in float64."""

import numpy as np
import torch

from trustgp.detection import class_gaussians as module
from trustgp.detection.class_gaussians import ClassGaussians, ClassMoments, FeaturePool
from trustgp.detection.picture_pass import MAX_SAMPLED, BoxSample

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
        centre = (own.sum(axis=0) + module.PRIOR_ROWS * mean) / (len(own) + module.PRIOR_ROWS)
        common = within if len(own) else between
        prior = (1 - sphere) * common + sphere * np.trace(common) / WIDTH * np.eye(WIDTH)
        scatter = (own - centre).T @ (own - centre)
        centres.append(centre)
        spreads.append((scatter + weight * WIDTH * prior) / (len(own) + weight * WIDTH))
    return np.array(centres), np.array(spreads)


def distance(seen, kinds, centres, spreads):
    away, inverses = seen.numpy() - centres[kinds.numpy()], np.linalg.inv(spreads)[kinds.numpy()]
    return np.einsum("mi,mij,mj->m", away, inverses, away) / WIDTH


def test_shrinkage_is_the_likeliest_of_the_grid_on_held_out_rows():
    seen, kinds = rows(60)
    held_out, held_kinds = rows(40, seed=1)
    gaussians = ClassGaussians.fit(sums_of(seen, kinds, 4), held_out, held_kinds)  # the last has no rows

    def loss(weight, sphere):
        centres, spreads = reference(seen, kinds, 4, weight, sphere)
        logs = np.array([np.linalg.slogdet(spreads[c])[1] for c in held_kinds.numpy()])
        return float((0.5 * WIDTH * distance(held_out, held_kinds, centres, spreads) + 0.5 * logs).mean())

    best = min(((w, s) for w in module.WEIGHTS for s in module.SPHERES), key=lambda pair: loss(*pair))
    for label in (held_kinds, torch.full_like(held_kinds, 3)):
        expected = distance(held_out, label, *reference(seen, kinds, 4, *best))
        np.testing.assert_allclose(gaussians(held_out, label).numpy(), expected, rtol=1e-4)


def test_constant_features_have_a_finite_variance():
    same, label = torch.ones(30, WIDTH), torch.zeros(30).long()
    gaussians = ClassGaussians.fit(sums_of(same, label, 1), same, label)
    assert bool(torch.isfinite(gaussians(same[:1], torch.zeros(1).long())).all())
    assert float(gaussians(same[:1] + 1.0, torch.zeros(1).long())) > 1e3


def test_novelty_is_the_mean_exponent_of_tail_shares_among_familiar_rows():
    (seen, kinds), (held_out, held_kinds) = rows(60), rows(40, seed=1)
    parts, sums = (held_out, held_out[:, :2]), [sums_of(part, kinds, 3) for part in (seen, seen[:, :2])]
    familiar = torch.arange(40) % 2 == 0
    pool = FeaturePool.fit(sums, parts, held_kinds, familiar)
    variances = pool.variances(parts, held_kinds)
    for column, (own, part) in enumerate(zip(sums, parts, strict=True)):
        expected = ClassGaussians.fit(own, part, held_kinds)(part, held_kinds)
        torch.testing.assert_close(variances[:, column], expected)
    logs = variances.log().numpy()
    levels = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)
    exponent = np.zeros(40)
    for column in range(2):
        ordered = np.sort(logs[::2, column])
        knots = ordered[[int(level * 20) for level in levels]]
        inside = np.interp(logs[:, column], knots, -np.log1p(-np.array(levels)))
        width = np.mean(ordered[ordered > knots[-1]] - knots[-1]) if ordered[-1] > knots[-1] else None
        width = width or (knots[-1] - knots[2]) / (np.log(20.0) - np.log(2.0))
        exponent += 0.5 * (inside + np.maximum(logs[:, column] - knots[-1], 0.0) / width)
    np.testing.assert_allclose(pool(variances).numpy(), exponent / (1 + exponent), rtol=1e-6)
    assert float(pool(torch.full((1, 2), torch.inf).double())) == 1.0


def test_a_kind_of_features_without_numbers_is_left_out():
    (seen, kinds), (held_out, held_kinds) = rows(60), rows(40, seed=1)
    sums, parts = [sums_of(part, kinds, 3) for part in (seen, seen[:, :0])], (held_out, held_out[:, :0])
    pool = FeaturePool.fit(sums, parts, held_kinds, torch.ones(40, dtype=torch.bool))
    assert pool.variances(parts, held_kinds).shape == (40, 1)


def test_a_sample_of_boxes_is_of_evenly_spaced_pictures_and_bounded():
    m = MAX_SAMPLED // 2 + 1
    more = torch.zeros(m, 2), torch.zeros(m, 4), torch.zeros(m, 4), torch.zeros(m, dtype=torch.int64)
    sample = BoxSample(*(part[:0] for part in (*more, more[3])), step=torch.tensor(1))
    for start in range(3):
        sample = sample.include(*more, m * start + torch.arange(m))
    assert sample.index.tolist() == list(range(0, 3 * m, 2))
    assert len(sample.features) == len(sample.labels) <= MAX_SAMPLED
