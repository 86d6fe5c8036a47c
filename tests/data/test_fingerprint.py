"""Fingerprints change with what counts, and with nothing else."""

import copy
import re

import pytest
import torch
from torch import nn

from trustgp.data.fingerprint import network_fingerprint, rows_fingerprint, same_weights, weights_fingerprints
from trustgp.data.rows import Rows


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LeakyReLU(0.1), nn.Linear(4, 1))


def next_weight(net):
    weight = net[0].weight.data
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))


CHANGES = {
    "weight": next_weight,
    "buffer": lambda net: net[1].running_mean.add_(1e-7),
    "precision": lambda net: net.double(),
    "class": lambda net: net.__setitem__(2, nn.ReLU()),
    "slope": lambda net: setattr(net[2], "negative_slope", 0.2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_the_network_changes_its_fingerprint_and_a_copy_does_not(change):
    net = network()
    before = network_fingerprint(net)
    assert network_fingerprint(copy.deepcopy(net).eval().requires_grad_(False)) == before
    CHANGES[change](net)
    assert network_fingerprint(net) != before


def test_any_change_of_the_rows_changes_their_fingerprint():
    inputs, targets = torch.randn(5, 3), torch.randn(5, 1)
    known = {rows_fingerprint(Rows(inputs, targets), groups) for groups in (None, torch.arange(5))}
    assert len(known) == 2
    swapped = torch.tensor([1, 0, 2, 3, 4])
    others = [(inputs[swapped], targets), (inputs, targets[swapped]), (inputs.double(), targets)]
    for pair in (*others, ({"x": inputs}, targets), ((inputs,), targets), (inputs[:4], targets[:4])):
        assert rows_fingerprint(Rows(*pair), None) not in known
    again = Rows(inputs.t().contiguous().t(), targets.clone())  # other strides, same values
    assert rows_fingerprint(again, None) in known


def test_weights_without_a_known_print_are_not_the_same():
    layer = nn.Linear(2, 1)
    assert same_weights(layer, weights_fingerprints(layer))
    assert not same_weights(layer, {})
    assert not same_weights(layer, {"torch.float8": "0"})


LAYERS = [nn.LayerNorm(4), nn.LayerNorm(4, bias=False), nn.GroupNorm(2, 4), nn.BatchNorm2d(4)]


@pytest.mark.parametrize("layer", [*LAYERS, nn.BatchNorm1d(4, affine=False), nn.InstanceNorm1d(4)])
def test_a_normalisation_is_the_same_in_releases_of_torch_that_do_not_print_its_bias(layer, monkeypatch):
    now, printed = network_fingerprint(nn.Sequential(layer)), layer.extra_repr()
    if "bias=" not in printed:
        pytest.skip("this torch is such a release")
    before = re.sub(r",? bias=(True|False)", "", printed)
    assert before != printed
    monkeypatch.setattr(layer, "extra_repr", lambda: before, raising=False)
    assert network_fingerprint(nn.Sequential(layer)) == now
