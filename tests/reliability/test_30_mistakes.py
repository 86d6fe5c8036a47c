"""Promise 30: what looks like a mistake is named in a warning, and what is no mistake is not."""

from __future__ import annotations

import warnings

import pytest
import torch
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


def told(network: nn.Module, train, **options) -> dict[str, str]:
    """Which of these mistakes `fit` warns of, by name."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet_fit(network, train, **options)
    said = [str(one.message) for one in caught]
    return {name: text for text in said for name, words in NAMES.items() if words in text}


def classes(n: int, outputs: int, seed: int = 0) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A classifier with so many logits, trained on rows of as many classes (one logit: of two)."""
    generator = torch.Generator().manual_seed(seed)
    kinds = max(2, outputs)
    labels, centres = torch.arange(n) % kinds, 3 * torch.randn(kinds, 3, generator=generator)
    x = centres[labels] + torch.randn(n, 3, generator=generator)
    network = seeded(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs)), seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.05)
    for _ in range(40):
        optimiser.zero_grad()
        logits = network(x)
        if outputs == 1:
            loss = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float())
        else:
            loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimiser.step()
    return network.eval(), x, labels


@pytest.fixture(scope="module")
def regression():
    """A healthy case: network, inputs, targets; the last 40 rows are new to it."""
    x, y = rows(120)
    return train(mlp(2, 8, 2), x[:80], y[:80], steps=200), x, y


# -- probabilities where logits belong ----------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
def test_probabilities_in_place_of_logits(outputs):
    network, x, labels = classes(90, outputs)
    last = nn.Sigmoid() if outputs == 1 else nn.Softmax(dim=1)
    wrong, kind = nn.Sequential(network, last).eval(), {"likelihood": trustgp.Classification()}
    message = told(wrong, (x, labels), **kind)["probabilities"]
    assert "logits" in message
    repair = eval(message.partition("output=")[2].rstrip("."))  # what the message says to pass
    assert "probabilities" not in told(wrong, (x, labels), output=repair, **kind)


@pytest.mark.parametrize("outputs", [1, 3])
def test_logits_and_their_likes_are_no_mistake(outputs):
    network, x, labels = classes(90, outputs)
    others = [network, seeded(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, outputs)), 1)]  # not trained
    others += [nn.Sequential(network, nn.LogSoftmax(dim=1))] if outputs > 1 else []
    for one in others:
        assert "probabilities" not in told(one.eval(), (x, labels), likelihood=trustgp.Classification())


# -- classes under Regression -------------------------------------------------------------------------


@pytest.mark.parametrize("one_hot", [False, True], ids=["0 or 1", "one-hot"])
def test_classes_as_targets_of_a_regression(one_hot):
    network, x, labels = classes(60, 2 if one_hot else 1)
    targets = nn.functional.one_hot(labels).float() if one_hot else labels.float()[:, None]
    assert "Classification()" in told(network, (x, targets))["classes"]


def test_one_column_of_zeros_and_ones_among_others_is_no_mistake(regression):
    network, x, y = regression
    y = y.clone()
    y[:, 1] = (y[:, 1] > 0).double()
    assert "classes" not in told(network, (x, y))
    assert "classes" not in told(network, (x, torch.zeros_like(y)))  # constant, but no classes


# -- scales -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "offset"), [(1000.0, 0.0), (1e-3, 0.0), (10.0, 50.0), (1.0, 20.0), (57.3, 0.0)]
)
def test_targets_on_another_scale_than_the_outputs(regression, factor, offset):
    network, x, y = regression
    y = y * torch.tensor([1.0, factor]) + torch.tensor([0.0, offset])  # one of two in other units
    message = told(network, (x[:80], y[:80]))["scale"]
    assert "output 1" in message
    number = float(message.split(" times output")[0].split()[-1])
    assert 0.7 * factor <= number <= 1.4 * factor


def test_networks_that_are_merely_bad_are_on_no_other_scale(regression):
    _, x, y = regression
    for seed in range(6):
        assert "scale" not in told(mlp(2, 8, 2, seed=seed), (x, y), witness=None)
    half = train(mlp(2, 8, 2), x, y, steps=15)
    assert "scale" not in told(half, (x, y))
    assert "scale" not in told(half, (x, torch.full_like(y, 3.0)))  # nothing follows a constant


# -- validation rows ----------------------------------------------------------------------------------


def test_validation_rows_that_are_training_rows(regression):
    network, x, y = regression
    pair = (x[:80], y[:80])
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    mostly = (torch.cat([x[:40], x[80:100]]), torch.cat([y[:40], y[80:100]]))
    loader = DataLoader(TensorDataset(*pair), batch_size=16, shuffle=True)
    for held in (pair, (x[order], y[order]), mostly, loader):
        assert "not trained on" in told(network, pair, validation=held)["same"]


def test_validation_rows_of_their_own_are_no_mistake(regression):
    network, x, y = regression
    pair = (x[:80], y[:80])
    few = (torch.cat([x[:10], x[80:]]), torch.cat([y[:10], y[80:]]))  # a fifth slipped in
    for held in ((x[80:], y[80:]), few, (x[:80], y[:80] + 0.1)):
        assert "same" not in told(network, pair, validation=held)


def test_tables_in_which_rows_repeat_are_no_mistake():
    """New rows of a small table are in it already, and so are its own."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, (200, 2), generator=generator).double()
    y = x.sum(dim=1, keepdim=True)
    network = train(mlp(2, 4, 1), x, y)
    assert "same" not in told(network, (x[:150], y[:150]), validation=(x[150:], y[150:]))


def test_pictures_are_compared_where_they_differ():
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(60, 1, 8, 8)
    x[:, :, 2:6, 2:6] = torch.randn(60, 1, 4, 4, generator=generator)  # black at the border
    labels = torch.arange(60) % 2
    network = seeded(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2)), 0).eval()
    kind = {"likelihood": trustgp.Classification(), "num_experts": 1}
    train = (x[:40], labels[:40])
    assert "same" in told(network, train, validation=train, **kind)
    assert "same" not in told(network, train, validation=(x[40:], labels[40:]), **kind)


# -- few rows -----------------------------------------------------------------------------------------


def test_fewer_than_twenty_rows():
    network, x, y = trained(30)
    assert "there are only 19 training rows" in told(network, (x[:19], y[:19]))["few"]
    assert told(network, (x[:20], y[:20])) == {}


def test_a_healthy_fit_is_told_nothing(regression):
    network, x, y = regression
    for options in ({}, {"validation": (x[80:], y[80:])}, {"budget": "none"}):
        assert told(network, (x[:80], y[:80]), **options) == {}
    classifier, inputs, labels = classes(120, 3)
    held = (inputs[90:], labels[90:])
    kind = {"likelihood": trustgp.Classification()}
    assert told(classifier, (inputs[:90], labels[:90]), validation=held, **kind) == {}
