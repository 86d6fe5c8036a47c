"""Promise 9: a bad row at predict is flagged, and the others stay the same to the bit."""

import pytest
import torch
from many import Many
from reliability.helpers import OUTPUTS, breaks, different_fields, prediction_fields, quiet_fit, trained
from torch import nn
from zoo import Net

import trustgp

N, BAD = 50, 17
GOOD = torch.tensor([i for i in range(N) if i != BAD])
WAYS = {
    "shared-factors-float32": (torch.float32, {}),
    "separate-rows": (torch.float32, {"tangents": trustgp.JacobianRows(keep=20), "outputs": "separate"}),
    "pseudo-rows": (torch.float64, {"tangents": trustgp.JacobianRows(), "outputs": "pseudo"}),
    "columns": (torch.float64, {"tangents": trustgp.JacobianRows(keep_per_expert=12)}),
}
both_kinds = pytest.mark.parametrize("tangents", [None, trustgp.JacobianRows()], ids=["factors", "rows"])
VALUES = {
    "nan": (torch.nan, slice(1, 2)),
    "inf": (torch.inf, slice(0, 1)),
    "minus-inf": (-torch.inf, slice(2, 3)),
    "row-of-nan": (torch.nan, slice(None)),
    "row-of-inf": (torch.inf, slice(None)),
}


@pytest.fixture(scope="module", params=WAYS.values(), ids=WAYS)
def fitted_way(request):
    """A network, its model and fifty inputs."""
    dtype, options = request.param
    network, x, y = trained(120, inputs=3, width=8, outputs=2, dtype=dtype)
    inputs = torch.rand(N, 3, generator=torch.Generator().manual_seed(5)) * 5 - 2.5
    return network, quiet_fit(network, (x, y), num_experts=3, **options), inputs.to(dtype)


def spoiled(inputs, value, columns=slice(1, 2)):
    changed = inputs.clone()
    changed[BAD, columns] = value
    return changed


def assert_flagged(prediction, row: int) -> None:
    for one in (prediction, prediction.corrected, prediction.plain):
        assert not bool(one.valid[row])
        assert bool((one.variance[row] == torch.inf).all())
        assert bool(torch.isinf(one.std[row]).all())
        assert float(one.novelty[row]) == 1.0
        assert bool((one.expert[row] == -1).all())


def assert_flagged_or_valid(prediction) -> None:
    """Valid and finite, or flagged with an infinite variance."""
    for row in range(len(prediction)):
        if not (bool(torch.isfinite(prediction.variance[row]).all()) and bool(prediction.valid[row])):
            assert_flagged(prediction, row)


def test_bad_rows_are_flagged_and_the_others_are_as_if_they_were_not_there(fitted_way):
    _, model, inputs = fitted_way
    without = prediction_fields(model.predict(inputs[GOOD]))
    assert all(bool(torch.isfinite(value).all()) for value in without.values())
    with Many() as check:
        for case, (value, columns) in VALUES.items():
            with check(case):
                prediction = model.predict(spoiled(inputs, value, columns))
                assert_flagged(prediction, BAD)
                assert int(prediction.valid.sum()) == N - 1
                assert different_fields(prediction_fields(prediction, GOOD), without) == []
        with check("several"):
            bad = torch.tensor([0, 3, 4, 49])
            good = torch.tensor([i for i in range(N) if i not in bad.tolist()])
            changed = inputs.clone()
            changed[bad, 0] = torch.nan
            prediction = model.predict(changed)
            for row in bad.tolist():
                assert_flagged(prediction, row)
            expected = prediction_fields(model.predict(inputs[good]))
            assert different_fields(prediction_fields(prediction, good), expected) == []
        with check("all, or a single one"):
            prediction = model.predict(torch.full_like(inputs, torch.nan))
            assert len(prediction) == N
            for row in range(N):
                assert_flagged(prediction, row)
            assert_flagged(model.predict(spoiled(inputs, torch.nan)[BAD : BAD + 1]), 0)


def test_huge_but_finite_rows_are_never_nan(fitted_way):
    _, model, inputs = fitted_way
    without = prediction_fields(model.predict(inputs[GOOD]))
    with Many() as check:
        for size in (1e6, 1e18, 1e30, 3e38):
            with check(size):
                prediction = model.predict(spoiled(inputs, size))
                assert_flagged_or_valid(prediction)
                close = prediction_fields(prediction, GOOD)
                for name in (".variance", "corrected.variance"):
                    torch.testing.assert_close(close[name], without[name], rtol=1e-3, atol=0.0)


ROWS = trustgp.JacobianRows(keep=50)
BREAKING = [(N, torch.float64, mode, ROWS if mode == "separate" else None) for mode in OUTPUTS]
BREAKING += [(13, torch.float32, "shared", None), (2, torch.float32, "shared", None)]


@pytest.mark.parametrize(("n", "dtype", "mode", "tangents"), BREAKING)
def test_a_row_for_which_the_network_returns_nan_is_flagged_alone(n, dtype, mode, tangents):
    """Also among few rows: products of few rows round otherwise than products of many."""
    network, x, y = trained(80, inputs=3, width=48, outputs=2, dtype=dtype)
    options = {"outputs": mode, "tangents": tangents}
    model = quiet_fit(breaks(network, 100.0).eval(), (x, y), num_experts=3, **options)
    changed, good = x[:n].clone(), torch.arange(1, n)
    changed[0, 0] = 200.0
    prediction = model.predict(changed)
    assert_flagged(prediction, 0)
    assert int(prediction.valid.sum()) == n - 1
    without = prediction_fields(model.predict(x[:n][good]))
    assert different_fields(prediction_fields(prediction, good), without) == []


@both_kinds
def test_a_kernel_that_overflows_or_is_not_finite_is_flagged(tangents):
    """Not finite is the gradient of the root of |f| at f = 0."""
    network, x, y = trained(40)
    changed = x.clone()
    changed[3] = 1e200
    assert_flagged_or_valid(quiet_fit(network, (x, y), tangents=tangents).predict(changed))
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)) + 0.5
    network = Net(lambda net, x: net.layer(x).abs().sqrt(), layer=nn.Linear(2, 2, bias=False)).eval()
    nn.init.constant_(network.layer.weight, 0.5)
    model = quiet_fit(network, (x, network(x).detach()), tangents=tangents, num_experts=2)
    changed = x.clone()
    changed[3] = 0.0
    assert_flagged_or_valid(model.predict(changed))
