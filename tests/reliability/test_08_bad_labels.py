"""Promise 8 for classes: what cannot be learnt is refused, with the first row, before any work."""

from __future__ import annotations

import pytest
import torch
from blobs import blobs, fit
from torch import nn

from trustgp.fitting import solve as solving


@pytest.fixture(scope="module")
def case():
    return blobs()


@pytest.fixture(autouse=True)
def no_expert_work(monkeypatch):
    """Any of the costly stages would fail the test."""

    def never(*arguments, **options):
        raise AssertionError("an expert's work began before the rows were checked")

    monkeypatch.setattr(solving, "divide", never)
    monkeypatch.setattr(solving, "solve_expert", never)


BAD = {
    "beyond": (lambda y: torch.where(torch.arange(300) == 17, 3, y), "1 of 300 rows, first 3 in row 17"),
    "below": (lambda y: y - 1, "first -1 in row"),
    "float": (lambda y: y.float(), "labels are torch.float32; class numbers are needed"),
    "soft": (lambda y: torch.full((300, 3), 1 / 3), "Soft or one-hot labels"),
    "one-hot": (lambda y: torch.nn.functional.one_hot(y, 3), "Soft or one-hot labels"),
    "bool": (lambda y: y > 0, "labels are torch.bool"),
    "too few": (lambda y: y[:5], "300 inputs but 5 targets"),
    "empty": (lambda y: y[:0], "300 inputs but 0 targets"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("where", ["train", "validation"])
def test_labels_that_are_no_class_numbers_are_refused(case, kind, where):
    change, says = BAD[kind]
    inputs, labels = case.train
    with pytest.raises(ValueError, match=says):
        fit(case, **{where: (inputs, change(labels))})


def test_no_rows_at_all_are_refused(case):
    with pytest.raises(ValueError, match="no rows"):
        fit(case, train=(case.train[0][:0], case.train[1][:0]))


def test_one_logit_takes_two_classes_only():
    case = blobs(2, logits=1)
    labels = torch.where(torch.arange(300) == 8, 2, case.train[1])
    with pytest.raises(ValueError, match=r"first 2 in row 8; the network has one logit, so only 0\.\.1"):
        fit(case, train=(case.train[0], labels))


class Overflowing(nn.Module):
    """A logit that is infinite for some rows."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x):
        logits = self.network(x)
        return torch.where(x[:, :1] > 3.0, torch.inf, logits)


def test_infinite_logits_are_refused_with_their_rows(case):
    bad = (case.train[0][:, 0] > 3.0).nonzero().flatten()
    assert len(bad)
    with pytest.raises(
        ValueError, match=f"NaN or infinite in {len(bad)} of 300 rows, first in row {int(bad[0])}"
    ):
        fit(case, network=Overflowing(case.network))
