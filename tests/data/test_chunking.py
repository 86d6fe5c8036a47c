"""Chunks that are halved where memory runs out."""

import importlib

import pytest
import torch

import trustgp
from trustgp.data.chunking import map_chunks
from trustgp.executors import FitContext
from trustgp.fitting.prepare import residual_of
from trustgp.tangents.network import prepare


class Small:
    """Work that has room for so many rows at a time."""

    def __init__(self, room):
        self.room, self.tried = room, []

    def __call__(self, index):
        self.tried.append(len(index))
        if len(index) > self.room:
            raise torch.OutOfMemoryError(f"{len(index)} rows are too many")
        return index.clone()


@pytest.mark.parametrize("room", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(("n", "size"), [(10, 10), (10, 4), (7, 100), (1, 1), (33, 8)])
def test_every_row_is_worked_on_once_and_in_order_whatever_the_room(room, n, size):
    index = torch.arange(n).flip(0)
    parts = map_chunks(Small(room), index, size)
    assert torch.equal(torch.cat(parts), index)
    assert all(len(part) <= min(room, size) for part in parts)


def test_enough_room_leaves_the_chunks_as_they_are():
    work = Small(100)
    assert [len(part) for part in map_chunks(work, torch.arange(10), 4)] == [4, 4, 2]
    assert work.tried == [4, 4, 2]


def test_a_smaller_chunk_stays_smaller():
    work = Small(3)
    map_chunks(work, torch.arange(20), 8)
    assert work.tried == [8, 4, 2, *[2] * 9]


def test_a_single_row_without_room_is_the_error_it_was():
    with pytest.raises(torch.OutOfMemoryError, match="1 rows are too many"):
        map_chunks(Small(0), torch.arange(5), 4)


def test_other_errors_are_not_tried_again():
    calls = []

    def work(index):
        calls.append(index)
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        map_chunks(work, torch.arange(5), 4)
    assert len(calls) == 1


def test_no_rows_are_one_empty_chunk():
    assert [len(part) for part in map_chunks(Small(1), torch.arange(0), 4)] == [0]


class Crowded(torch.nn.Module):
    """A network that a small GPU has no room for, but for a few rows at a time."""

    room = 10**9

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        if len(inputs) > Crowded.room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.inner(inputs)


@pytest.fixture
def crowded(case, monkeypatch):
    """The case's network, and a function that says how many rows there is room for."""
    return Crowded(case.network).eval(), lambda room: monkeypatch.setattr(Crowded, "room", room)


@pytest.mark.parametrize("kind", ["LayerFactors", "JacobianRows", "Sketch"])
def test_a_fit_goes_through_with_little_room_once_it_has_been_planned(case, crowded, kind, monkeypatch):
    """With the same numbers but for rounding, however few rows fit."""
    network, room = crowded
    options = {
        "num_experts": 2,
        "progress": False,
        "tangents": getattr(trustgp, kind)(),
        "witness": None,
        "validation": (case.inputs[:9] + 0.1, case.targets[:9]),
    }
    expected = trustgp.fit(network, (case.inputs, case.targets), **options).predict(case.inputs[:40])

    def little_room(*arguments):
        room(9)

    monkeypatch.setattr(importlib.import_module("trustgp.fitting.pipeline"), "find_witness", little_room)
    model = trustgp.fit(network, (case.inputs, case.targets), **options)
    assert Crowded.room == 9
    raw = model.mixtures[0].raw(case.inputs[:40])
    room(10**9)
    torch.testing.assert_close(raw.epistemic, model.mixtures[0].raw(case.inputs[:40]).epistemic)
    found = model.predict(case.inputs[:40])
    torch.testing.assert_close(found.epistemic, expected.epistemic, rtol=1e-6, atol=0)


def test_the_outputs_of_all_rows_are_made_with_little_room(case, crowded, report):
    network, room = crowded
    rows = trustgp.Rows(case.inputs, case.targets)
    prepared = prepare(network, trustgp.LayerFactors().choose(network), None)
    room(5)
    context = FitContext(torch.device("cpu"), 0, trustgp.Threads(2), report)
    (found,) = residual_of(prepared, trustgp.Regression(), rows, context, name="train")
    room(10**9)
    torch.testing.assert_close(found, case.targets - network(case.inputs).detach())
