"""Split conformal intervals and sets: the formula, the promise by simulation, and what is refused."""

import math

import pytest
import torch
from blobs import blobs, draw, fit
from draws import Draws
from scipy.stats import beta, binom, norm, t

import trustgp
from trustgp.state.conformal import class_scores


@pytest.fixture(scope="module")
def arm():
    """A model with two outputs and noisy targets; rows are drawn by the function."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)]
    network = torch.nn.Sequential(*layers).double().eval()

    def rows(n: int, seed: int):
        draws = Draws(seed)
        x, noise = draws.uniform(n, 2), draws.normal(n, 2)
        return x, network(x).detach() + (0.05 + x[:, :1]) * noise * torch.tensor([1.0, 10.0])

    model = trustgp.fit(network, rows(300, 0), num_experts=4, progress=False, validation=rows(200, 1))
    return model, rows


def rank(n: int, level: float) -> int:
    return math.ceil((n + 1) * level)


def coverage_bounds(n: int, level: float, size: int) -> tuple[float, float]:
    """Of the share of `size` new rows: given n validation rows, coverage has a beta distribution."""
    low, high = beta(rank(n, level), n + 1 - rank(n, level)).interval(0.9999)
    return binom(size, low).ppf(0.0001) / size, binom(size, high).ppf(0.9999) / size


def level_of(p: trustgp.Prediction, y: torch.Tensor) -> torch.Tensor:
    """P(|Y - mean| <= |y - mean|), by scipy."""
    z, d, df = (y - p.mean).abs().numpy(), p.excess.sqrt().numpy(), p.df.numpy()
    spread = (p.epistemic + p.aleatoric).numpy()
    near = sum(t.cdf((z + way * d) / (spread * (df - 2) / df) ** 0.5, df) for way in (-1, 1)) - 1
    far = 2 * norm.cdf(z / (spread + d**2 + p.rare.numpy() / p.outlier_share) ** 0.5) - 1
    return torch.from_numpy((1 - p.outlier_share) * near + p.outlier_share * far)


def test_an_interval_has_the_level_that_so_many_validation_rows_stayed_below(arm):
    model, rows = arm
    x, y = rows(50, 2)
    limits = model.conformal((x, y), level=0.8)
    assert limits.groups.tolist() == [0] * len(model.mixtures[0].experts)  # too few rows for more groups
    limit = level_of(model.predict(x), y).sort(dim=0).values[rank(50, 0.8) - 1]
    torch.testing.assert_close(limits.limits[0], limit, rtol=1e-9, atol=1e-12)
    new, _ = rows(20, 3)
    prediction, (lower, upper) = model.predict(new), limits.interval(new)
    torch.testing.assert_close((lower + upper) / 2, prediction.mean, rtol=1e-9, atol=1e-9)
    for end in (lower, upper):
        torch.testing.assert_close(level_of(prediction, end), limit.expand(20, 2), rtol=1e-7, atol=0)
    # the rows that set the limits lie inside, and those above it do not
    lower, upper = limits.interval(x)
    outside = (y < lower - 1e-6) | (y > upper + 1e-6)
    assert outside.sum(0).tolist() == [50 - rank(50, 0.8)] * 2
    assert model.conformal((x, y)).level == 0.9  # unless another level is asked for


def test_extreme_targets_and_unknown_rows_have_extreme_intervals(arm):
    model, rows = arm
    x, y = rows(50, 2)
    lower, upper = model.conformal((x, y + 1e9), level=0.8).interval(x)  # no level distinguishes such targets
    assert bool((lower == -math.inf).all() and (upper == math.inf).all())
    lower, upper = model.conformal((x, model.predict(x).mean), level=0.8).interval(x)
    assert bool((upper - lower < 1e-6).all() and (upper >= lower).all())
    x[0] = math.nan
    lower, upper = model.conformal(rows(100, 4), level=0.9).interval(x)
    assert lower[0].tolist() == [-math.inf] * 2
    assert upper[0].tolist() == [math.inf] * 2
    assert bool(torch.isfinite(upper[1:]).all())


def test_intervals_of_each_output_cover_as_promised_in_each_group(arm):
    model, rows = arm
    limits, (x, y) = model.conformal(rows(2000, 4), level=0.9), rows(20_000, 5)
    lower, upper = limits.interval(x)
    inside, groups = ((lower <= y) & (y <= upper)).double(), limits.groups[model.predict(x).expert]
    assert len(limits.counts) > 1
    for g, n in enumerate(limits.counts.tolist()):
        low, high = coverage_bounds(n, 0.9, int((groups == g).sum()))
        for share in inside[groups == g].mean(dim=0).tolist():
            assert low <= share <= high
    only = groups == 0
    with pytest.warns(UserWarning, match="groups of experts have fewer than 9 validation rows"):
        limits = model.conformal((x[only], y[only]), level=0.9)
    assert bool(torch.isinf(limits.limits).any())


def test_sets_hold_the_classes_near_the_best_one(blob, blob_model):
    x, y = draw(100, 3, seed=7)
    logs = blob_model.predict(x).probabilities.double().log()
    scores = logs.amax(1) - logs.gather(1, y[:, None])[:, 0]
    limit = scores.sort().values[rank(100, 0.9) - 1]
    new = blob_model.predict(blob.test[0]).probabilities.double().log()
    expected = new.amax(1, keepdim=True) - new <= limit + 1e-5
    sets = blob_model.conformal((x, y), level=0.9).sets(blob.test[0])
    assert sets.dtype == torch.bool
    assert float((sets == expected).double().mean()) > 0.999  # float32 probabilities at the limit


def test_sets_hold_the_predicted_class_and_grow_far_away(blob, blob_model):
    limits = blob_model.conformal(draw(500, 3, seed=7), level=0.99)  # above the accuracy: more than the best
    p, sets = blob_model.predict(blob.test[0]), limits.sets(blob.test[0])
    assert bool(sets.gather(1, p.classes[:, None]).all())
    assert limits.sets(30 * blob.test[0]).sum(1).double().mean() > sets.sum(1).double().mean()
    assert limits.sets(torch.full((1, 2), torch.nan)).tolist() == [[True] * 3]
    assert bool(torch.isfinite(class_scores(blob_model.predict(torch.tensor([[60.0, 0.0]])))).all())


def test_sets_cover_as_promised(blob_model):
    limits, (x, y) = blob_model.conformal(draw(1500, 3, seed=7), level=0.98), draw(20_000, 3, seed=8)
    low, high = coverage_bounds(1500, 0.98, 20_000)
    assert low <= float(limits.sets(x).gather(1, y[:, None]).double().mean()) <= high
    assert limits.counts.tolist() == [1500]


def test_other_kernels_and_a_single_logit_have_sets_too(blob):
    one = blobs(2, logits=1)
    assert fit(one).conformal(draw(300, 2, seed=7), level=0.9).sets(one.test[0]).shape == (400, 2)
    limits = fit(blob, outputs="separate").conformal(draw(200, 3, seed=7), level=0.9)
    assert float(limits.sets(blob.test[0]).gather(1, blob.test[1][:, None]).double().mean()) > 0.85


def test_levels_rows_and_labels_are_checked(blob, blob_model):
    x, y = blob.test
    refused = [
        *(((x, y), level, "strictly between") for level in (0.0, 1.0, 2.0)),
        ((x[:50], y[:50]), 0.99, "at least 99 validation rows, and there are 50"),
        ((x, y + 1), 0.9, "validation labels lie beyond"),
        ((x, torch.rand(400, 3)), 0.9, "one class number a row"),
    ]
    for rows, level, message in refused:
        with pytest.raises(ValueError, match=message):
            blob_model.conformal(rows, level=level)
