"""Options as people write them: names, classes without parentheses, and what is said of a wrong one."""

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


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("likelihood", "clasification", 'allowed are "regression", "classification".*mean "classification"'),
        ("likelihood", 3, r"likelihood=3; allowed are .*Regression\(\)"),
        ("tangents", "skech", '"sketch", "jacobian_rows", "layer_factors".*mean "sketch".*"last" or "all"'),
        ("tangents", trustgp.Witness(), "tangents=Witness.*allowed are"),
        ("patchwork", 2, r"patchwork=2; allowed are Patchwork\(neighbours=..., fraction=...\), or None"),
        ("patchwork", trustgp.Division(), "patchwork=Division.*allowed are Patchwork"),
        ("division", "kmeans", r"division='kmeans'; allowed are Division\(components=..., subset=...\)"),
        ("witness", 5, r"witness=5; allowed are Witness\("),
        ("executor", "thread", 'executor=\'thread\'; allowed are "threads", "ray".*mean "threads"'),
        ("executor", 4, "executor=4; allowed are"),
        ("outputs", "sepparate", '"shared", "separate" and "pseudo".*mean "separate"'),
        ("num_experts", 2.5, "num_experts=2.5; a whole number is needed"),
        ("num_experts", "2", "num_experts='2'; a whole number is needed"),
        ("num_experts", 0, "num_experts=0; at least one is needed"),
        ("seed", 0.5, "seed=0.5; a whole number is needed"),
        ("budget", 1e6, 'budget=1000000.0; write bytes, a text like "64 MiB"'),
        ("budget", "64 megs", 'budget="64 megs"; write bytes, or a text like "64 MiB"'),
        ("memory", "lots", 'memory="lots"; write bytes, or a text like'),
        ("device", "gpu", 'device=\'gpu\'; allowed are such as "cpu", "cuda"'),
        ("checkpoint", 3, "checkpoint=3; the path of a folder is needed"),
        ("unpack", "x", "unpack is a str; a function is needed"),
        ("output", "logits", "output is a str; pass a function"),
    ],
)
def test_a_wrong_option_lists_what_is_allowed(case, option, value, message):
    network, x, y = case
    with pytest.raises((TypeError, ValueError), match=message):
        trustgp.fit(network, (x, y), progress=False, **{option: value})


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match='device="cuda:1", but torch finds no GPU here'):
        FitOptions.parse(device="cuda:1")


def test_targets_as_an_argument_of_their_own_are_explained(case):
    network, x, y = case
    with pytest.raises(TypeError, match=r"one pair: fit\(network, \(inputs, targets\)\)"):
        trustgp.fit(network, x, y)
    with pytest.raises(TypeError, match=r"no option y=.*one pair: fit\(network, \(inputs, targets\)\)"):
        trustgp.fit(network, x, y=y)
    with pytest.raises(TypeError, match=r"train is a Tensor; pass \(inputs, targets\)"):
        trustgp.fit(network, x)


def test_a_misspelt_option_is_answered_with_the_nearest_one(case):
    network, x, y = case
    with pytest.raises(TypeError, match=r'fit\(\) has no option validaton=. Did you mean "validation"\?'):
        trustgp.fit(network, (x, y), validaton=(x, y))
    with pytest.raises(TypeError, match=r'no option num_expert=. Did you mean "num_experts"\?'):
        trustgp.paper(network, (x, y), num_expert=3)
    model = quiet_fit(network, (x, y), num_experts=1)
    with pytest.raises(TypeError, match=r'no option group=. Did you mean "groups"\?'):
        model.update((x, y), group=torch.zeros(30))
    with pytest.raises(TypeError, match=r"one pair: update\(\(inputs, targets\)\)"):
        model.update(x, y)
