"""Rows in blocks of one owner, and stacked experts, against a loop."""

import pickle

import pytest
import torch
from draws import Draws

from trustgp.experts import stack
from trustgp.experts.blocks import Blocks, by_owner
from trustgp.experts.features import NO_COLUMNS
from trustgp.experts.posteriors import PriorPosterior, SpanPosterior
from trustgp.experts.stack import SpanStack
from trustgp.tangents.rows import RowFeatures

CASES = [(1, 5), (7, 5), (40, 5), (300, 3), (64, 64), (9, 1), (200, 50)]


def labels_of(n: int, owners: int) -> torch.Tensor:
    return (Draws(n).uniform(n).square() * owners).long()  # uneven


@pytest.mark.parametrize(("n", "owners"), CASES)
def test_every_row_comes_back_from_its_owner(n, owners):
    labels, rows = labels_of(n, owners), torch.arange(n)
    made = by_owner(lambda owner, own: (rows[own], torch.full_like(rows[own], owner)), labels, owners)
    assert torch.equal(torch.stack(made), torch.stack([rows, labels]))


@pytest.mark.parametrize(("n", "owners"), CASES)
def test_every_row_comes_back_from_a_block_of_its_owner(n, owners):
    labels = labels_of(n, owners)
    made = Blocks.of(labels, owners)
    rows = torch.arange(n)[:, None] + 1.0
    split = made.split(rows)
    assert split.shape == (len(made.owner), made.size, 1)
    assert torch.equal(made.join(split), rows)
    assert int((split > 0).sum()) == n
    owner = made.pick(torch.arange(owners))[:, None, None].expand_as(split)
    assert torch.equal(made.join(owner)[:, 0], labels)
    # the same for any labels
    assert len(Blocks.of(torch.zeros_like(labels), owners).owner) == len(made.owner) <= n


def experts(columns: bool) -> list:
    draws, made = Draws(), []
    for rank in (3, 5, 0, 4):
        kept = torch.randperm(12, generator=draws.generator)[:8].sort().values if columns else NO_COLUMNS
        if rank == 0:
            made.append(PriorPosterior(torch.zeros(0, 2).double()))
            continue
        basis = torch.linalg.qr(draws.normal(8 if columns else 12, rank))[0]
        made.append(SpanPosterior(kept, basis, draws.uniform(rank), draws.normal(len(basis), 2)))
    return made


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("n", [1, 6, 90])
@pytest.mark.parametrize("read", [True, False])  # as on a CPU, and as on a GPU
def test_stacked_experts_of_unequal_ranks_predict_as_each_alone(n, columns, read, monkeypatch):
    monkeypatch.setattr(stack, "readable", lambda _: read)
    posteriors, labels = experts(columns), labels_of(n, 4)
    features = RowFeatures(torch.randn(n, 12, generator=torch.Generator().manual_seed(1)).double())
    alone = [posteriors[k](features.take(torch.tensor([i]))) for i, k in enumerate(labels.tolist())]
    sizes = [len(pickle.dumps(one)) for one in posteriors]
    made = SpanStack.of(posteriors)
    moments = made(made.select(features, labels), labels)
    solved = labels != 2 if columns else labels >= 0  # `Mixture.stacked` treats failed ones with columns
    for name in ("unit", "prior", "residual_mean"):
        expected = torch.cat([getattr(one, name) for one in alone])
        torch.testing.assert_close(getattr(moments, name)[solved], expected[solved], rtol=1e-12, atol=1e-13)
    bases = [made.basis, *(one.basis for one in posteriors if not one.failed)]
    assert len({one.untyped_storage().data_ptr() for one in bases}) == 1  # stored once
    assert [len(pickle.dumps(one)) for one in posteriors] == pytest.approx(sizes, rel=0.05)
