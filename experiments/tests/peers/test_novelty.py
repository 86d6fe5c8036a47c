"""Novelty scores of others, each against the formula of its paper written plainly in numpy, float64."""

import copy

import numpy as np
import pytest
import torch
from draws import normal
from torch import nn

from trustgp_experiments.peers import novelty
from trustgp_experiments.peers.novelty import NOVELTY, Gaussians, NoveltyPeer, last_layer

DIM, CLASSES = 6, 3


def network() -> nn.Module:
    """Inputs of 4 numbers, 6 features, 3 logits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, DIM), nn.Tanh(), nn.Linear(DIM, CLASSES)).double().eval()


def rows(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(n) % CLASSES
    return normal(n, 4, seed=seed) + labels[:, None], labels


TRAIN, HELD, NEW = rows(90, 1), rows(60, 2), 2.0 * normal(25, 4, seed=5)


def features(inputs: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return network()[:2](inputs).numpy()


def logits(inputs: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return network()(inputs).numpy()


def peer(name: str, train=None, own: nn.Module | None = None) -> NoveltyPeer:
    own = network() if own is None else own
    return NoveltyPeer(own, NOVELTY[name](novelty.Known.by(own, train or TRAIN, HELD)))


def scores(name: str, inputs: torch.Tensor = NEW) -> np.ndarray:
    return peer(name).score(inputs).numpy()


def alike(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def test_scores_of_the_logits_are_those_of_their_papers():
    z = logits(NEW)
    alike(scores("energy"), -np.log(np.exp(z).sum(axis=1)))
    alike(scores("largest logit"), -z.max(axis=1))
    chances = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    alike(scores("largest probability"), -np.log(chances.max(axis=1)))


def covariance(apart: np.ndarray, ridge: float) -> np.ndarray:
    plain = sum(np.outer(row, row) for row in apart) / len(apart)
    return plain + ridge * np.mean(np.diag(plain)) * np.eye(len(plain))


def log_normal(row: np.ndarray, mean: np.ndarray, spread: np.ndarray) -> float:
    away = row - mean
    return float(-0.5 * (away @ np.linalg.inv(spread) @ away + np.log(np.linalg.det(2 * np.pi * spread))))


def by_class(labels: torch.Tensor, ridge: float, *, shared: bool) -> tuple[list, list]:
    h, y = features(TRAIN[0]), labels.numpy()
    kinds = sorted(set(y.tolist()))
    means = [h[y == c].mean(axis=0) for c in kinds]
    apart = [h[y == c] - mean for c, mean in zip(kinds, means, strict=True)]
    if shared:
        return means, [covariance(np.concatenate(apart), ridge)] * len(kinds)
    return means, [covariance(part, ridge) for part in apart]


def likeliest_ridge(train: torch.Tensor, held: torch.Tensor, *, shared: bool) -> float:
    h, y = features(HELD[0]), held.numpy()
    kinds = sorted(set(train.tolist()))

    def loss(ridge: float) -> float:
        means, spreads = by_class(train, ridge, shared=shared)
        place = {kind: at for at, kind in enumerate(kinds)}
        return -sum(log_normal(r, means[place[c]], spreads[place[c]]) for r, c in zip(h, y, strict=True))

    return min(novelty.RIDGES, key=loss)


def distances(labels: torch.Tensor, held: torch.Tensor, *, shared: bool) -> np.ndarray:
    means, spreads = by_class(labels, likeliest_ridge(labels, held, shared=shared), shared=shared)
    away = [features(NEW) - mean for mean in means]
    each = [np.einsum("nd,de,ne->n", a, np.linalg.inv(s), a) for a, s in zip(away, spreads, strict=True)]
    return np.stack(each, axis=1)


def test_mahalanobis_is_the_distance_to_the_nearest_mean_and_the_relative_one_less_that_to_all_rows():
    one, held = torch.zeros_like(TRAIN[1]), torch.zeros_like(HELD[1])
    nearest = distances(TRAIN[1], HELD[1], shared=True).min(axis=1)
    alike(scores("Mahalanobis"), nearest)
    alike(scores("relative Mahalanobis"), nearest - distances(one, held, shared=False)[:, 0])


def test_the_density_is_a_mixture_of_the_classes_gaussians():
    labels = TRAIN[1].clone()
    labels[:15] = 0  # so that classes have different shares
    ridge = likeliest_ridge(labels, HELD[1], shared=False)
    means, spreads = by_class(labels, ridge, shared=False)
    shares = [float((labels == c).double().mean()) for c in range(CLASSES)]
    parts = list(zip(shares, means, spreads, strict=True))
    expected = [-np.log(sum(p * np.exp(log_normal(h, m, s)) for p, m, s in parts)) for h in features(NEW)]
    alike(peer("DDU density", (TRAIN[0], labels)).score(NEW).numpy(), np.array(expected))


def test_a_class_without_rows_has_no_gaussian_and_a_feature_that_never_moves_breaks_nothing():
    h, labels = normal(40, 3), torch.arange(40) % 2 * 2  # 0 and 2
    classes = Gaussians.fit(h, labels, (h[:10], labels[:10]))
    assert classes.means.shape == (2, 3)
    assert torch.isfinite(classes.log_density(normal(5, 3, seed=2))).all()
    h[:, 1] = 0.0
    classes = Gaussians.fit(h, labels, (h[:10], labels[:10]))
    moved = h[:1] + torch.tensor([0.0, 1.0, 0.0]).double()
    assert torch.isfinite(classes.distances(moved)).all()
    assert (classes.distances(moved) > classes.distances(h[:1])).all()


def test_neighbours_are_counted_by_angle_or_by_distance():
    train, new = features(TRAIN[0]), features(NEW)
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (train, new)]
    cosines = np.sort(1.0 - unit[1] @ unit[0].T, axis=1)[:, novelty.NEIGHBOURS - 1]
    alike(scores("kNN, cosine"), cosines)
    lengths = np.linalg.norm(new[:, None] - train[None], axis=2)
    alike(scores("kNN, Euclidean"), np.sort(lengths, axis=1)[:, novelty.NEIGHBOURS - 1])


def test_vim_is_the_virtual_logit_less_the_energy_with_half_of_the_directions_kept():
    weight, bias = (part.detach().numpy() for part in (network()[2].weight, network()[2].bias))
    origin = -np.linalg.pinv(weight) @ bias
    train, new = features(TRAIN[0]) - origin, features(NEW) - origin
    values, vectors = np.linalg.eig(train.T @ train / len(train))
    rest = vectors[:, np.argsort(-values)[DIM // 2 :]]
    alpha = logits(TRAIN[0]).max(axis=1).mean() / np.linalg.norm(train @ rest, axis=1).mean()
    energy = -np.log(np.exp(logits(NEW)).sum(axis=1))
    alike(scores("ViM"), alpha * np.linalg.norm(new @ rest, axis=1) + energy)
    assert [novelty.kept_directions(width) for width in (6, 767, 800, 2048)] == [3, 383, 512, 1000]


@pytest.mark.parametrize("name", NOVELTY)
def test_a_broken_row_is_infinitely_novel_and_breaks_no_other_and_the_network_stays(name):
    own = network()
    before, broken = copy.deepcopy(own.state_dict()), NEW.clone()
    broken[3, 1] = torch.nan
    fitted = peer(name, own=own)
    found, whole = fitted.score(broken), fitted.score(NEW)
    others = torch.arange(len(NEW)) != 3
    assert found.shape == (len(NEW),)
    assert torch.isinf(found[3])
    torch.testing.assert_close(found[others], whole[others])
    assert all(torch.equal(value, before[key]) for key, value in own.state_dict().items())
    assert not last_layer(own)._forward_pre_hooks


def test_a_network_without_a_linear_layer_is_refused():
    with pytest.raises(ValueError, match="no Linear layer"):
        last_layer(nn.Tanh())
