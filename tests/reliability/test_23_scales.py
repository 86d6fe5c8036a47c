"""Promise 23: targets and inputs in any unit; error bars are finite and positive, or rows are not valid."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from pairwise import every_pair
from reliability.helpers import mlp as small_network
from reliability.helpers import quiet_fit, seeded, train
from reliability.helpers import rows as smooth_rows
from torch import Tensor, nn
from zoo import Net

import trustgp

TINY, HUGE, NARROW = 2.0**-83, 2.0**83, 2.0**-100  # 1e-25, 1e25 and 8e-31: powers of two round nothing
PRECISIONS, UNITS = [torch.float32, torch.float64], [TINY, HUGE, HUGE, TINY]
WAYS = {
    "default": {},
    "with validation": {"validation": 60},
    "exact": {"budget": "none"},
    "separate": {"outputs": "separate", "witness": None},
}


def in_units(network: nn.Module, inputs: float, outputs: float) -> nn.Module:
    """The same network with inputs and outputs in other units."""
    return Net(lambda net, x: net.network(x / inputs) * outputs, network=network)


@dataclass(frozen=True)
class Case:
    """A network, its rows, and rows to predict, some of them far away."""

    network: nn.Module
    x: Tensor
    y: Tensor
    at: Tensor

    def in_units(self, inputs: float = 1.0, outputs: float = 1.0) -> Case:
        network = in_units(self.network, inputs, outputs).eval()
        return Case(network, self.x * inputs, self.y * outputs, self.at * inputs)

    def fit(self, validation: int | None = None, **options) -> trustgp.UncertaintyModel:
        x, y = self.x[:validation], self.y[:validation]
        held_out = validation and (self.x[validation:], self.y[validation:])
        return quiet_fit(self.network, (x, y), validation=held_out, num_experts=2, **options)


@pytest.fixture(scope="module")
def case():
    """A trained case in a precision."""
    cases = {}
    for dtype in (torch.float32, torch.float64):
        x, y = smooth_rows(80, dtype=dtype)
        network = train(small_network(2, 8, 2, dtype=dtype), x, y)
        cases[dtype] = Case(network, x, y, torch.cat([x[:10], x[:10] + 0.3, 10 * x[:4]]))
    return cases


@pytest.fixture(scope="module")
def usual(case):
    """Predictions in usual units, once for each way and precision."""
    return cache(lambda dtype, way: case[dtype].fit(**WAYS[way]).predict(case[dtype].at))


def assert_same_but_for_the_unit(scaled: trustgp.Prediction, usual: trustgp.Prediction, unit: float) -> None:
    """All predictions are valid, and equal in the unit of the targets."""
    log_unit = torch.tensor(unit, dtype=torch.float64).log()
    for one, other in ((scaled, usual), (scaled.corrected, usual.corrected), (scaled.plain, usual.plain)):
        assert bool(one.valid.all())
        assert bool((one.std > 0).all())
        assert bool((one.variance > 0).all())
        close = {"rtol": 2e-3, "atol": 0.0}
        torch.testing.assert_close(one.std.double(), other.std.double() * unit, **close)
        torch.testing.assert_close(one.novelty.double(), other.novelty.double(), rtol=2e-3, atol=1e-6)
        for q in (0.1, 0.7):
            ours, theirs = (p.quantile(q).double() - p.mean.double() for p in (one, other))
            torch.testing.assert_close(ours, theirs * unit, rtol=5e-3, atol=1e-3 * unit)
        (low, high), (below, above) = one.interval(0.9), other.interval(0.9)
        width = (above - below).double()
        torch.testing.assert_close((high - low).double(), width * unit, **close)
        ours, theirs = (p.log_prob(p.mean + 0.3 * p.std) for p in (one, other))
        torch.testing.assert_close(ours + log_unit, theirs, rtol=0, atol=0.02)


@pytest.mark.parametrize(("dtype", "way", "unit"), [*zip(PRECISIONS * 2, WAYS, UNITS, strict=True)])
def test_targets_of_any_unit_get_the_same_error_bar_in_that_unit(case, usual, dtype, way, unit):
    other = case[dtype].in_units(outputs=unit)
    prediction = other.fit(**WAYS[way]).predict(other.at)
    assert_same_but_for_the_unit(prediction, usual(dtype, way), unit)


@pytest.mark.parametrize(("dtype", "way"), [(torch.float32, "default"), (torch.float64, "separate")])
def test_inputs_of_any_unit_get_the_same_error_bar(case, usual, dtype, way):
    other = case[dtype].in_units(inputs=NARROW)
    prediction = other.fit(**WAYS[way]).predict(other.at)
    assert_same_but_for_the_unit(prediction, usual(dtype, way), 1.0)


SIDES = every_pair(PRECISIONS, [1e-25, 1e25, 1e18], ["targets", "inputs", "network"])


@pytest.mark.parametrize(
    ("dtype", "unit", "what"),
    [pytest.param(*side, marks=[pytest.mark.nightly] * (i % 2)) for i, side in enumerate(SIDES)],
)
def test_one_side_in_another_unit_never_gives_a_certain_row(case, dtype, unit, what):
    """A bad fit must not look like a good one."""
    one = case[dtype]
    x = one.x * unit if what == "inputs" else one.x
    y = one.y * unit if what == "targets" else one.y
    network = in_units(one.network, 1.0, unit) if what == "network" else one.network
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = quiet_fit(network, (x, y), num_experts=2)
        prediction = model.predict(torch.cat([x[:10], 10 * x[:4], one.at]))
    for part in (prediction, prediction.corrected, prediction.plain):
        assert bool((part.std > 0).all())
        assert torch.equal(part.valid, torch.isfinite(part.variance).all(dim=1))
        assert bool(part.valid[:10].all())


def test_a_variance_that_overflows_is_not_valid(case):
    one = case[torch.float32]
    network = seeded(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)), 0).eval()
    model = quiet_fit(train(network, one.x, one.y), (one.x, one.y), num_experts=2)
    far = model.predict(torch.cat([one.x[:1], 1e24 * one.x[:1].abs() + 1e24]))
    assert bool(torch.isfinite(far.mean).all())
    assert far.valid.tolist() == [True, False]
    assert bool(torch.isinf(far.std[1]).any())


@pytest.mark.parametrize("unit", [TINY, pytest.param(HUGE, marks=pytest.mark.nightly)])
def test_a_saved_model_and_an_exported_graph_say_the_same(case, tmp_path, unit):
    other = case[torch.float32].in_units(outputs=unit)
    model = other.fit()
    model.save(tmp_path / "m")
    prediction = model.predict(other.at)
    again = trustgp.load(tmp_path / "m", other.network).predict(other.at)
    assert torch.equal(again.variance, prediction.variance)
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    path = trustgp.export_onnx(model, tmp_path / "m.onnx", other.x[:4])
    outputs = trustgp.export.open_onnx(path)(other.at)
    assert bool(outputs["valid"].all())
    for name, one in (("variance", prediction), ("corrected_variance", prediction.corrected)):
        values, wanted = torch.from_numpy(outputs[name]).double(), one.variance.double()
        torch.testing.assert_close(values, wanted, rtol=1e-4, atol=0.0)
