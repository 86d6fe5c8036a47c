"""The threshold of the novelty score."""

import pytest
import torch
from blobs import blobs, draw, fit
from scipy.stats import beta

import trustgp
from trustgp.likelihoods.base import NoveltyThreshold


@pytest.fixture(scope="module")
def case():
    return blobs()


@pytest.fixture(scope="module")
def model(case):
    return fit(case)


def test_before_a_threshold_is_fitted_nothing_is_called_novel(case):
    with pytest.raises(ValueError, match=r"model\.threshold"):
        _ = fit(case).predict(case.test[0]).is_novel


def test_held_out_rows_lie_above_the_threshold_as_often_as_allowed(case, model):
    threshold = model.threshold(false_alarm=0.05)
    p = model.predict(case.validation[0])
    assert int(p.is_novel.sum()) == 400 - 381  # of 400, the one of rank 0.95 * 401, rounded up
    assert float(p.score[~p.is_novel].max()) == threshold


def test_false_alarms_on_new_rows_are_as_rare_as_promised(model):
    model.threshold(false_alarm=0.1)
    rate = float(model.predict(draw(20_000, 3, seed=5)[0]).is_novel.double().mean())
    # given the held-out rows, the rate follows this distribution (401 ranks, the 361st is the threshold)
    low, high = beta(401 - 361, 361).interval(0.9999)
    assert low <= rate <= high


def test_far_rows_are_novel(case, model):
    model.threshold(false_alarm=0.01)
    assert bool(model.predict(30 * case.test[0]).is_novel.double().mean() > 0.95)
    assert bool(model.predict(torch.full((1, 2), torch.nan)).is_novel.all())


def test_rows_may_be_passed(case, model):
    by_rows = model.threshold(case.validation, false_alarm=0.05)
    assert by_rows == pytest.approx(model.threshold(false_alarm=0.05), rel=1e-6)  # lots differ in rounding


def test_too_few_rows_are_refused_with_how_many_it_takes(case, model):
    with pytest.raises(ValueError, match="takes at least 999 held-out rows, and there are 400"):
        model.threshold(false_alarm=0.001)
    with pytest.raises(ValueError, match="strictly between"):
        model.threshold(false_alarm=0.0)
    with pytest.raises(ValueError, match="there are 5"):
        model.threshold(case.test[0][:5], false_alarm=0.01)


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="finite"):
        NoveltyThreshold.fit(torch.tensor([1.0, torch.inf]), 0.5)


def regression(**options) -> tuple[trustgp.UncertaintyModel, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(300, 2, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    targets = network(inputs).detach() + 0.1 * torch.randn(300, 2, generator=generator, dtype=torch.float64)
    return trustgp.fit(network.eval(), (inputs, targets), num_experts=3, progress=False, **options), inputs


def test_regression_has_a_threshold_of_its_novelty():
    rows = torch.rand(200, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model, _ = regression(validation=(rows, torch.zeros(200, 2, dtype=torch.float64)))
    model.threshold(false_alarm=0.05)
    p = model.predict(rows)
    torch.testing.assert_close(p.score, p.novelty)
    assert int(p.is_novel.sum()) == 200 - 191
    assert bool(p.corrected.is_novel.equal(p.is_novel))


@pytest.mark.parametrize("outputs", ["shared", "separate"])
def test_left_out_groups_are_held_out_rows(outputs):
    model, _ = regression(groups=torch.arange(300) % 15, outputs=outputs)
    assert model.held_scores.shape == (300,)
    assert bool(((model.held_scores >= 0) & (model.held_scores <= 1)).all())
    assert 0 <= model.threshold(false_alarm=0.05) <= 1


def test_without_held_out_rows_they_are_asked_for():
    model, inputs = regression()
    with pytest.raises(ValueError, match=r"there are 0.*model\.threshold\(rows\)"):
        model.threshold()
    assert model.threshold(inputs, false_alarm=0.05) > 0


def test_a_threshold_from_rows_that_are_not_at_hand_is_dropped_by_an_update():
    model, inputs = regression()
    model.threshold(inputs, false_alarm=0.05)
    model.update((inputs[:5] + 0.1, torch.zeros(5, 2, dtype=torch.float64)), progress=False)
    assert model.alarm is None
