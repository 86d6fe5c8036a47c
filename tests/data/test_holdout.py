"""Rows that are kept from the experts."""

import pytest
import torch

from trustgp import Rows
from trustgp.data.split import MOST_HELD, held_rows, holdout_split, kept_rows


def rows_of(n: int) -> Rows:
    return Rows(torch.arange(n)[:, None].float(), torch.arange(n)[:, None])


@pytest.mark.parametrize(("n", "count"), [(50, 5), (1000, 100), (100_000, MOST_HELD)])
def test_a_tenth_is_held_but_never_more_than_it_takes(n, count):
    assert int(held_rows(n, seed=0).sum()) == count


def test_the_same_seed_holds_the_same_rows():
    assert torch.equal(held_rows(300, 4), held_rows(300, 4))
    assert not torch.equal(held_rows(300, 4), held_rows(300, 5))


def test_kept_rows_stand_in_their_order_and_later_ones_are_all_kept():
    kept = kept_rows(rows_of(120), 100, seed=0)
    found = kept.targets.flatten()
    assert len(kept) == 110
    assert torch.equal(found, found.sort().values)
    assert torch.equal(found[-20:], torch.arange(100, 120))
    assert not bool(held_rows(100, 0)[found[:90]].any())


def test_whole_groups_are_held_and_never_all_of_them():
    groups = torch.arange(200) // 25
    with pytest.warns(UserWarning, match="25 of the 200"):
        held = holdout_split(rows_of(200), groups, seed=0)
    assert len(groups[held].unique()) == 1
    with pytest.warns(UserWarning, match="100 of the 200"):
        held = holdout_split(rows_of(200), torch.arange(200) // 100, seed=0)
    assert int(held.sum()) == 100


@pytest.mark.parametrize(("n", "groups"), [(49, None), (200, torch.zeros(200, dtype=torch.int64))])
def test_too_few_rows_or_groups_are_all_for_the_experts(n, groups):
    with pytest.warns(UserWarning, match="rule of thumb"):
        assert not bool(holdout_split(rows_of(n), groups, seed=0).any())


def test_some_rows_keep_inputs_and_targets_together():
    chosen = torch.tensor([True, False, True])
    found = rows_of(3).some(chosen)
    assert found.inputs.flatten().tolist() == [0.0, 2.0]
    assert found.targets.flatten().tolist() == [0, 2]
