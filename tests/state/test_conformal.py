"""Split conformal intervals and sets: the formula, the promise by simulation, and what is refused."""

import math

import pytest
import torch
from blobs import blobs, draw, fit
from scipy.stats import beta, binom, norm, t

import trustgp
from trustgp.state.conformal import class_scores


@pytest.fixture(scope="module")
def case():
    return blobs()


@pytest.fixture(scope="module")
def model(case):
    return fit(case)


@pytest.fixture(scope="module")
def arm():
    """A network with two outputs and noisy targets; rows are drawn by the function."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = (
            torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double().eval()
        )

    def rows(n: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
        noise = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        return x, network(x).detach() + (0.05 + x[:, :1]) * noise * torch.tensor([1.0, 10.0])

    model = trustgp.fit(network, rows(300, 0), num_experts=4, progress=False, validation=rows(200, 1))
    return model, rows


def rank(n: int, level: float) -> int:
    return math.ceil((n + 1) * level)


def level_of(p: trustgp.Prediction, y: torch.Tensor) -> torch.Tensor:
    """P(|Y - mean| <= |y - mean|), by scipy."""
    z, d, df = (y - p.mean).abs().numpy(), p.excess.sqrt().numpy(), p.df.numpy()
    spread = (p.epistemic + p.aleatoric).numpy()
    near = sum(t.cdf((z + way * d) / (spread * (df - 2) / df) ** 0.5, df) for way in (-1, 1)) - 1
    far = 2 * norm.cdf(z / (spread + d**2 + p.rare.numpy() / p.share) ** 0.5) - 1
    return torch.from_numpy((1 - p.share) * near + p.share * far)


def test_an_interval_has_the_level_that_so_many_validation_rows_stayed_below(arm):
    model, rows = arm
    x, y = rows(50, 2)
    found = model.conformal((x, y), level=0.8)
    assert found.groups.tolist() == [0] * len(model.mixtures[0].experts)  # too few rows for more groups
    scores = level_of(model.predict(x), y)
    limit = scores.sort(dim=0).values[rank(50, 0.8) - 1]
    torch.testing.assert_close(found.limits[0], limit, rtol=1e-9, atol=1e-12)
    new, _ = rows(20, 3)
    q = model.predict(new)
    lower, upper = found.interval(new)
    torch.testing.assert_close((lower + upper) / 2, q.mean, rtol=1e-9, atol=1e-9)
    for end in (lower, upper):
        torch.testing.assert_close(level_of(q, end), limit.expand(20, 2), rtol=1e-7, atol=0)
    # the rows that set the limits lie inside, and those above it do not
    lower, upper = found.interval(x)
    outside = (y < lower - 1e-6) | (y > upper + 1e-6)
    assert outside.sum(0).tolist() == [50 - rank(50, 0.8)] * 2


def test_a_limit_that_nothing_reaches_has_an_interval_without_ends(arm):
    model, rows = arm
    x, y = rows(50, 2)
    found = model.conformal((x, y + 1e9), level=0.8)  # no level tells one such target from another
    lower, upper = found.interval(x)
    assert bool((lower == -math.inf).all() and (upper == math.inf).all())
    found = model.conformal((x, model.predict(x).mean), level=0.8)
    lower, upper = found.interval(x)
    assert bool((upper - lower < 1e-6).all() and (upper >= lower).all())


def test_intervals_of_each_output_cover_as_promised(arm):
    model, rows = arm
    found = model.conformal(rows(2000, 4), level=0.9)
    x, y = rows(20_000, 5)
    lower, upper = found.interval(x)
    inside = ((lower <= y) & (y <= upper)).double()
    groups = found.groups[model.predict(x).expert]
    assert len(found.counts) > 1
    for g, n in enumerate(found.counts.tolist()):
        # given the validation rows, coverage follows this distribution
        low, high = beta(rank(n, 0.9), n + 1 - rank(n, 0.9)).interval(0.9999)
        size = int((groups == g).sum())
        low, high = binom(size, low).ppf(0.0001) / size, binom(size, high).ppf(0.9999) / size
        for share in inside[groups == g].mean(dim=0).tolist():
            assert low <= share <= high


def test_coverage_holds_for_few_rows_over_many_draws(arm):
    model, rows = arm
    x, y = rows(30 * 400, 6)
    p = model.predict(x)
    trials, held = 400, 0
    for index in torch.arange(len(x)).reshape(trials, 30):
        found = model.conformal((x[index[:-1]], y[index[:-1]]), level=0.8)
        lower, upper = found.interval(x[index[-1:]])
        held += int(lower[0, 0] <= y[index[-1], 0] <= upper[0, 0])
    promised = rank(29, 0.8) / 30
    low, high = binom.interval(0.9999, trials, promised)
    assert low <= held <= high
    assert p.mean.shape == (12_000, 2)


def test_sets_hold_what_is_near_the_best_class(case, model):
    found = model.conformal(draw(100, 3, seed=7), level=0.9)
    x, y = draw(100, 3, seed=7)
    logs = model.predict(x).probabilities.double().log()
    scores = logs.amax(1) - logs.gather(1, y[:, None])[:, 0]
    limit = scores.sort().values[rank(100, 0.9) - 1]
    new = model.predict(case.test[0]).probabilities.double().log()
    expected = new.amax(1, keepdim=True) - new <= limit + 1e-5
    sets = found.sets(case.test[0])
    assert sets.dtype == torch.bool
    assert float((sets == expected).double().mean()) > 0.999  # float32 probabilities at the limit


def test_sets_hold_the_predicted_class_and_grow_far_away(case, model):
    found = model.conformal(
        draw(500, 3, seed=7), level=0.99
    )  # above the accuracy: sets are more than the best
    p, sets = model.predict(case.test[0]), found.sets(case.test[0])
    assert bool(sets.gather(1, p.classes[:, None]).all())
    assert found.sets(30 * case.test[0]).sum(1).double().mean() > sets.sum(1).double().mean()
    assert found.sets(torch.full((1, 2), torch.nan)).tolist() == [[True] * 3]


def test_sets_cover_as_promised(model):
    found = model.conformal(draw(1500, 3, seed=7), level=0.98)
    x, y = draw(20_000, 3, seed=8)
    held = float(found.sets(x).gather(1, y[:, None]).double().mean())
    assert found.counts.tolist() == [1500]
    # given the validation rows, coverage follows this distribution
    low, high = beta(rank(1500, 0.98), 1501 - rank(1500, 0.98)).interval(0.9999)
    assert binom(20_000, low).ppf(0.0001) / 20_000 <= held <= binom(20_000, high).ppf(0.9999) / 20_000


@pytest.mark.parametrize("outputs", ["shared", "separate"])
def test_other_kernels_have_sets_too(case, outputs):
    found = fit(case, outputs=outputs).conformal(draw(200, 3, seed=7), level=0.9)
    assert float(found.sets(case.test[0]).gather(1, case.test[1][:, None]).double().mean()) > 0.85


def test_one_logit_has_sets_of_two_classes():
    case = blobs(2, logits=1)
    found = fit(case).conformal(draw(300, 2, seed=7), level=0.9)
    assert found.sets(case.test[0]).shape == (400, 2)


def test_scores_of_very_unlikely_classes_stay_finite(model):
    p = model.predict(torch.tensor([[60.0, 0.0]]))
    assert bool(torch.isfinite(class_scores(p)).all())


def test_rows_that_are_not_known_are_in_every_interval(arm):
    model, rows = arm
    found = model.conformal(rows(100, 4), level=0.9)
    lower, upper = found.interval(torch.tensor([[math.nan, 0.0], [0.5, 0.5]]).double())
    assert lower[0].tolist() == [-math.inf] * 2
    assert upper[0].tolist() == [math.inf] * 2
    assert bool(torch.isfinite(upper[1]).all())


def test_a_group_without_enough_rows_is_told(arm):
    model, rows = arm
    x, y = rows(4000, 4)
    groups = model.conformal((x, y), level=0.9).groups
    assert len(groups.unique()) > 1
    only = groups[model.predict(x).expert] == 0
    with pytest.warns(UserWarning, match="groups of experts have fewer than 9 validation rows"):
        found = model.conformal((x[only], y[only]), level=0.9)
    assert bool(torch.isinf(found.limits).any())


@pytest.mark.parametrize("level", [0.0, 1.0, 2.0])
def test_levels_beyond_0_and_1_are_refused(case, model, level):
    with pytest.raises(ValueError, match="strictly between"):
        model.conformal(case.test, level=level)


def test_too_few_rows_are_refused(case, model):
    few = tuple(part[:50] for part in case.test)
    with pytest.raises(ValueError, match="at least 99 validation rows, and there are 50"):
        model.conformal(few, level=0.99)


def test_labels_are_checked_as_in_the_fit(case, model):
    with pytest.raises(ValueError, match="validation labels lie beyond"):
        model.conformal((case.test[0], case.test[1] + 1))
    with pytest.raises(ValueError, match="Soft"):
        model.conformal((case.test[0], torch.rand(400, 3)))


def test_nine_in_ten_unless_another_level_is_asked_for(arm):
    model, rows = arm
    assert model.conformal(rows(100, 4)).level == 0.9
