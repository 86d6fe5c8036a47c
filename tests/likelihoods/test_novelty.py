"""The threshold of the novelty score."""

import copy
import dataclasses
from functools import cache

import pytest
import torch
from blobs import draw, fit
from draws import Draws
from reference import tail_exponent
from scipy.stats import beta

import trustgp
from trustgp.experts.witness_fit import groups_left_out
from trustgp.likelihoods.base import NoveltyThreshold


def test_by_default_one_held_out_row_in_a_hundred_is_novel_also_from_a_file(blob, tmp_path):
    model = fit(blob)
    p = model.predict(blob.validation[0])
    assert int(p.is_novel.sum()) == 400 - 397  # of 400, the one of rank 0.99 * 401, rounded up
    assert model.novelty_threshold is None
    model.save(tmp_path / "m.trustgp")
    again = trustgp.load(tmp_path / "m.trustgp", blob.network).predict(blob.validation[0])
    assert torch.equal(again.novelty_rank, p.novelty_rank)
    assert torch.equal(again.is_novel, p.is_novel)
    model.threshold(false_alarm=0.01)
    assert torch.equal(model.predict(blob.validation[0]).is_novel, p.is_novel)


def test_of_few_held_out_rows_the_largest_score_is_the_threshold(blob):
    few = (blob.validation[0][:20], blob.validation[1][:20])
    model = fit(blob, validation=few)
    p = model.predict(torch.cat([few[0], 30 * blob.test[0]]))
    # another number of rows rounds otherwise
    assert float(p.score[:20].max()) == pytest.approx(float(model.held_scores.max()), rel=1e-5)
    assert int(p.is_novel[20:].sum()) > 300
    assert torch.equal(p.is_novel, p.score > model.held_scores.max())
    assert float(NoveltyThreshold.default(model.held_scores).false_alarm) == pytest.approx(1 / 21)


def test_the_rank_is_the_share_of_held_out_rows_that_are_less_novel(blob, blob_model):
    p = blob_model.predict(torch.cat([blob.test[0], 30 * blob.test[0], torch.full((1, 2), torch.nan)]))
    expected = [float((blob_model.held_scores < score).double().mean()) for score in p.score]
    assert p.novelty_rank.tolist() == pytest.approx(expected, abs=1e-12)
    assert float(p.novelty_rank[-1]) == 1.0
    assert float(p.novelty_rank[:400].mean()) == pytest.approx(0.5, abs=0.1)
    batches = torch.utils.data.DataLoader(blob.test[0], batch_size=64)
    again = blob_model.predict(batches).novelty_rank
    torch.testing.assert_close(again, p.novelty_rank[:400], atol=0.01, rtol=0)


def test_held_out_and_new_rows_exceed_the_threshold_as_often_as_allowed(blob, blob_model):
    threshold = blob_model.threshold(false_alarm=0.05)
    p = blob_model.predict(blob.validation[0])
    assert int(p.is_novel.sum()) == 400 - 381  # of 400, the one of rank 0.95 * 401, rounded up
    assert float(p.score[~p.is_novel].max()) == threshold
    assert blob_model.threshold(blob.validation, false_alarm=0.05) == pytest.approx(threshold, rel=1e-6)
    blob_model.threshold(false_alarm=0.1)
    rate = float(blob_model.predict(draw(20_000, 3, seed=5)[0]).is_novel.double().mean())
    # given the held-out rows, the rate follows this distribution (401 ranks, the 361st is the threshold)
    low, high = beta(401 - 361, 361).interval(0.9999)
    assert low <= rate <= high
    blob_model.threshold(false_alarm=0.01)
    assert bool(blob_model.predict(30 * blob.test[0]).is_novel.double().mean() > 0.95)
    assert bool(blob_model.predict(torch.full((1, 2), torch.nan)).is_novel.all())


def test_too_few_rows_and_scores_that_are_not_finite_are_refused(blob, blob_model):
    with pytest.raises(ValueError, match="takes at least 999 held-out rows, and there are 400"):
        blob_model.threshold(false_alarm=0.001)
    with pytest.raises(ValueError, match="strictly between"):
        blob_model.threshold(false_alarm=0.0)
    with pytest.raises(ValueError, match="there are 5"):
        blob_model.threshold(blob.test[0][:5], false_alarm=0.01)
    with pytest.raises(ValueError, match="finite"):
        NoveltyThreshold.fit(torch.tensor([1.0, torch.inf]), 0.5)


@cache
def regression(outputs: str) -> tuple[trustgp.UncertaintyModel, torch.Tensor]:
    draws = Draws()
    inputs, noise = draws.uniform(300, 2), draws.normal(300, 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    targets = network(inputs).detach() + 0.1 * noise
    options = {"num_experts": 3, "outputs": outputs, "progress": False}
    return trustgp.fit(network.eval(), (inputs, targets), **options), inputs


@pytest.mark.parametrize("outputs", ["shared", pytest.param("separate", marks=pytest.mark.nightly)])
def test_without_validation_left_out_rows_are_the_reference(outputs):
    model, inputs = regression(outputs)
    assert model.held_scores.shape == (300,)  # three experts, all of them judged
    p = model.predict(inputs)
    assert float(model.held_scores.mean()) > float(p.score.mean())  # each was left out
    # minus the log of the share of rows that are more novel, the mean over novelty and distance
    left_out = groups_left_out(model.state.witness, torch.arange(300), torch.arange(300)).nearest
    for scores, measures in ((model.held_scores, left_out), (p.score, model.state.witness(inputs).nearest)):
        columns = zip(left_out.T.tolist(), measures.T.tolist(), strict=True)
        both = [[tail_exponent(rows, value) for value in values] for rows, values in columns]
        assert scores.tolist() == pytest.approx([(a + b) / 2 for a, b in zip(*both, strict=True)], abs=1e-6)
    assert int(p.is_novel.sum()) <= 3
    threshold = model.threshold(false_alarm=0.05)
    assert threshold == float(model.held_scores.sort().values[285])  # 0.95 * 301, rounded up, from 1 on
    new = Draws(9).uniform(2000, 2)
    p = model.predict(new)
    assert float(p.is_novel.double().mean()) < 0.1
    assert float(p.novelty_rank.mean()) == pytest.approx(0.5, abs=0.12)
    far = model.predict(1e3 * torch.ones(1, 2, dtype=torch.float64))
    assert (float(far.novelty_rank), bool(far.is_novel)) == (1.0, True)


def test_without_held_out_rows_the_error_asks_for_them():
    model, inputs = copy.copy(regression("shared")[0]), regression("shared")[1]
    none = {"held_scores": torch.zeros(0, dtype=torch.float64), "threshold": None}
    model.state = dataclasses.replace(model.state, **none)
    with pytest.raises(ValueError, match=r"there are 0.*model\.threshold\(rows\)"):
        model.threshold()
    for name in ("is_novel", "novelty_rank"):
        with pytest.raises(ValueError, match="held-out rows"):
            getattr(model.predict(inputs), name)
    assert model.threshold(inputs, false_alarm=0.05) > 0
