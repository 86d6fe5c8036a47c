"""Chunks that are halved where memory runs out."""

import pytest
import torch

import trustgp
from trustgp.data.chunking import map_chunks
from trustgp.executors import FitContext
from trustgp.fitting import pipeline
from trustgp.fitting.prepare import Residuals
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
def test_every_row_is_worked_on_once_and_in_order_whatever_the_room(room):
    for n, size in ((10, 10), (10, 4), (7, 100), (1, 1), (33, 8), (0, 4)):
        index = torch.arange(n).flip(0)
        parts = map_chunks(Small(room), index, size)
        assert torch.equal(torch.cat(parts), index)
        assert all(len(part) <= min(room, size) for part in parts)


HALVED = [(100, 10, 4, [4, 4, 2]), (3, 20, 8, [8, 4, *[2] * 10])]


@pytest.mark.parametrize(("room", "n", "size", "tried"), HALVED)
def test_a_chunk_is_halved_only_without_room_and_stays_smaller(room, n, size, tried):
    work = Small(room)
    map_chunks(work, torch.arange(n), size)
    assert work.tried == tried


def test_a_single_row_without_room_and_other_errors_are_the_errors_they_were():
    with pytest.raises(torch.OutOfMemoryError, match="1 rows are too many"):
        map_chunks(Small(0), torch.arange(5), 4)
    calls = []

    def work(index):
        calls.append(index)
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        map_chunks(work, torch.arange(5), 4)
    assert len(calls) == 1


class Crowded(torch.nn.Sequential):
    """A network that a small GPU has no room for, but for a few rows at a time."""

    room = 10**9

    def forward(self, inputs):
        if len(inputs) > Crowded.room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(inputs)


@pytest.mark.parametrize("kind", ["LayerFactors", "JacobianRows", "Sketch"])
def test_a_fit_succeeds_with_little_room_once_it_has_been_planned(case, kind, monkeypatch):
    """With the same numbers but for rounding; only a fit goes through all passes that must be halved."""
    network, inputs = Crowded(case.network).eval(), case.inputs[:40]
    options = {"num_experts": 2, "progress": False, "tangents": getattr(trustgp, kind)(), "witness": None}
    options["validation"] = (case.inputs[:9] + 0.1, case.targets[:9])
    expected = trustgp.fit(network, (case.inputs, case.targets), **options).predict(inputs)
    monkeypatch.setattr(pipeline, "find_witness", lambda *_: monkeypatch.setattr(Crowded, "room", 9))
    model = trustgp.fit(network, (case.inputs, case.targets), **options)
    assert Crowded.room == 9
    raw = model.mixtures[0].raw(inputs)
    monkeypatch.setattr(Crowded, "room", 10**9)
    torch.testing.assert_close(raw.epistemic, model.mixtures[0].raw(inputs).epistemic)
    torch.testing.assert_close(model.predict(inputs).epistemic, expected.epistemic, rtol=1e-6, atol=0)


def test_the_outputs_of_all_rows_are_made_with_little_room(case, report, monkeypatch):
    network, rows = Crowded(case.network).eval(), trustgp.Rows(case.inputs, case.targets)
    prepared = prepare(network, trustgp.LayerFactors().choose(network), None)
    context = FitContext(torch.device("cpu"), 0, trustgp.Threads(2), report)
    monkeypatch.setattr(Crowded, "room", 5)
    (residuals,) = Residuals(trustgp.Regression(), rows, "train").compute(prepared, context)
    torch.testing.assert_close(residuals, case.targets - case.network(case.inputs).detach())
