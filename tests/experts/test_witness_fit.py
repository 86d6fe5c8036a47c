"""How a witness is found: its cells, what they share, what it costs, and what does not change it."""

import pytest
import torch
from witness_reference import witness_answer, witness_left_out, witness_level

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


def held(state):
    """The rows of each cell: its own, and those it borrowed."""
    lots = state.rows.split(state.sizes.tolist())
    return [(lot[:own], lot[own:]) for lot, own in zip(lots, state.own.tolist(), strict=True)]


# the cells


def test_every_row_is_some_cells_own_and_only_its(cells):
    own = torch.cat([own for own, _ in held(cells)])
    assert own.sort().values.tolist() == list(range(160))


def test_a_cells_own_rows_are_those_nearest_to_its_centroid(cells, rows):
    points = cells.scaled(rows[0])
    nearest = (points[:, None] - cells.centroids).square().sum(dim=2).argmin(dim=1)
    for number, (own, _) in enumerate(held(cells)):
        assert bool((nearest[own] == number).all())


def test_it_holds_scaled_inputs_and_targets_about_the_mean_of_the_cell(cells, rows):
    assert torch.equal(cells.points, cells.scaled(rows[0])[cells.rows].float())
    for number, (own, lent) in enumerate(held(cells)):
        both = torch.cat([own, lent])
        torch.testing.assert_close(cells.centre[number], rows[1][both].mean(dim=0), rtol=1e-12, atol=1e-12)
    about = cells.targets + cells.centre.repeat_interleave(cells.sizes, dim=0)
    torch.testing.assert_close(about, rows[1][cells.rows], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("borrowed", [0, 1, 2])
def test_borrowed_rows_are_those_nearest_to_any_own_row(find, rows, borrowed):
    state = find(*rows, rows=60, borrowed=borrowed)
    assert 1 < len(state.sizes) <= 8  # so that all others are looked at
    points = state.scaled(rows[0])
    for own, lent in held(state):
        others = [i for i in range(160) if i not in own.tolist()]
        apart = {i: float((points[own] - points[i]).norm(dim=1).min()) for i in others}
        count = borrowed and max(state.most_neighbours, borrowed * len(own))
        assert set(lent.tolist()) == set(sorted(others, key=apart.__getitem__)[:count])
        assert len(lent) == min(count, len(others))


def test_no_cell_has_more_than_twice_its_size_nor_a_row_twice(find, toy):
    inputs, targets = toy(400, seed=2)
    inputs[:300] = 0.01 * inputs[:300]  # most rows in one place: k-means cannot balance that
    for own, lent in held(find(inputs, targets, rows=30)):
        assert 0 < len(own) <= 60
        assert len(torch.cat([own, lent]).unique()) == len(own) + len(lent)


def test_of_very_many_rows_some_decide_on_the_cells_and_all_are_held(find, toy, monkeypatch):
    monkeypatch.setattr("trustgp.experts.witness_fit.MOST_JUDGED", 64)
    state = find(*toy(900, seed=2), rows=60)
    own = torch.cat([own for own, _ in held(state)])
    assert len(own.unique()) == len(own) > 850
    assert int(state.own.max()) <= 120
    assert 15 <= len(state.sizes) <= 30


def test_identical_rows_fall_to_one_cell(find, rows):
    inputs, targets = rows
    state = find(inputs.repeat(2, 1), torch.cat([targets, targets + 1]), rows=30)
    for own, _ in held(state):
        assert torch.equal((own % 160).sort().values[::2], (own % 160).sort().values[1::2])


# when there is none


def test_few_rows_and_rows_that_are_no_vectors_give_none(find, rows):
    inputs, targets = rows
    assert find(inputs[: FEWEST_ROWS - 1], targets[: FEWEST_ROWS - 1]) is None
    assert len(find(inputs[:FEWEST_ROWS], targets[:FEWEST_ROWS]).sizes) == 1
    assert find((10 * inputs).long(), targets) is None
    assert find(inputs, targets, most_inputs=2) is None


@pytest.mark.parametrize(("inputs", "targets"), [(1e200, 1.0), (1.0, 1e200), (1e308, 1e308)])
def test_rows_whose_squares_overflow_give_none(find, rows, inputs, targets):
    assert find(inputs * rows[0], targets * rows[1]) is None


# what it holds


@pytest.mark.parametrize(
    ("n", "setting", "dtype"),
    [
        (160, {}, torch.float32),
        (160, {}, torch.float64),
        (900, {"rows": 100}, torch.float32),
        (900, {}, torch.float64),
        (900, {"borrowed": 0}, torch.float32),
    ],
)
def test_what_it_holds_is_known_before_it_is_found(find, toy, n, setting, dtype):
    inputs, targets = (value.to(dtype) for value in toy(n, seed=2))
    expected = witness_bytes(n, 3, 2, Witness(**setting), double=dtype == torch.float64)
    assert find(inputs, targets, **setting).nbytes == pytest.approx(expected, rel=0.05)


def test_where_there_is_no_room_there_is_none(find, rows):
    free = find(*rows)
    assert same(find(*rows, room=free.nbytes), free)
    assert find(*rows, room=free.nbytes - 1) is None


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
    p, tau = state.most_neighbours, float(state.ratio)  # p looks at one value, each with the noise tau
    torch.testing.assert_close(state(inputs).novelty, torch.full((160,), tau / (p + tau)).double())
    assert len(state(inputs).mean.unique(dim=0)) == 1


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


@pytest.mark.parametrize("size", [1, 16, 80])
def test_a_group_left_out_is_really_left_out(cells, size):
    groups = torch.arange(160) // size
    said = groups_left_out(cells, groups, torch.arange(160))
    expected = witness_left_out(witness_tensors(cells), groups)
    assert sorted(expected) == list(range(160))
    for row, (cell, mean, novelty, _) in expected.items():
        torch.testing.assert_close(said.mean[row], torch.from_numpy(mean), rtol=1e-8, atol=1e-8)
        assert float(said.novelty[row]) == pytest.approx(novelty, rel=1e-7, abs=1e-9)
        variance = cells.level[cell] * (novelty + cells.ratio)
        torch.testing.assert_close(said.variance[row], variance, rtol=1e-7, atol=0)


def test_with_all_rows_in_one_group_nothing_is_said(cells):
    said = groups_left_out(cells, torch.zeros(160), torch.arange(160))
    assert bool((said.novelty == 1).all())
    assert bool((said.precision == 0).all())
    for number, (own, _) in enumerate(held(cells)):
        assert torch.equal(said.mean[own], cells.centre[number].expand(len(own), 2))


def test_only_rows_that_are_wanted_are_spoken_of(cells):
    groups, wanted = torch.arange(160) // 16, torch.arange(0, 160, 3)
    some, every = (groups_left_out(cells, groups, rows) for rows in (wanted, torch.arange(160)))
    torch.testing.assert_close(some.mean[wanted], every.mean[wanted], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(some.precision[wanted], every.precision[wanted], rtol=1e-10, atol=0)
    others = torch.arange(160)[torch.arange(160) % 3 != 0]
    assert bool((some.precision[others] == 0).all())
    assert bool((every.precision[others] > 0).any())


def test_rows_that_no_cell_holds_are_not_spoken_of(find, toy):
    inputs, targets = toy(400, seed=2)
    inputs[:300] = inputs[:1]
    state = find(inputs, targets, rows=30)
    mine = torch.zeros(400, dtype=torch.bool)
    mine[torch.cat([own for own, _ in held(state)])] = True
    assert 0 < int((~mine).sum()) < 400
    said = groups_left_out(state, torch.arange(400), torch.arange(400))
    assert bool((said.precision[~mine] == 0).all())
    assert bool((said.precision[mine] > 0).any())


# more rows


def updated(state, old, new, room=None, **setting):
    inputs, targets = (torch.cat(pair) for pair in zip(old, new, strict=True))
    with reporting(enabled=False) as report:
        context = FitContext(torch.device("cpu"), 0, Threads(2), report)
        return update_witness(state, Rows(inputs, targets), Witness(**setting), context, room)


def test_an_update_keeps_the_cells_and_hands_all_rows_to_them(find, toy):
    old, new = toy(300, seed=1), toy(40, seed=2)
    state = find(*old, rows=20)
    after = updated(state, old, new, rows=20)
    own = torch.cat([own for own, _ in held(after)])
    assert own.sort().values.tolist() == list(range(340))
    assert torch.equal(after.centroids, state.centroids)
    assert (float(after.length), float(after.ratio)) == (float(state.length), float(state.ratio))
    mean, *_ = witness_answer(witness_tensors(after), new[0])
    torch.testing.assert_close(after(new[0]).mean, mean, rtol=1e-8, atol=1e-8)
    level, _ = witness_level(witness_tensors(after))
    torch.testing.assert_close(after.level, level, rtol=1e-7, atol=0)


def test_an_update_without_new_rows_changes_nothing(find, rows, cells):
    none = tuple(value[:0] for value in rows)
    assert same(updated(cells, rows, none, rows=30), cells)


def test_new_rows_far_beyond_the_others_do_no_harm(find, toy):
    old, (inputs, targets) = toy(160, seed=1), toy(10, seed=2)
    after = updated(find(*old, rows=30), old, (1e200 * inputs, targets), rows=30)
    said = after(torch.cat([old[0], 1e200 * inputs]))
    for value in (after.points, after.level, said.mean, said.variance, said.precision):
        assert bool(torch.isfinite(value).all())


def test_an_update_stays_within_its_room(find, toy):
    old, new = toy(200, seed=1), toy(600, seed=2)
    for size in (30, 60):
        state = find(*old, rows=size)
        after = updated(state, old, new, room=state.nbytes, rows=size)
        assert 0.8 * state.nbytes < after.nbytes <= state.nbytes
        assert updated(state, old, new, rows=size).nbytes > state.nbytes
