"""The parts of per-sample gradients, each against torch or a loop, in float64."""

import pytest
import torch
import torch.nn.functional as F
from tangents.binding import assert_close
from torch import nn
from zoo import make, seeded

from trustgp.tangents.jacobian.accumulators import DenseAccumulator, products
from trustgp.tangents.jacobian.layer_gradients import Layout, LayoutError, layout_of, windows
from trustgp.tangents.jacobian.layer_io import record
from trustgp.tangents.jacobian.per_sample import find_plan
from trustgp.tangents.jacobian.strategies import GradientPlan, layerwise
from trustgp.tangents.network import prepare


def test_the_rows_are_in_the_dimension_that_grows():
    assert layout_of([(2, 5), (4, 3)], [(3, 5), (6, 3)]) == Layout(0)
    assert layout_of([(7, 2, 5)], [(7, 3, 5)]) == Layout(1)
    assert layout_of([(7, 5)], [(7, 5)]) is None
    for two, three in (([(2, 2)], [(3, 3)]), ([(2, 5)], [(4, 5)]), ([(2, 5), (5,)], [(3, 5), (5,)])):
        with pytest.raises(LayoutError):
            layout_of(two, three)


def test_rows_come_first_in_any_order():
    rows = seeded(3, 4, 5)  # [n, t, d]
    assert torch.equal(Layout().rows(rows.flatten(0, 1), 3), rows)
    assert torch.equal(Layout(inner=True).rows(rows.transpose(0, 1).flatten(0, 1), 3), rows)
    assert torch.equal(Layout(1).rows(rows.transpose(0, 1), 3)[:, 0], rows)
    assert torch.equal(Layout().rows(rows[None].flatten(1, 2), 3, skip=1)[0], rows)
    with pytest.raises(LayoutError, match="not a multiple"):
        Layout().rows(rows.flatten(0, 1), 5)


@pytest.mark.parametrize("mixed", [(2, 1), (1, 2), (1, 1)])
def test_products_are_sums_of_outer_products(mixed):
    left, right = seeded(3, mixed[0], 2, 4, 5), seeded(3, mixed[1], 2, 4, 6)
    left, right = left.expand(3, -1, -1, -1, -1), right + 1
    full = [x.expand(3, max(mixed), -1, -1, -1) for x in (left, right)]
    assert_close(products(left, right), torch.einsum("nkgto,nkgti->nkgoi", *full))


def test_windows_are_those_of_unfold():
    inputs = seeded(2, 4, 7, 8)
    for given in ({}, {"stride": 2, "padding": (1, 2)}, {"dilation": (2, 1), "padding": 1, "stride": (1, 3)}):
        expected = F.unfold(inputs, (3, 2), **given)  # [n, c * kernel, positions]
        for groups in (1, 2):
            patches = windows(inputs, (3, 2), given, groups)
            assert_close(patches, expected.unflatten(1, (groups, -1)).transpose(2, 3))


def test_a_forward_pass_is_recorded_without_changing_it():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(True), nn.Linear(4, 2)).double().eval()
    prepared, inputs = prepare(network, ["0.weight", "1.weight", "1.bias", "3.bias"], None), seeded(5, 3)
    with torch.enable_grad():
        outputs, recorder = record(prepared, inputs)
    assert torch.equal(outputs.detach(), network(inputs).detach())
    assert [(one.layer, one.weight_name, one.bias_name) for one in recorder.calls] == [
        ("0", "0.weight", None),
        ("1", "1.weight", "1.bias"),
        ("3", None, "3.bias"),
    ]
    hidden = network[0](inputs).detach()
    assert torch.equal(recorder.calls[0].input, inputs)
    assert_close(recorder.calls[1].input, F.layer_norm(hidden, (4,)))  # what the weight is multiplied by
    assert recorder.unhandled == []
    assert recorder.returned(outputs)
    assert not recorder.returned(outputs.add_(1.0))


def test_a_plan_for_other_rows_is_refused_before_anything_is_collected():
    network, inputs = make("frames as rows")
    prepared = prepare(network, "all", None)
    plan = find_plan(prepared, inputs, 2)
    into, mix = DenseAccumulator(prepared, 5, 2), torch.eye(2, dtype=torch.float64)
    with pytest.raises(LayoutError):
        layerwise(prepared, GradientPlan({}, plan.layerwise), mix, inputs, into)
    assert not bool(into.rows().any())
