"""How a witness is found: its cells, what they share, what it costs, and what does not change it."""

from dataclasses import replace

import pytest
import torch
from reference import leave_out, stationary_gram

from trustgp import Rows, Threads, Witness
from trustgp.executors import FitContext
from trustgp.executors.progress import reporting
from trustgp.experts.witness_fit import (
    FEWEST_ROWS,
    groups_left_out,
    update_witness,
    witness_bytes,
)
from trustgp.state.expert_tensors import witness_tensors


@pytest.fixture(scope="module")
def rows(toy):
    return toy(160, seed=1)


@pytest.fixture(scope="module")
def cells(find, rows):
    return find(*rows, rows=30)


def same(one, other) -> bool:
    first, second = witness_tensors(one), witness_tensors(other)
    return all(torch.equal(first[name], second[name]) for name in first)


# the cells


def test_every_row_is_some_cells_own_and_only_its(cells):
    own = torch.cat([cell.rows[: int(cell.own)] for cell in cells.cells])
    assert own.sort().values.tolist() == list(range(160))


def test_a_cells_own_rows_are_those_nearest_to_its_centroid(cells, rows):
    points = cells.scaled(rows[0])
    nearest = (points[:, None] - cells.centroids).square().sum(dim=2).argmin(dim=1)
    for number, cell in enumerate(cells.cells):
        assert bool((nearest[cell.rows[: int(cell.own)]] == number).all())
        assert torch.equal(cell.posterior.features.points, points[cell.rows])


def test_borrowed_rows_are_those_nearest_to_any_own_row(find, rows):
    state = find(*rows, rows=60, borrowed=3)
    assert len(state.cells) <= 8  # so that all others are looked at
    points = state.scaled(rows[0])
    for cell in state.cells:
        own, lent = cell.rows[: int(cell.own)], cell.rows[int(cell.own) :]
        others = torch.tensor([i for i in range(160) if i not in own.tolist()])
        apart = (points[own][:, None] - points[others]).square().sum(dim=2)
        named = {int(others[j]) for row in apart for j in row.argsort()[:3]}
        if len(named) > min(len(own), 2 * 60 - len(own)):
            closest = {int(i): float(apart[:, k].min()) for k, i in enumerate(others)}
            named = set(sorted(named, key=closest.__getitem__)[: min(len(own), 2 * 60 - len(own))])
        assert set(lent.tolist()) == named
        assert len(lent) == len(named)


def test_no_cell_holds_more_than_twice_its_size_nor_a_row_twice(find, toy):
    inputs, targets = toy(400, seed=2)
    inputs[:300] = 0.01 * inputs[:300]  # most rows in one place: k-means cannot balance that
    state = find(inputs, targets, rows=30)
    for cell in state.cells:
        assert 0 < len(cell.rows) <= 60
        assert len(cell.rows.unique()) == len(cell.rows)


def test_of_very_many_rows_some_decide_on_the_cells_and_all_are_held(find, toy, monkeypatch):
    monkeypatch.setattr("trustgp.experts.witness_fit.MOST_JUDGED", 64)
    state = find(*toy(900, seed=2), rows=60)
    own = torch.cat([cell.rows[: int(cell.own)] for cell in state.cells])
    assert len(own.unique()) == len(own) > 850
    assert all(len(cell.rows) <= 120 for cell in state.cells)
    assert 15 <= len(state.cells) <= 30


def test_without_borrowed_rows_cells_hold_their_own_rows_only(find, rows):
    state = find(*rows, rows=30, borrowed=0)
    assert all(len(cell.rows) == int(cell.own) for cell in state.cells)


def test_identical_rows_fall_to_one_cell(find, rows):
    inputs, targets = rows
    state = find(inputs.repeat(2, 1), targets.repeat(2, 1), rows=30)
    for cell in state.cells:
        own = cell.rows[: int(cell.own)]
        assert torch.equal((own % 160).sort().values[::2], (own % 160).sort().values[1::2])


# when there is none


def test_few_rows_and_rows_that_are_no_vectors_give_none(find, rows):
    inputs, targets = rows
    assert find(inputs[: FEWEST_ROWS - 1], targets[: FEWEST_ROWS - 1]) is None
    assert len(find(inputs[:FEWEST_ROWS], targets[:FEWEST_ROWS]).cells) == 1
    assert find((10 * inputs).long(), targets) is None
    assert find(inputs, targets, most_inputs=2) is None


@pytest.mark.parametrize(("inputs", "targets"), [(1e200, 1.0), (1.0, 1e200), (1e308, 1e308)])
def test_rows_whose_squares_overflow_give_none(find, rows, inputs, targets):
    assert find(inputs * rows[0], targets * rows[1]) is None


# what it holds


@pytest.mark.parametrize("size", [20, 60, 1000])
def test_it_holds_what_was_counted(find, rows, size):
    state = find(*rows, rows=size)
    assert witness_bytes([len(cell.rows) for cell in state.cells], 3, 2) == state.nbytes


def test_a_tight_room_makes_smaller_cells_and_none_at_last(find, rows):
    free = find(*rows)
    sizes = []
    for room in (free.nbytes, free.nbytes - 1, free.nbytes // 2, 20_000):
        state = find(*rows, room=room)
        sizes.append(0 if state is None else int(state.size))
        assert state is None or state.nbytes <= room
    assert sizes[0] == 750
    assert 0 < sizes[1] < 160
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 0


# what changes nothing, or only units


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_neither_workers_nor_torch_threads_change_a_bit(find, toy, cells, rows, workers, threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert same(find(*rows, rows=30, workers=workers), cells)
    finally:
        torch.set_num_threads(before)


def test_the_seed_decides_the_cells(find, rows, cells):
    assert same(find(*rows, rows=30), cells)
    assert not torch.equal(find(*rows, rows=30, seed=1).centroids, cells.centroids)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_unit_of_the_inputs_does_not_matter(find, rows, cells, unit):
    inputs, targets = rows
    other = find(unit * inputs + 3 * unit, targets, rows=30)
    one, two = cells(inputs), other(unit * inputs + 3 * unit)
    for name in ("mean", "variance", "novelty", "precision"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("unit", [1e-8, 1e8])
def test_the_units_of_the_targets_are_those_of_the_answer(find, rows, cells, unit):
    inputs, targets = rows
    units = torch.tensor([unit, 1 / unit], dtype=torch.float64)  # far apart, too
    one, two = cells(inputs), find(inputs, units * targets, rows=30)(inputs)
    torch.testing.assert_close(units * one.mean, two.mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(units.square() * one.variance, two.variance, rtol=1e-6, atol=0)
    torch.testing.assert_close(one.novelty, two.novelty, rtol=1e-6, atol=1e-9)


def test_a_level_added_to_the_targets_is_added_to_the_answer(find, rows, cells):
    one, two = cells(rows[0]), find(rows[0], rows[1] + 1000.0, rows=30)(rows[0])
    torch.testing.assert_close(one.mean + 1000.0, two.mean, rtol=1e-8, atol=0)
    torch.testing.assert_close(one.precision, two.precision, rtol=1e-6, atol=0)


def test_an_input_that_never_changed_is_news_as_soon_as_it_does(find, rows):
    inputs, targets = rows
    for level in (0.0, 0.1, 7.0, 1e6):
        wide = torch.cat([inputs, torch.full((160, 1), level).double()], dim=1)
        state = find(wide, targets)
        said, plain = state(wide), find(inputs, targets)(inputs)
        torch.testing.assert_close(said.mean, plain.mean, rtol=1e-8, atol=1e-10)
        moved = wide.clone()
        moved[:, 3] += 0.1 * max(level, 1.0)
        assert bool((state(moved).precision == 0).all())


def test_an_output_that_never_changed_is_not_spoken_of(find, rows):
    inputs, targets = rows
    for level in (0.0, 0.1, -1e9):
        still = torch.stack([targets[:, 0], torch.full((160,), level).double()], dim=1)
        precision = find(inputs, still)(inputs).precision
        assert bool((precision[:, 0] > 1).all())
        assert bool((precision[:, 1] < 1e-100).all())


# degenerate rows


def hardly(find, inputs, targets, **setting):
    """A witness of awkward rows: found, finite, and in order."""
    state = find(inputs, targets, **setting)
    for at in (inputs, inputs + 0.3 * inputs.abs().max(), 10 * inputs):
        said = state(at)
        assert bool(torch.isfinite(said.mean).all())
        assert bool((said.variance > 0).all())
        assert bool(((said.novelty >= 0) & (said.novelty <= 1)).all())
        assert bool(torch.isfinite(said.precision).all())
    for value in witness_tensors(state).values():
        assert bool(torch.isfinite(value.double()).all())
    return state


def test_all_rows_in_one_place(find, rows):
    inputs = rows[0][:1].expand(160, 3).clone()
    state = hardly(find, inputs, rows[1])
    torch.testing.assert_close(state(inputs).mean[0], rows[1].mean(dim=0), rtol=1e-3, atol=1e-3)


def test_most_rows_in_one_place(find, rows):
    inputs = torch.cat([rows[0][:1].expand(600, 3), rows[0]])
    hardly(find, inputs, torch.cat([rows[1][:1].expand(600, 2), rows[1]]))


@pytest.mark.parametrize("times", [2, 5])
def test_rows_that_stand_there_several_times(find, rows, times):
    inputs, targets = rows
    hardly(find, inputs.repeat(times, 1), targets.repeat(times, 1), rows=100)
    generator = torch.Generator().manual_seed(0)
    noisy = targets.repeat(times, 1) + torch.randn(160 * times, 2, generator=generator).double()
    hardly(find, inputs.repeat(times, 1), noisy, rows=100)


@pytest.mark.parametrize("size", [1e3, 1e7, 1e12])
def test_one_row_far_from_all_others_does_not_spoil_them(find, rows, size):
    inputs, targets = rows[0].clone(), rows[1]
    inputs[0] = size
    state = hardly(find, inputs, targets)
    error = (state(inputs).mean - targets)[1:].square().mean()
    plain = (find(*rows)(rows[0]).mean - targets)[1:].square().mean()
    assert float(error) < 2 * float(plain)


def test_constant_targets(find, rows):
    hardly(find, rows[0], torch.ones_like(rows[1]), rows=40)


def test_one_input_and_one_output(find, rows):
    hardly(find, rows[0][:, :1], rows[1][:, :1], rows=40)
    hardly(find, rows[0][:, 0], rows[1][:, :1])


@pytest.mark.parametrize("size", [1e-160, 1e-150, 1e-8, 1e8, 1e150])
def test_targets_of_any_size(find, rows, size):
    hardly(find, rows[0], size * rows[1], rows=40)


# groups left out


def test_a_group_left_out_is_really_left_out(cells, rows):
    groups = torch.arange(160) // 16
    said = groups_left_out(cells, rows[1], groups)
    for number, cell in enumerate(cells.cells):
        own = cell.rows[: int(cell.own)]
        gram = stationary_gram(
            cell.posterior.features.points, cell.posterior.features.points, float(cells.length)
        )
        errors, variances = leave_out(
            gram, rows[1][cell.rows] - cell.centre, groups[cell.rows], float(cell.tau)
        )
        novelty = (variances - cell.tau)[: len(own)]
        mean = (rows[1][cell.rows] - errors)[: len(own)]
        torch.testing.assert_close(said.mean[own], mean, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(said.novelty[own], novelty.clamp(0, 1), rtol=1e-8, atol=1e-9)
        expected = cells.kappa[number] * cell.scale * (novelty[:, None] + cell.tau)
        torch.testing.assert_close(said.variance[own], expected, rtol=1e-8, atol=0)


def test_with_all_rows_in_one_group_nothing_is_said(cells, rows):
    said = groups_left_out(cells, rows[1], torch.zeros(160))
    assert float(said.precision.max()) < 1e-9 * float(cells(rows[0]).precision.max())


def test_rows_that_no_cell_holds_are_not_spoken_of(find, toy):
    inputs, targets = toy(400, seed=2)
    inputs[:300] = inputs[:1]
    state = find(inputs, targets, rows=30)
    held = torch.zeros(400, dtype=torch.bool)
    for cell in state.cells:
        held[cell.rows[: int(cell.own)]] = True
    assert 0 < int((~held).sum()) < 400
    said = groups_left_out(state, targets, torch.arange(400))
    assert bool((said.precision[~held] == 0).all())
    assert bool((said.precision[held] > 0).any())


# more rows


def updated(state, old, new, room=None, **setting):
    inputs, targets = (torch.cat(pair) for pair in zip(old, new, strict=True))
    with reporting(enabled=False) as report:
        context = FitContext(torch.device("cpu"), 0, Threads(2), report)
        return update_witness(state, Rows(inputs, targets), Witness(**setting), context, room)


def test_an_update_solves_the_cells_whose_rows_changed_and_no_other(find, toy):
    old = toy(300, seed=1)
    state = find(*old, rows=20)
    inputs, targets = toy(40, seed=2)
    corner = (inputs - 2.0).norm(dim=1).argsort()[:3]
    after, changed = updated(state, old, (inputs[corner], targets[corner]), rows=20)
    assert 0 < len(changed) < len(state.cells)
    for number, (before, now) in enumerate(zip(state.cells, after.cells, strict=True)):
        assert (now is before) == (number not in changed)
    held = torch.cat([cell.rows[: int(cell.own)] for cell in after.cells])
    assert held.sort().values.tolist() == list(range(303))


def test_an_update_equals_solving_all_cells_of_all_rows(find, toy):
    old, new = toy(160, seed=1), toy(25, seed=2)
    state = find(*old, rows=30)
    after, _ = updated(state, old, new, rows=30)
    inputs, targets = (torch.cat(pair) for pair in zip(old, new, strict=True))
    blank = torch.zeros(0, 3).double(), torch.zeros(0, 2).double()
    forgetful = replace(state, cells=tuple(replace(cell, rows=cell.rows[:0]) for cell in state.cells))
    again, changed = updated(forgetful, (inputs, targets), blank, rows=30)
    assert changed == list(range(len(state.cells)))
    assert same(again, after)
    assert torch.equal(after.centroids, state.centroids)
    assert (float(after.length), float(after.ratio)) == (float(state.length), float(state.ratio))


def test_an_update_stays_within_its_room(find, toy):
    old, new = toy(200, seed=1), toy(600, seed=2)
    for size in (30, 750):
        state = find(*old, rows=size)
        after, _ = updated(state, old, new, room=state.nbytes, rows=size)
        assert after.nbytes <= state.nbytes
        assert after.nbytes > 0.8 * state.nbytes
        free, _ = updated(state, old, new, rows=size)
        assert free.nbytes > state.nbytes
