"""A fit within a budget: what is chosen before it, cut after it, and said where nothing fits."""

import math
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import trustgp
from trustgp.fitting import budget, pipeline, whole
from trustgp.fitting.compress import reduced
from trustgp.fitting.plan import LIGHT_ROWS, RANK
from trustgp.fitting.sizes import MIN_RANK, OVERHEAD, Sizing
from trustgp.state.model_state import nbytes

ROWS, FEWER = 700, 200


def seeded(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 2)]
    return nn.Sequential(*layers).eval()  # 770 gradients: a sketch is shorter


def rows(n=ROWS):
    inputs = seeded(n, 4)
    return inputs, torch.stack([inputs[:, 0].sin(), inputs[:, 1] * inputs[:, 2]], dim=1)


@pytest.fixture(scope="module")
def fit(network):
    def fitted(n=ROWS, **options):
        options = {"progress": False, "witness": None, "validation": rows(60), **options}
        return trustgp.fit(network, rows(n), **options)

    return fitted


def chosen(monkeypatch, network, n=ROWS, **options):
    """Tangents, experts and rank that a fit would have, without the fit."""
    found = {}

    class Stop(Exception):
        pass

    def stop(ready, data, num_experts, rank):
        found.update(tangents=ready.tangents, experts=num_experts, rank=rank)
        raise Stop

    monkeypatch.setattr(pipeline, "choose_plan", stop)
    with pytest.raises(Stop):
        trustgp.fit(network, rows(n), **{"progress": False, "witness": None, **options})
    return found


def test_a_smaller_size_has_fewer_directions_then_shorter_sketches_then_fewer_experts(monkeypatch, network):
    sizes = [10**7, 10**6, 700_000, 500_000, 300_000, 230_000, 150_000, 100_000]
    found = [chosen(monkeypatch, network, budget=size) for size in sizes]
    steps = [(one["tangents"].dim, one["rank"], one["experts"]) for one in found]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == (512, RANK, math.ceil(ROWS / LIGHT_ROWS))
    assert {dim for dim, _, _ in steps} == {512, 256, 192, 128}
    assert steps[-1][2] < steps[0][2]


def test_what_the_user_has_chosen_stays(monkeypatch, network):
    found = chosen(monkeypatch, network, budget="300 KiB", tangents=trustgp.Sketch(200), num_experts=2)
    assert found["tangents"] == trustgp.Sketch(200)
    assert found["experts"] == 2
    assert found["rank"] < RANK
    assert chosen(monkeypatch, network, budget="1 GiB", num_experts=2)["experts"] == 2


def test_a_model_that_came_out_too_large_is_cut_and_calibrated(fit, monkeypatch):
    monkeypatch.setattr(Sizing, "expected", lambda self, rank: 0)  # as if all were small
    monkeypatch.setattr(whole, "output_map", lambda *_: None)  # as within a small budget
    plain = fit(FEWER)
    limit = plain.nbytes // 2 + OVERHEAD
    model = fit(FEWER, budget=limit)
    assert model.nbytes <= limit - OVERHEAD < plain.nbytes
    assert re.fullmatch(r"rank=\d+", model.origin.compressed)
    rank = model.state.directions
    one_more = trustgp.compress(plain, rank=rank + 1, progress=False)
    assert one_more.nbytes > limit - OVERHEAD
    same = trustgp.compress(plain, rank=rank, validation=rows(60), progress=False)
    torch.testing.assert_close(model.predict(rows(50)[0]).variance, same.predict(rows(50)[0]).variance)


def test_the_size_is_kept_after_an_update(fit):
    model = fit(budget="400 KiB", witness=trustgp.Witness())
    rank, witness_bytes = model.state.directions, model.witness.nbytes
    model.update(rows(90), progress=False)
    assert model.state.directions == rank
    assert model.nbytes <= 400 * 1024
    assert model.witness.nbytes <= witness_bytes


def test_layer_factors_have_nothing_to_leave_out_for_a_size(fit):
    message = r"budget=700.0 KiB: a size is kept by leaving out.*LayerFactors has none.*Sketch\(512\)"
    with pytest.raises(trustgp.BudgetError, match=message) as caught:
        fit(tangents=trustgp.LayerFactors(), budget="700 KiB", num_experts=2)
    assert caught.value.model is None


def test_the_witness_goes_where_the_experts_alone_fit(fit):
    whole = fit(FEWER, witness=trustgp.Witness())
    small = budget.shrink_to_budget(whole.state, nbytes(replace(whole.state, witness=None)) + OVERHEAD)
    assert small.witness is not None  # fewer directions come first
    least = nbytes(reduced(whole.state, MIN_RANK, witness=False)) + OVERHEAD
    assert budget.shrink_to_budget(whole.state, least).witness is None


def test_where_nothing_is_small_enough_after_the_fit_it_carries_the_model_too(fit):
    plain = fit(FEWER)
    with pytest.raises(trustgp.BudgetError, match=r"nothing fits within 1.0 KiB: .*rank=8.* needs") as caught:
        budget.shrink_to_budget(plain.state, 1024)
    assert caught.value.model is plain.state


def test_a_size_too_small_for_anything_is_refused_before_the_fit(fit, monkeypatch):
    monkeypatch.setattr(pipeline, "fit_mixture", lambda *given, **more: pytest.fail("it began"))
    message = "too small for 1 experts; the smallest that works"
    with pytest.raises(trustgp.BudgetError, match=message) as caught:
        fit(budget="60 KiB")
    assert caught.value.model is None
