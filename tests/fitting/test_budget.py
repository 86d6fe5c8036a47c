"""A fit within a budget: what is chosen before it, cut after it, and said where nothing fits."""

import logging
import math
import re

import pytest
import torch
from torch import nn

import trustgp
from trustgp import api
from trustgp.data.quantities import Budget
from trustgp.fitting import budget, pipeline
from trustgp.fitting.divide import OVERHEAD, Sizing
from trustgp.fitting.options import FitOptions
from trustgp.fitting.plan import LIGHT_ROWS, MOST_EXPERTS, RANK

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


@pytest.fixture(scope="module")
def plain(fit):
    return fit()


def chosen(monkeypatch, network, n=ROWS, **options):
    """Tangents, experts and rank that a fit would have, without the fit."""
    found = {}

    class Stop(Exception):
        pass

    def stop(ready, data, options):
        found.update(tangents=ready.tangents, experts=options.num_experts, rank=options.rank)
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


@pytest.mark.parametrize("size", ["2 MiB", "600 KiB", "250 KiB", "140 KiB"])
def test_a_model_stays_within_its_size_and_uses_it(fit, plain, size, tmp_path):
    model = fit(budget=size)
    limit = FitOptions.parse(budget=size).budget.size
    assert model.nbytes <= limit
    model.save(tmp_path / "model.trustgp")
    assert (tmp_path / "model.trustgp").stat().st_size <= limit
    assert model.nbytes >= min(plain.nbytes, 0.3 * (limit - OVERHEAD))
    assert bool(torch.isfinite(model.predict(rows(50)[0]).variance).all())


def test_a_size_larger_than_needed_changes_nothing_where_experts_are_as_small_as_they_should_be(fit, plain):
    model = fit(budget="1 GiB")
    assert model.nbytes == plain.nbytes
    assert not model.origin.compressed


def test_a_generous_size_of_many_rows_makes_no_more_experts(monkeypatch, network):
    """More of them cost time, and likelihood: see docs/small.md."""
    assert chosen(monkeypatch, network, 40_000, budget="8 GiB")["experts"] == MOST_EXPERTS


def test_what_the_user_has_chosen_stays(monkeypatch, network):
    found = chosen(monkeypatch, network, budget="300 KiB", tangents=trustgp.Sketch(200), num_experts=2)
    assert found["tangents"] == trustgp.Sketch(200)
    assert found["experts"] == 2
    assert found["rank"] < RANK
    assert chosen(monkeypatch, network, budget="1 GiB", num_experts=2)["experts"] == 2


def test_a_model_that_came_out_too_large_is_cut_and_calibrated(fit, plain, monkeypatch):
    monkeypatch.setattr(Sizing, "expected", lambda self, experts, rank: 0)  # as if all were small
    limit = plain.nbytes // 2 + OVERHEAD
    model = fit(budget=limit)
    assert model.nbytes <= limit - OVERHEAD < plain.nbytes
    assert re.fullmatch(r"rank=\d+", model.origin.compressed)
    rank = model.state.directions
    one_more = trustgp.compress(plain, rank=rank + 1, progress=False)
    assert one_more.nbytes > limit - OVERHEAD
    same = trustgp.compress(plain, rank=rank, validation=rows(60), progress=False)
    torch.testing.assert_close(model.predict(rows(50)[0]).variance, same.predict(rows(50)[0]).variance)


def test_the_size_is_kept_after_an_update(fit):
    model = fit(budget="400 KiB")
    rank = model.state.directions
    model.update(rows(90), progress=False)
    assert model.state.directions == rank
    assert model.nbytes <= 400 * 1024


def test_layer_factors_have_nothing_to_leave_out_for_a_size(fit, clocked):
    said = r"budget=700.0 KiB: a size is kept by leaving out directions.*LayerFactors has none.*Sketch\(512\)"
    for size in ("700 KiB", "700 KiB, 2 ms"):
        with pytest.raises(trustgp.BudgetError, match=said) as caught:
            fit(tangents=trustgp.LayerFactors(), budget=size, num_experts=2)
        assert caught.value.model is None
    assert fit(tangents=trustgp.LayerFactors(), budget="2 ms", num_experts=2).origin.compressed == ""


# Times: as a clock says that ends at what the model keeps.


@pytest.fixture
def clocked(monkeypatch):
    """A microsecond for each direction, and a thousand for the witness."""
    asked = []

    def times(states, rows, *, runtime):
        asked.append((states[0].directions, states[0].witness is not None, runtime))
        return [1e-6 * (state.directions + 1000 * (state.witness is not None)) for state in states]

    monkeypatch.setattr(api, "times", times)
    return asked


def test_a_time_takes_the_most_directions_that_are_fast_enough(fit, clocked):
    model = fit(FEWER, budget="100 us", runtime="onnx")
    assert model.origin.compressed == "rank=96"
    assert model.state.directions == 96
    assert {runtime for _, _, runtime in clocked} == {"onnx"}
    assert len(clocked) <= 3
    assert len(model.held_scores) == 60


def test_then_the_witness_goes(fit, clocked):
    setting = {"n": FEWER, "witness": trustgp.Witness()}
    assert fit(budget="2 ms", **setting).witness is not None
    assert fit(budget="1.07 ms", **setting).origin.compressed == "rank=64"
    alone = fit(budget="0.5 ms", **setting)
    assert alone.witness is None
    assert alone.origin.compressed == "no witness"


def test_a_time_needs_no_validation_rows(fit, clocked):
    assert fit(FEWER, budget="40 us", validation=None).origin.compressed == "rank=32"


def test_a_size_and_a_time_are_both_kept(fit, clocked, plain):
    model = fit(budget=f"{plain.nbytes // 2} B, 100 us")
    assert model.nbytes <= plain.nbytes // 2
    assert model.state.directions <= 100


def test_where_nothing_is_fast_enough_the_error_carries_the_fitted_model(fit, clocked, plain):
    with pytest.raises(trustgp.BudgetError, match=r"within 0.005 ms.*rank=16.* 0.02 ms a row") as caught:
        fit(budget="5 us")
    assert caught.value.model.nbytes == plain.nbytes
    inputs = rows(50)[0]
    assert torch.equal(caught.value.model.predict(inputs).variance, plain.predict(inputs).variance)


def test_where_a_model_cannot_be_timed_it_is_not_lost_either(fit, monkeypatch, plain):
    def times(states, rows, *, runtime):
        raise trustgp.ExportError("no.")

    monkeypatch.setattr(api, "times", times)
    with pytest.raises(trustgp.BudgetError, match=r"cannot be timed: no\. It is") as caught:
        fit(budget="1 ms", runtime="onnx")
    assert caught.value.model.nbytes == plain.nbytes


def test_where_nothing_is_small_enough_after_the_fit_it_carries_the_model_too(plain):
    with pytest.raises(trustgp.BudgetError, match=r"nothing fits within 1.0 KiB: .*rank=8.* holds") as caught:
        budget.keep_within(plain.state, Budget(1024))
    assert caught.value.model is plain.state


def test_a_size_too_small_for_anything_is_refused_before_the_fit(fit, monkeypatch):
    monkeypatch.setattr(pipeline, "fit_mixture", lambda *given, **more: pytest.fail("it began"))
    with pytest.raises(
        trustgp.BudgetError, match="too small for 1 experts; the smallest that works"
    ) as caught:
        fit(budget="60 KiB")
    assert caught.value.model is None
    with pytest.raises(ValueError, match='runtime="tvm"'):
        fit(budget="1 ms", runtime="tvm")


# What a fit says beforehand.


def wide(inputs, hidden, outputs):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).eval()


@pytest.mark.parametrize(
    ("n", "hidden", "options", "walk"),
    [
        (150, 10, {}, False),
        (600, 10, {}, True),
        (600, 150, {}, False),
        (600, 150, {}, True),
        (1100, 150, {}, False),
        (700, 150, {"outputs": "separate"}, True),
        (900, 150, {"budget": "1 MiB"}, False),
        (900, 150, {"budget": "1 MiB"}, True),
        (900, 150, {"budget": "none"}, True),
    ],
    ids=str,
)
def test_the_announced_size_is_right_within_a_tenth(n, hidden, options, walk, caplog):
    inputs = seeded(n, 4)
    inputs = (0.05 * inputs.cumsum(dim=0)).sin() if walk else inputs
    targets = torch.stack([inputs[:, 0], inputs[:, 1] * inputs[:, 2]], dim=1)
    with caplog.at_level(logging.INFO, logger="trustgp"):
        model = trustgp.fit(
            wide(4, hidden, 2), (inputs, targets), groups=torch.arange(n) // 10, witness=None, **options
        )
    (said,) = re.findall(r"the model will hold about ([\d.]+) (\w+)", caplog.text)
    size = float(said[0]) * {"KiB": 2**10, "MiB": 2**20}[said[1]]
    assert size == pytest.approx(model.nbytes, rel=0.1)
