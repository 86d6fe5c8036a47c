"""Rows that are kept from the experts."""

import pytest
import torch

from trustgp import Rows
from trustgp.data import split
from trustgp.data.split import MAX_HELD_OUT, check_groups, held_rows, holdout_split, share_in_common


def rows_of(n: int) -> Rows:
    return Rows(torch.arange(n)[:, None].float(), torch.arange(n)[:, None])


@pytest.mark.parametrize(("n", "count"), [(50, 5), (1000, 100), (100_000, MAX_HELD_OUT)])
def test_a_tenth_is_held_but_never_more_than_it_takes(n, count):
    assert int(held_rows(n, seed=0).sum()) == count
    assert torch.equal(held_rows(n, 4), held_rows(n, 4))
    assert not torch.equal(held_rows(n, 4), held_rows(n, 5))


def test_kept_rows_stand_in_their_order_and_later_ones_are_all_kept():
    numbers = split.kept_rows(rows_of(120), 100, seed=0).targets.flatten()
    assert len(numbers) == 110
    assert torch.equal(numbers, numbers.sort().values)
    assert torch.equal(numbers[-20:], torch.arange(100, 120))
    assert not bool(held_rows(100, 0)[numbers[:90]].any())


def test_rows_that_are_repeated_by_weight_stay_those_of_their_parent():
    parent = split.weighted(rows_of(12), [1.0] * 8 + [3.0] * 4)
    held = split.repeated(parent.subset(torch.arange(12) >= 6))
    assert held.targets.flatten().tolist() == [7, 8, 9, 10, 10, 11]
    assert torch.equal(held.parent_indices(torch.arange(6)), held.targets.flatten())
    assert torch.equal(held.rebind(rows_of(12)).inputs, held.inputs)


def test_whole_groups_are_held_and_never_all_of_them():
    groups = torch.arange(200) // 25
    with pytest.warns(UserWarning, match="25 of the 200"):
        held = holdout_split(rows_of(200), groups, seed=0)
    assert len(groups[held].unique()) == 1
    few = "5 of the 50 training rows.* about 300 rows that the network has not"
    with pytest.warns(UserWarning, match=few):
        assert int(holdout_split(rows_of(50), None, 0).sum()) == 5
    with pytest.warns(UserWarning, match="100 of the 200"):
        held = holdout_split(rows_of(200), torch.arange(200) // 100, seed=0)
    assert int(held.sum()) == 100


@pytest.mark.parametrize(("n", "groups"), [(49, None), (200, torch.zeros(200, dtype=torch.int64))])
def test_too_few_rows_or_groups_are_all_for_the_experts(n, groups):
    with pytest.warns(UserWarning, match="default temperature; no novelty"):
        assert not bool(holdout_split(rows_of(n), groups, seed=0).any())


def test_the_share_of_rows_in_common_is_told_where_most_are():
    rows, generator = rows_of(400), torch.Generator().manual_seed(0)
    assert share_in_common(rows, rows, 0) == 1.0
    other = Rows(rows.inputs + 1000, rows.targets)
    for share, reported in ((0.75, True), (0.25, False)):
        mixed = rows.inputs.clone()
        mixed[torch.randperm(400, generator=generator)[: int(400 * (1 - share))]] += 1000
        result = share_in_common(Rows(mixed, rows.targets), rows, 0)
        assert abs(result - share) < 0.1 if reported else result == 0.0
    assert share_in_common(other, rows, 0) == 0.0
    assert share_in_common(Rows(rows.inputs.repeat(1, 2), rows.targets), rows, 0) == 0.0  # of another shape


def test_rows_that_have_twins_among_themselves_are_not_in_common():
    twice = Rows(rows_of(100).inputs.repeat(2, 1), rows_of(100).targets.repeat(2, 1))
    assert share_in_common(rows_of(100), twice, 0) == 0.0
    index = torch.cat([torch.arange(100), torch.arange(10)])
    some = Rows(*rows_of(100).batch(index))
    assert share_in_common(rows_of(100), some, 0) == 1.0  # a few twins say little
    index = torch.cat([torch.arange(100), torch.arange(60)])  # three in four have one
    some = Rows(*rows_of(100).batch(index))
    assert share_in_common(Rows(*rows_of(115).batch(torch.arange(15, 115))), some, 0) == 0.0


def test_groups_of_any_labels_are_numbered_from_zero_in_the_order_of_the_rows():
    assert check_groups(None, rows_of(4)) is None
    assert check_groups(["b", "a", "b", "c"], rows_of(4)).tolist() == [1, 0, 1, 2]
    assert check_groups(torch.tensor([7, 7, 2, 9]), rows_of(4)).tolist() == [1, 1, 0, 2]
    with pytest.raises(ValueError, match=r"shape \(3,\); one for each of 4 rows"):
        check_groups([0, 0, 1], rows_of(4))
