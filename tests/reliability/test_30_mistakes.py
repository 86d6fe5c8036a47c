"""Promise 30: a warning names likely mistakes of the user, and no others."""

import warnings

import pytest
import torch
from blobs import blobs
from reliability.helpers import mlp, quiet_fit, rows, seeded, train, trained
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import trustgp

NAMES = {
    "probabilities": "look like probabilities",
    "classes": "all targets are 0 or 1",
    "scale": "on different scales",
    "same": "of the validation rows are training rows",
    "few": "there are only",
}


def warned(network: nn.Module, train, **options) -> dict[str, str]:
    """The warnings of `fit` about these mistakes, by name."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet_fit(network, train, **options)
    texts = [str(one.message) for one in caught]
    return {name: text for text in texts for name, words in NAMES.items() if words in text}


def classes(outputs: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A trained classifier with so many logits, and 120 rows of as many classes (one logit: of two)."""
    case = blobs(max(2, outputs), logits=outputs)
    return case.network, *(values[:120] for values in case.train)


@pytest.fixture(scope="module")
def regression():
    """A healthy case: network, inputs, targets; the last 40 rows are new to it."""
    x, y = rows(120)
    return train(mlp(2, 8, 2), x[:80], y[:80], steps=200), x, y


@pytest.mark.parametrize("outputs", [1, 3])
def test_probabilities_in_place_of_logits(outputs):
    network, x, labels = classes(outputs)
    last = nn.Sigmoid() if outputs == 1 else nn.Softmax(dim=1)
    wrong, kind = nn.Sequential(network, last).eval(), {"likelihood": trustgp.Classification()}
    message = warned(wrong, (x, labels), **kind)["probabilities"]
    assert "logits" in message
    repair = eval(message.partition("select=")[2].rstrip("."))  # what the message says to pass
    assert "probabilities" not in warned(wrong, (x, labels), select=repair, **kind)
    others = [network, seeded(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, outputs)), 1)]  # not trained
    others += [nn.Sequential(network, nn.LogSoftmax(dim=1))] if outputs > 1 else []
    for one in others:
        assert "probabilities" not in warned(one.eval(), (x, labels), **kind)


def test_classes_as_targets_of_a_regression(regression):
    for outputs in (1, 2):  # 0 or 1, and one-hot
        network, x, labels = classes(outputs)
        targets = nn.functional.one_hot(labels).float() if outputs == 2 else labels.float()[:, None]
        assert "Classification()" in warned(network, (x, targets))["classes"]
    network, x, y = regression
    mixed = torch.stack([y[:, 0], (y[:, 1] > 0).double()], dim=1)
    assert "classes" not in warned(network, (x, mixed))
    assert "classes" not in warned(network, (x, torch.zeros_like(y)))  # constant, but no classes


@pytest.mark.parametrize(("factor", "offset"), [(1e-3, 0.0), (10.0, 50.0), (1.0, 20.0)])
def test_targets_on_another_scale_than_the_outputs(regression, factor, offset):
    network, x, y = regression
    y = y * torch.tensor([1.0, factor]) + torch.tensor([0.0, offset])  # one of two in other units
    message = warned(network, (x[:80], y[:80]), witness=None)["scale"]
    assert "output 1" in message
    number = float(message.split(" times output")[0].split()[-1])
    assert 0.7 * factor <= number <= 1.4 * factor


def test_validation_rows_that_are_training_rows(regression):
    network, x, y = regression
    pair = (x[:80], y[:80])
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    mostly = (torch.cat([x[:40], x[80:100]]), torch.cat([y[:40], y[80:100]]))
    loader = DataLoader(TensorDataset(*pair), batch_size=16, shuffle=True)
    for other in ((x[order], y[order]), mostly, loader):
        assert "not trained on" in warned(network, pair, validation=other, witness=None)["same"]
    few = (torch.cat([x[:10], x[80:]]), torch.cat([y[:10], y[80:]]))  # a fifth are training rows
    for other in ((x[80:], y[80:]), few, (x[:80], y[:80] + 0.1)):
        assert "same" not in warned(network, pair, validation=other, witness=None)


def test_fewer_than_twenty_rows():
    network, x, y = trained(30)
    assert "there are only 19 training rows" in warned(network, (x[:19], y[:19]))["few"]
    assert warned(network, (x[:20], y[:20])) == {}


def test_a_healthy_fit_warns_of_nothing(regression):
    network, x, y = regression
    for options in ({}, {"validation": (x[80:], y[80:])}, {"budget": "none"}):
        assert warned(network, (x[:80], y[:80]), **options) == {}
    classifier, inputs, labels = classes(3)
    options = {"likelihood": trustgp.Classification(), "validation": (inputs[90:], labels[90:])}
    assert warned(classifier, (inputs[:90], labels[:90]), **options) == {}
