import copy
import re

import pytest
import torch
from torch import nn

from trustgp.data.fingerprint import (
    network_fingerprint,
    rows_fingerprint,
    same_weights,
    weights_fingerprints,
)
from trustgp.data.rows import Rows
from trustgp.fitting.checkpoint import Checkpoint


def network(slope=0.1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LeakyReLU(slope), nn.Linear(4, 1))


def test_a_copy_has_the_same_fingerprint():
    one = network()
    other = copy.deepcopy(one).eval().requires_grad_(False)
    assert network_fingerprint(one) == network_fingerprint(other)


def _weight(net):
    net[0].weight.data[0, 0] = torch.nextafter(net[0].weight.data[0, 0], torch.tensor(9.0))


def _buffer(net):
    net[1].running_mean += 1e-7


def _precision(net):
    net.double()


def _class(net):
    net[2] = nn.ReLU()


def _slope(net):
    net[2].negative_slope = 0.2


@pytest.mark.parametrize("change", [_weight, _buffer, _precision, _class, _slope])
def test_any_change_of_the_network_changes_its_fingerprint(change):
    net = network()
    before = network_fingerprint(net)
    change(net)
    assert network_fingerprint(net) != before


def test_any_change_of_the_rows_changes_their_fingerprint():
    inputs, targets = torch.randn(5, 3), torch.randn(5, 1)
    groups = torch.arange(5)
    known = {rows_fingerprint(Rows(inputs, targets), None), rows_fingerprint(Rows(inputs, targets), groups)}
    swapped = torch.tensor([1, 0, 2, 3, 4])
    for other in (
        Rows(inputs[swapped], targets),
        Rows(inputs, targets[swapped]),
        Rows(inputs.double(), targets),
        Rows({"x": inputs}, targets),
        Rows((inputs,), targets),
        Rows(inputs[:4], targets[:4]),
    ):
        assert rows_fingerprint(other, None) not in known
    assert len(known) == 2
    again = Rows(inputs.t().contiguous().t(), targets.clone())  # other strides, same values
    assert rows_fingerprint(again, None) in known


def test_settings_do_not_depend_on_the_order_of_their_names(tmp_path):
    def fingerprint(place, settings):
        (tmp_path / place).mkdir()
        return Checkpoint.open(tmp_path / place, settings).fingerprint

    assert fingerprint("one", {"a": 1, "b": [2]}) == fingerprint("other", {"b": [2], "a": 1})
    assert fingerprint("third", {"a": 1}) != fingerprint("fourth", {"a": 2})


def test_weights_without_a_known_print_are_not_the_same():
    layer = nn.Linear(2, 1)
    assert same_weights(layer, weights_fingerprints(layer))
    assert not same_weights(layer, {})
    assert not same_weights(layer, {"torch.float8": "0"})


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.LayerNorm(4),
        lambda: nn.LayerNorm(4, bias=False),
        lambda: nn.GroupNorm(2, 4),
        lambda: nn.BatchNorm2d(4),
        lambda: nn.BatchNorm1d(4, affine=False),
        lambda: nn.InstanceNorm1d(4),
    ],
)
def test_a_normalisation_is_the_same_in_releases_of_torch_that_do_not_print_its_bias(build, monkeypatch):
    layer = build()
    now, said = network_fingerprint(nn.Sequential(layer)), layer.extra_repr()
    if "bias=" not in said:
        pytest.skip("this torch is such a release")
    before = re.sub(r",? bias=(True|False)", "", said)
    assert before != said
    monkeypatch.setattr(layer, "extra_repr", lambda: before, raising=False)
    assert network_fingerprint(nn.Sequential(layer)) == now
