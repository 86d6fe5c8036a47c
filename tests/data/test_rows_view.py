"""Some of other rows, in their memory."""

import torch

from trustgp.data.fingerprint import rows_fingerprint
from trustgp.data.rows import ChosenRows, Rows


def rows() -> Rows:
    generator = torch.Generator().manual_seed(0)
    inputs = {"a": torch.randn(20, 3, generator=generator), "b": torch.arange(20)}
    return Rows(inputs, torch.randn(20, 2, generator=generator))


def test_chosen_rows_are_the_others_without_a_copy():
    whole, chosen = rows(), torch.arange(20) % 3 == 0
    some = whole.subset(chosen)
    assert isinstance(some, ChosenRows)
    assert some.whole is whole
    assert len(some) == int(chosen.sum())
    inputs, targets = some.batch(torch.tensor([2, 0]))
    assert torch.equal(inputs["a"], whole.inputs["a"][[6, 0]])
    assert torch.equal(some.inputs["b"], whole.inputs["b"][chosen])
    assert torch.equal(targets, whole.targets[[6, 0]])
    assert torch.equal(some.parent_indices(torch.tensor([1, 4])), torch.tensor([3, 12]))
    assert torch.equal(whole.parent_indices(torch.tensor([1, 4])), torch.tensor([1, 4]))


def test_some_of_chosen_rows_and_the_same_among_another_copy():
    whole = rows()
    some = whole.subset(torch.arange(20) >= 10).subset(torch.arange(10) % 2 == 0)
    assert some.inputs["b"].tolist() == [10, 12, 14, 16, 18]
    other = Rows({name: value.clone() for name, value in whole.inputs.items()}, whole.targets)
    assert whole.subset(torch.arange(20) < 3).rebind(other).whole is other
    assert whole.rebind(other) is other


def test_the_fingerprint_is_that_of_the_rows_wherever_they_lie():
    whole, chosen = rows(), torch.arange(20) % 2 == 1
    copied = Rows({name: value[chosen] for name, value in whole.inputs.items()}, whole.targets[chosen])
    assert rows_fingerprint(whole.subset(chosen), None) == rows_fingerprint(copied, None)
    assert rows_fingerprint(whole, None) != rows_fingerprint(copied, None)
