"""Promise 9: a bad row at predict is flagged, and the others do not notice it, to the bit."""

from __future__ import annotations

import pytest
import torch
from many import Many
from reliability.helpers import OUTPUTS, different_fields, prediction_fields, quiet_fit, trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trustgp

N, BAD = 50, 17
GOOD = torch.tensor([i for i in range(N) if i != BAD])
WAYS = {
    "shared-factors-float32": (torch.float32, {}),
    "shared-factors-float64": (torch.float64, {}),
    "separate-factors": (torch.float32, {"outputs": "separate"}),
    "pseudo-factors": (torch.float32, {"outputs": "pseudo"}),
    "shared-rows": (torch.float32, {"tangents": trustgp.JacobianRows(keep=20)}),
    "separate-rows": (torch.float64, {"tangents": trustgp.JacobianRows(keep=20), "outputs": "separate"}),
    "pseudo-rows": (torch.float32, {"tangents": trustgp.JacobianRows(), "outputs": "pseudo"}),
    "columns": (torch.float64, {"tangents": trustgp.JacobianRows(keep_per_expert=12)}),
}


@pytest.fixture(scope="module", params=WAYS.values(), ids=WAYS)
def way(request):
    return request.param


@pytest.fixture(scope="module")
def data(way):
    return trained(120, inputs=3, width=8, outputs=2, dtype=way[0])


@pytest.fixture(scope="module")
def model(data, way):
    network, x, y = data
    return quiet_fit(network, (x, y), num_experts=3, **way[1])


@pytest.fixture
def inputs(data):
    generator = torch.Generator().manual_seed(5)
    return (torch.rand(N, 3, generator=generator) * 5 - 2.5).to(data[1].dtype)


def spoiled(inputs, value, columns=slice(1, 2)):
    changed = inputs.clone()
    changed[BAD, columns] = value
    return changed


VALUES = {
    "nan": (torch.nan, slice(1, 2)),
    "inf": (torch.inf, slice(0, 1)),
    "minus-inf": (-torch.inf, slice(2, 3)),
    "row-of-nan": (torch.nan, slice(None)),
    "row-of-inf": (torch.inf, slice(None)),
}


def assert_flagged(prediction, row: int) -> None:
    for one in (prediction, prediction.corrected, prediction.plain):
        assert not bool(one.valid[row])
        assert bool(torch.isinf(one.variance[row]).all())
        assert bool((one.variance[row] > 0).all())
        assert bool(torch.isinf(one.std[row]).all())
        assert float(one.novelty[row]) == 1.0
        assert bool((one.expert[row] == -1).all())


def test_the_bad_row_is_flagged_and_the_others_are_as_if_it_were_not_there(model, inputs):
    without = prediction_fields(model.predict(inputs[GOOD]))
    with Many() as check:
        for case, (value, columns) in VALUES.items():
            with check(case):
                prediction = model.predict(spoiled(inputs, value, columns))
                assert_flagged(prediction, BAD)
                assert int(prediction.valid.sum()) == N - 1
                assert different_fields(prediction_fields(prediction, GOOD), without) == []


def test_the_others_are_finite(model, inputs):
    prediction = model.predict(spoiled(inputs, torch.nan))
    for name, value in prediction_fields(prediction, GOOD).items():
        assert bool(torch.isfinite(value).all()), name


def test_which_bad_value_it_is_makes_no_difference_to_the_others(model, inputs):
    tables = [
        prediction_fields(model.predict(spoiled(inputs, value, columns)), GOOD)
        for value, columns in VALUES.values()
    ]
    for table in tables[1:]:
        assert different_fields(tables[0], table) == []


def test_a_whole_row_in_its_place_changes_the_others_by_rounding_alone(model, inputs):
    """A matrix product of 50 rows may round otherwise than one of 49: compared by value, not by bits."""
    with_bad = prediction_fields(model.predict(spoiled(inputs, torch.nan)), GOOD)
    with_whole = prediction_fields(model.predict(inputs), GOOD)
    tolerance = 1e-3 if inputs.dtype == torch.float32 else 1e-9
    for name, value in with_bad.items():
        other = with_whole[name]
        scale = float(other.double().abs().max()) + 1e-300
        assert float((value.double() - other.double()).abs().max()) <= tolerance * scale, name


def test_all_rows_bad(model, inputs):
    prediction = model.predict(torch.full_like(inputs, torch.nan))
    assert len(prediction) == N
    for row in range(N):
        assert_flagged(prediction, row)


def test_a_single_bad_row_alone(model, inputs):
    assert_flagged(model.predict(spoiled(inputs, torch.nan)[BAD : BAD + 1]), 0)


def test_several_bad_rows(model, inputs):
    bad = torch.tensor([0, 3, 4, 49])
    good = torch.tensor([i for i in range(N) if i not in bad.tolist()])
    changed = inputs.clone()
    changed[bad, 0] = torch.nan
    prediction = model.predict(changed)
    for row in bad.tolist():
        assert_flagged(prediction, row)
    without = prediction_fields(model.predict(inputs[good]))
    assert different_fields(prediction_fields(prediction, good), without) == []


def test_a_loader_flags_the_same_row(model, inputs):
    changed = spoiled(inputs, torch.nan)
    prediction = model.predict(DataLoader(TensorDataset(changed, torch.zeros(N)), batch_size=20))
    assert prediction.valid.tolist() == [i != BAD for i in range(N)]
    assert_flagged(prediction, BAD)


def test_a_saved_model_flags_the_same_row(model, data, inputs, tmp_path):
    model.save(tmp_path / "m.trustgp")
    loaded = trustgp.load(tmp_path / "m.trustgp", data[0])
    changed = spoiled(inputs, torch.nan)
    one, two = prediction_fields(model.predict(changed)), prediction_fields(loaded.predict(changed))
    assert different_fields(one, two) == []


class Breaks(nn.Module):
    """Gives NaN for rows whose first input is above a limit, though the inputs are finite."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x):
        return torch.where(x[:, :1] > 100.0, torch.nan, self.network(x))


def _broken_by_its_network(n: int, dtype, **options) -> list[str]:
    """Fields of the whole rows that notice a first row for which the network gives NaN."""
    network, x, y = trained(80, inputs=3, width=48, outputs=2, dtype=dtype)
    model = quiet_fit(Breaks(network).eval(), (x, y), num_experts=3, **options)
    changed, good = x[:n].clone(), torch.arange(1, n)
    changed[0, 0] = 200.0
    prediction = model.predict(changed)
    assert_flagged(prediction, 0)
    assert int(prediction.valid.sum()) == n - 1
    without = prediction_fields(model.predict(x[:n][good]))
    return different_fields(prediction_fields(prediction, good), without)


@pytest.mark.parametrize("tangents", [None, trustgp.JacobianRows(keep=50)], ids=["factors", "rows"])
@pytest.mark.parametrize("mode", OUTPUTS)
def test_a_network_that_breaks_on_a_whole_row(mode, tangents):
    assert _broken_by_its_network(N, torch.float64, outputs=mode, tangents=tangents) == []


def test_a_network_that_breaks_among_few_rows():
    """Products of few rows round otherwise than products of many."""
    pairs = [(n, dtype) for n in (13, 5, 2) for dtype in (torch.float32, torch.float64)]
    assert [_broken_by_its_network(n, dtype) for n, dtype in pairs] == [[]] * len(pairs)


@pytest.mark.parametrize("tangents", [None, trustgp.JacobianRows()], ids=["factors", "rows"])
def test_bad_values_in_one_of_several_inputs(tangents):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = trained(1, inputs=3, width=4)[0]

        def forward(self, a, b):
            return self.inner(torch.cat([a, b], dim=1))

    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(60, 1, generator=generator).double(), torch.randn(60, 2, generator=generator).double()
    y = torch.randn(60, 2, generator=generator).double()
    model = quiet_fit(Two().eval(), ((a, b), y), tangents=tangents, num_experts=2)
    broken = b[:N].clone()
    broken[BAD, 1] = torch.nan
    prediction = model.predict((a[:N], broken))
    assert_flagged(prediction, BAD)
    without = prediction_fields(model.predict((a[:N][GOOD], b[:N][GOOD])))
    assert different_fields(prediction_fields(prediction, GOOD), without) == []


def _never_confident(prediction, rows) -> None:
    """Valid and finite, or flagged with an infinite variance: no third way."""
    for row in rows:
        whole = bool(torch.isfinite(prediction.variance[row]).all()) and bool(prediction.valid[row])
        if not whole:
            assert_flagged(prediction, row)


def test_huge_but_finite_rows_are_never_nan(model, inputs):
    without = prediction_fields(model.predict(inputs[GOOD]))
    with Many() as check:
        for size in (1e6, 1e18, 1e30, 3e38):
            with check(size):
                prediction = model.predict(spoiled(inputs, size))
                _never_confident(prediction, range(N))
                close = prediction_fields(prediction, GOOD)
                for name in (".variance", "corrected.variance"):
                    torch.testing.assert_close(close[name], without[name], rtol=1e-3, atol=0.0)


@pytest.mark.parametrize(
    "tangents",
    [
        pytest.param(None, id="factors"),
        pytest.param(trustgp.JacobianRows(), id="rows"),
    ],
)
def test_a_kernel_that_overflows_is_flagged(tangents):
    network, x, y = trained(40)
    changed = x.clone()
    changed[3] = 1e200
    _never_confident(quiet_fit(network, (x, y), tangents=tangents).predict(changed), range(40))


class Rooted(nn.Module):
    """A finite output whose gradient is not: the root of |f| at f = 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        return self.layer(x).abs().sqrt()


@pytest.mark.parametrize("tangents", [None, trustgp.JacobianRows()], ids=["factors", "rows"])
def test_a_gradient_that_is_not_finite_is_flagged(tangents):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 2, generator=generator) + 0.5
    network = Rooted()
    nn.init.constant_(network.layer.weight, 0.5)
    model = quiet_fit(network.eval(), (x, network(x).detach()), tangents=tangents, num_experts=2)
    changed = x.clone()
    changed[3] = 0.0
    _never_confident(model.predict(changed), range(40))
