"""Options as people write them: names, and classes without parentheses."""

import pytest
import torch
from reliability.helpers import mlp, quiet_fit, rows, trained

import trustgp
from trustgp.fitting.options import FitOptions


@pytest.fixture(scope="module")
def case():
    return trained(30, dtype=torch.float32)


@pytest.mark.parametrize(
    ("option", "written", "meant"),
    [
        ("likelihood", "classification", trustgp.Classification()),
        ("likelihood", "Classification", trustgp.Classification()),
        ("likelihood", trustgp.Classification, trustgp.Classification()),
        ("tangents", "sketch", trustgp.Sketch()),
        ("tangents", "LayerFactors", trustgp.LayerFactors()),
        ("tangents", "jacobian_rows", trustgp.JacobianRows()),
        ("tangents", trustgp.Sketch, trustgp.Sketch()),
        ("patchwork", trustgp.Patchwork, trustgp.Patchwork()),
        ("division", trustgp.Division, trustgp.Division()),
        ("witness", trustgp.Witness, trustgp.Witness()),
        ("witness", True, trustgp.Witness()),
        ("witness", False, None),
        ("executor", "threads", trustgp.Threads()),
        ("device", "cpu", torch.device("cpu")),
    ],
)
def test_an_option_may_be_a_name_or_a_class(option, written, meant):
    assert getattr(FitOptions.parse(**{option: written}), option) == meant


@pytest.mark.parametrize("options", [{}, {"budget": "none"}, {"budget": "100 KiB"}], ids=str)
def test_tangents_of_the_last_layer_may_be_asked_for_by_their_name(case, options):
    network, x, y = case
    model = quiet_fit(network, (x, y), tangents="last", num_experts=1, **options)
    assert model.mixtures[0].tangents.network.names == ("2.weight", "2.bias")
    one = quiet_fit(network, (x, y), tangents=["0.bias"], num_experts=1, **options)
    assert one.mixtures[0].tangents.network.names == ("0.bias",)


def test_a_longer_last_layer_gets_a_sketch_of_it():
    network, (x, y) = mlp(2, 300, 2), rows(30)
    model = quiet_fit(network, (x, y), tangents="last", num_experts=1)
    assert model.origin.tangents == trustgp.Sketch(512, parameters="last")
    small = quiet_fit(network, (x, y), tangents="last", num_experts=1, budget="160 KiB")
    assert small.origin.tangents.dim < 512
    assert small.mixtures[0].tangents.network.names == ("2.weight", "2.bias")


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match='device="cuda:1", but torch finds no GPU here'):
        FitOptions.parse(device="cuda:1")
