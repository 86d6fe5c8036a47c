"""Promise 22: a threshold survives updates, compression and files, or a warning is issued."""

import copy
import warnings
from contextlib import nullcontext

import pytest
import torch
from many import each
from reliability.helpers import quiet_fit, rows, train, trained
from torch import nn

import trustgp
from trustgp.likelihoods.base import NoveltyThreshold

ALARM = 0.05
HELD, NEW, FAMILIAR = rows(60, seed=1), rows(10, seed=2), rows(80, seed=3)[0]
STAYS, GONE = "stays as it was before the update", "threshold of the novelty score is gone"

# warnings are errors except where a test expects them
pytestmark = pytest.mark.filterwarnings("error:.*threshold", "error:.*no longer promised")


@pytest.fixture(scope="module")
def models():
    """Fitted once; each test takes a copy."""
    network, x, y = trained(90)
    kept = {
        "validation": quiet_fit(network, (x, y), num_experts=2, validation=HELD),
        "left out": quiet_fit(network, (x, y), num_experts=2),
        "few": quiet_fit(network, (x, y), num_experts=2, validation=rows(10, seed=5)),
        "paper": trustgp.paper(network, (x, y), num_experts=2, progress=False),
    }
    classes = (y[:, 0] > 0).long()
    logits = 4.0 * nn.functional.one_hot(classes, 2).double() - 2.0
    sure = train(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double().eval(), x, logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept["classes"] = quiet_fit(sure, (x, classes), num_experts=2, likelihood=trustgp.Classification())
    return kept


def through_a_file(model, folder):
    model.save(folder / "model")
    return trustgp.load(folder / "model", model.network)


def values(model):
    return float(model.novelty_threshold.threshold), float(model.novelty_threshold.false_alarm)


def labelled(kind, pair):
    """Rows for a kind of model."""
    return (pair[0], (pair[1][:, 0] > 0).long()) if kind == "classes" else pair


def small(model, **options):
    return trustgp.compress(model, rank=4, progress=False, **options)


@each("kind", ["validation", "left out"])
def test_an_update_refits_it_to_the_held_out_rows(models, kind):
    model = copy.deepcopy(models[kind])
    before = model.threshold(FAMILIAR, false_alarm=ALARM)
    model.update(NEW, progress=False)
    expected = NoveltyThreshold.fit(model.held_scores, ALARM)
    assert values(model) == (float(expected.threshold), ALARM)
    assert values(model)[0] != before
    assert bool((model.predict(NEW[0]).is_novel == (model.predict(NEW[0]).score > expected.threshold)).all())


@each("kind", ["few", "paper"])
def test_an_update_with_too_few_held_out_rows_keeps_it_with_a_warning(models, kind):
    model = copy.deepcopy(models[kind])
    before = model.threshold(FAMILIAR, false_alarm=ALARM)
    with pytest.warns(UserWarning, match=STAYS):
        model.update(NEW, progress=False)
    assert values(model) == (before, ALARM)


@each("kind", ["validation", "left out", "classes"])
def test_an_update_after_loading_keeps_it_and_warns_where_it_was_refitted(models, kind, tmp_path):
    for old in (None, labelled(kind, rows(90))):
        loaded = through_a_file(copy.deepcopy(models[kind]), tmp_path)
        before, scores = loaded.threshold(FAMILIAR, false_alarm=ALARM), loaded.held_scores
        with nullcontext() if old is None else pytest.warns(UserWarning, match=STAYS):
            loaded.update(labelled(kind, NEW), train=old, progress=False)
        assert values(loaded) == (before, ALARM)
        assert torch.equal(loaded.held_scores, scores)
        assert len(loaded.predict(NEW[0]).novelty_rank) == len(NEW[0])  # needs held-out scores


def test_a_file_has_it_and_a_smaller_model_anew_with_enough_validation_rows_or_a_warning(models, tmp_path):
    model = copy.deepcopy(models["validation"])
    model.threshold(false_alarm=ALARM)
    assert values(through_a_file(model, tmp_path)) == values(model)
    again = small(model, validation=HELD)
    assert values(again) == (float(NoveltyThreshold.fit(again.held_scores, ALARM).threshold), ALARM)
    for options in ({}, {"validation": rows(10, seed=5)}):
        with pytest.warns(UserWarning, match=f"{GONE}.*at least 19 rows for false_alarm=0.05"):
            assert small(model, **options).novelty_threshold is None
    assert model.novelty_threshold is not None


@each("kind", ["validation", "classes"])
def test_conformal_limits_warn_after_an_update(models, kind):
    model, level = copy.deepcopy(models[kind]), 0.8
    held = labelled(kind, rows(200, seed=9))
    limits = model.conformal(held, level=level)
    ask = limits.sets if kind == "classes" else limits.interval
    model.threshold(false_alarm=0.2)  # changes no limit
    ask(NEW[0])
    model.to("cpu")
    ask(NEW[0])
    model.update(labelled(kind, NEW), progress=False)
    with pytest.warns(UserWarning, match=r"level=0.8 is no longer promised"):
        ask(NEW[0])
    again = model.conformal(held, level=level)
    (again.sets if kind == "classes" else again.interval)(NEW[0])
