"""The fit of a witness: cells, lengths, noise, invariances, degenerate rows, groups left out, updates."""

from dataclasses import replace

import pytest
import torch
from draws import Draws
from shared_fixtures import toy_rows
from witness_reference import witness_answer, witness_left_out, witness_level, witness_nearby

from trustgp import Rows, Threads, Witness
from trustgp.executors import FitContext
from trustgp.executors.progress import reporting
from trustgp.experts.witness_fit import MIN_ROWS, groups_left_out, update_witness
from trustgp.state.expert_tensors import witness_tensors

ROWS = toy_rows(160, seed=1)


@pytest.fixture(scope="module")
def cells(find):
    return find(*ROWS, rows=30)


def same(one, other) -> bool:
    first, second = witness_tensors(one), witness_tensors(other)
    return all(torch.equal(first[name], second[name]) for name in first)


def rows_of(state):
    """The rows of each cell: its own, and those it borrowed."""
    parts = state.rows.split(state.sizes.tolist())
    return [(part[:own], part[own:]) for part, own in zip(parts, state.own.tolist(), strict=True)]


def own_rows(state):
    return torch.cat([own for own, _ in rows_of(state)])


def test_every_row_belongs_to_the_cell_of_its_nearest_centroid(cells):
    assert own_rows(cells).sort().values.tolist() == list(range(160))
    points = cells.scaled(ROWS[0])
    nearest = (points[:, None] - cells.centroids).square().sum(dim=2).argmin(dim=1)
    for number, (own, borrowed) in enumerate(rows_of(cells)):
        assert bool((nearest[own] == number).all())
        mean = ROWS[1][torch.cat([own, borrowed])].mean(dim=0)
        torch.testing.assert_close(cells.centre[number], mean, rtol=1e-12, atol=1e-12)
    assert torch.equal(cells.points, points[cells.rows].float())
    targets = cells.targets + cells.centre.repeat_interleave(cells.sizes, dim=0)
    torch.testing.assert_close(targets, ROWS[1][cells.rows], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("borrowed", [0, 2])
def test_borrowed_rows_are_those_nearest_to_any_own_row(find, borrowed):
    state = find(*ROWS, rows=60, borrowed=borrowed)
    assert 1 < len(state.sizes) <= 8  # so that all others are candidates
    points = state.scaled(ROWS[0])
    for own, lent in rows_of(state):
        others = [i for i in range(160) if i not in own.tolist()]
        distance = {i: float((points[own] - points[i]).norm(dim=1).min()) for i in others}
        count = borrowed and max(state.most_neighbours, borrowed * len(own))
        assert set(lent.tolist()) == set(sorted(others, key=distance.__getitem__)[:count])
        assert len(lent) == min(count, len(others))


def test_no_cell_has_more_than_twice_its_size_nor_a_row_twice(find, toy, monkeypatch):
    inputs, targets = toy(400, seed=2)
    inputs[:300] = 0.01 * inputs[:300]  # k-means cannot balance a cluster this dense
    for own, borrowed in rows_of(find(inputs, targets, rows=30)):
        assert 0 < len(own) <= 60
        assert len(torch.cat([own, borrowed]).unique()) == len(own) + len(borrowed)
    monkeypatch.setattr("trustgp.experts.witness_fit.MAX_SPLIT_ROWS", 64)  # of many rows, a sample decides
    state = find(*toy(900, seed=2), rows=60)
    assert len(own_rows(state).unique()) == len(own_rows(state)) > 850
    assert int(state.own.max()) <= 120
    assert 15 <= len(state.sizes) <= 30


def test_identical_inputs_belong_to_one_cell(find):
    inputs, targets = ROWS
    state = find(inputs.repeat(2, 1), torch.cat([targets, targets + 1]), rows=30)
    for own, _ in rows_of(state):
        assert torch.equal((own % 160).sort().values[::2], (own % 160).sort().values[1::2])


def test_there_is_none_for_few_rows_integers_overflow_or_too_little_room(find):
    inputs, targets = ROWS
    assert find(inputs[: MIN_ROWS - 1], targets[: MIN_ROWS - 1]) is None
    assert len(find(inputs[:MIN_ROWS], targets[:MIN_ROWS]).sizes) == 1
    assert find((10 * inputs).long(), targets) is None
    assert find(inputs, targets, most_inputs=2) is None
    for size, other in ((1e200, 1.0), (1.0, 1e200), (1e308, 1e308)):
        assert find(size * inputs, other * targets) is None
    free = find(*ROWS)
    assert same(find(*ROWS, room=free.nbytes), free)
    assert find(*ROWS, room=free.nbytes - 1) is None


def test_the_seed_decides_and_neither_workers_nor_threads_change_a_bit(find, cells):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(before, 2))
        assert same(find(*ROWS, rows=30, workers=1), cells)
    finally:
        torch.set_num_threads(before)
    assert not torch.equal(find(*ROWS, rows=30, seed=1).centroids, cells.centroids)


def test_units_of_inputs_do_not_matter_and_those_of_targets_are_those_of_predictions(find, cells):
    (inputs, targets), unit = ROWS, 1e6
    one, two = cells(inputs), find(unit * inputs + 3 * unit, targets, rows=30)(unit * inputs + 3 * unit)
    for name in ("mean", "variance", "novelty", "precision"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=1e-6, atol=1e-9)
    units = torch.tensor([100 * unit, 0.01 / unit], dtype=torch.float64)  # far apart, too
    two = find(inputs, units * targets, rows=30)(inputs)
    torch.testing.assert_close(units * one.mean, two.mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(units.square() * one.variance, two.variance, rtol=1e-6, atol=0)
    torch.testing.assert_close(one.novelty, two.novelty, rtol=1e-6, atol=1e-9)
    two = find(inputs, targets + 1000.0, rows=30)(inputs)
    torch.testing.assert_close(one.mean + 1000.0, two.mean, rtol=1e-8, atol=0)
    torch.testing.assert_close(one.precision, two.precision, rtol=1e-6, atol=0)


@pytest.mark.parametrize("level", [0.0, 1e6])
def test_a_constant_input_is_novel_when_it_changes_and_a_constant_output_is_not_predicted(find, level):
    inputs, targets = ROWS
    wide = torch.cat([inputs, torch.full((160, 1), level).double()], dim=1)
    state = find(wide, targets, rows=80)
    plain = find(inputs, targets, rows=80)(inputs)
    torch.testing.assert_close(state(wide).mean, plain.mean, rtol=1e-8, atol=1e-10)
    wide[:, 3] += 0.1 * max(level, 1.0)
    assert bool((state(wide).precision == 0).all())
    constant = torch.stack([targets[:, 0], torch.full((160,), level).double()], dim=1)
    precision = find(inputs, constant)(inputs).precision
    assert bool((precision[:, 0] > 1).all())
    assert bool((precision[:, 1] < 1e-100).all())


def duplicates(inputs, targets, times, noise):
    extra = torch.randn(160 * times, 2, generator=torch.Generator().manual_seed(0)).double()
    return inputs.repeat(times, 1), targets.repeat(times, 1) + noise * extra


DEGENERATE = {
    "all inputs equal": lambda x, y: (x[:1].expand(160, 3).clone(), y),
    "most inputs equal": lambda x, y: tuple(torch.cat([v[:1].expand(600, -1), v]) for v in (x, y)),
    "duplicates": lambda x, y: duplicates(x, y, 5, 0.0),
    "duplicate inputs": lambda x, y: duplicates(x, y, 2, 1.0),
    "constant targets": lambda x, y: (x, torch.ones_like(y)),
    "one input, one output": lambda x, y: (x[:, :1], y[:, :1]),
    "inputs without columns": lambda x, y: (x[:, 0], y[:, :1]),
    **{f"targets x {size}": lambda x, y, size=size: (x, size * y) for size in (1e-160, 1e150)},
    **{f"an outlier at {size}": lambda x, y, size=size: (spoilt(x, size), y) for size in (1e3, 1e12)},
}


def spoilt(inputs, size):
    inputs = inputs.clone()
    inputs[0] = size
    return inputs


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_rows_give_finite_predictions(find, name):
    inputs, targets = DEGENERATE[name](*ROWS)
    state = find(inputs, targets, rows=100)
    for at in (inputs, inputs + 0.3 * inputs.abs().max(), 10 * inputs):
        predicted = state(at)
        assert bool(torch.isfinite(predicted.mean).all())
        assert bool((predicted.variance > 0).all())
        assert bool(((predicted.novelty >= 0) & (predicted.novelty <= 1)).all())
        assert bool(torch.isfinite(predicted.precision).all())
    assert all(bool(torch.isfinite(value.double()).all()) for value in witness_tensors(state).values())
    if name == "all inputs equal":
        p, tau = state.most_neighbours, float(state.ratio)  # p noisy observations of one value
        torch.testing.assert_close(state(inputs).novelty, torch.full((160,), tau / (p + tau)).double())
        assert len(state(inputs).mean.unique(dim=0)) == 1
    if "outlier" in name:
        error = (state(inputs).mean - targets)[1:].square().mean()
        plain = (find(*ROWS, rows=100)(ROWS[0]).mean - targets)[1:].square().mean()
        assert float(error) < 2 * float(plain)


@pytest.mark.parametrize("size", [1, 16])
def test_a_group_left_out_is_really_left_out(cells, size):
    groups = torch.arange(160) // size
    predicted = groups_left_out(cells, groups, torch.arange(160))
    expected = witness_left_out(witness_tensors(cells), groups)
    assert sorted(expected) == list(range(160))
    for row, (cell, mean, novelty, _) in expected.items():
        torch.testing.assert_close(predicted.mean[row], torch.from_numpy(mean), rtol=1e-8, atol=1e-8)
        assert float(predicted.novelty[row]) == pytest.approx(novelty, rel=1e-7, abs=1e-9)
        variance = cells.level[cell] * (novelty + cells.ratio)
        torch.testing.assert_close(predicted.variance[row], variance, rtol=1e-7, atol=0)
    distance, noise = witness_nearby(witness_tensors(cells), ROWS[0], groups)
    torch.testing.assert_close(predicted.distance, distance, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(predicted.noise, noise, rtol=1e-8, atol=0)
    wanted, others = torch.arange(0, 160, 3), torch.arange(160)[torch.arange(160) % 3 != 0]
    subset = groups_left_out(cells, groups, wanted)
    torch.testing.assert_close(subset.mean[wanted], predicted.mean[wanted], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(subset.precision[wanted], predicted.precision[wanted], rtol=1e-10, atol=0)
    assert bool((subset.precision[others] == 0).all())
    assert bool((predicted.precision[others] > 0).any())


def test_without_rows_of_other_groups_or_of_its_own_cell_the_precision_is_zero(cells, find, toy):
    predicted = groups_left_out(cells, torch.zeros(160), torch.arange(160))
    assert bool((predicted.novelty == 1).all())
    assert bool((predicted.precision == 0).all())
    torch.testing.assert_close(predicted.noise, cells.errors.mean(dim=0).expand(160, 2), rtol=1e-10, atol=0)
    for number, (own, _) in enumerate(rows_of(cells)):
        assert torch.equal(predicted.mean[own], cells.centre[number].expand(len(own), 2))
    inputs, targets = toy(400, seed=2)
    inputs[:300] = inputs[:1]
    state = find(inputs, targets, rows=30)
    owned = torch.zeros(400, dtype=torch.bool)
    owned[own_rows(state)] = True
    assert 0 < int((~owned).sum()) < 400
    precision = groups_left_out(state, torch.arange(400), torch.arange(400)).precision
    assert bool((precision[~owned] == 0).all())
    assert bool((precision[owned] > 0).any())


def updated(state, *parts, room=None, **setting):
    """The witness with these rows in its cells."""
    inputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
    with reporting(enabled=False) as report:
        context = FitContext(torch.device("cpu"), 0, Threads(2), report)
        return update_witness(state, Rows(inputs, targets), Witness(**setting), context, room)


def test_an_update_keeps_the_cells_and_gives_them_all_rows(find, toy, cells):
    old, new = toy(300, seed=1), toy(40, seed=2)
    state = find(*old, rows=20)
    after = updated(state, old, new, rows=20)
    assert own_rows(after).sort().values.tolist() == list(range(340))
    assert torch.equal(after.centroids, state.centroids)
    assert (float(after.length), float(after.ratio)) == (float(state.length), float(state.ratio))
    mean, *_ = witness_answer(witness_tensors(after), new[0])
    torch.testing.assert_close(after(new[0]).mean, mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(after.level, witness_level(witness_tensors(after))[0], rtol=1e-7, atol=0)
    assert same(updated(cells, ROWS, tuple(value[:0] for value in ROWS), rows=30), cells)
    far = 1e200 * toy(10, seed=2)[0]
    after = updated(cells, ROWS, (far, toy(10, seed=2)[1]), rows=30)
    predicted = after(torch.cat([ROWS[0], far]))
    for value in (after.points, after.level, predicted.mean, predicted.variance, predicted.precision):
        assert bool(torch.isfinite(value).all())


def test_an_update_stays_within_its_room(find, toy):
    old, new = toy(200, seed=1), toy(600, seed=2)
    state = find(*old, rows=30)
    after = updated(state, old, new, room=state.nbytes, rows=30)
    assert 0.8 * state.nbytes < after.nbytes <= state.nbytes
    assert updated(state, old, new, rows=30).nbytes > state.nbytes


def drawn(n, noise, seed=0, columns=6):
    """A smooth function of the first two columns of several, with noise."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(n, columns, generator=generator, dtype=torch.float64) * 4 - 2
    smooth = torch.sin(1.5 * inputs[:, 0]) + 0.5 * inputs[:, 1].square()
    return inputs, (smooth + noise * torch.randn(n, generator=generator))[:, None], smooth[:, None]


def off(state, seed=9, **options):
    inputs, _, smooth = drawn(400, 0.0, seed=seed, **options)
    return float((state(inputs).mean - smooth).square().mean())


def test_columns_that_do_not_matter_are_looked_over(find):
    inputs, targets, _ = drawn(600, 0.05)
    state = find(inputs, targets)
    units = (state.spread / inputs.std(dim=0)).tolist()
    assert min(units[2:]) > 3 * max(units[:2])
    plain = replace(state, spread=inputs.std(dim=0), centroids=torch.zeros(1, 6, dtype=torch.float64))
    assert off(state) < 0.3 * off(updated(plain, (inputs, targets)))


def test_one_length_is_kept_where_no_column_stands_out(find, toy):
    inputs, _ = toy(160, seed=1)
    noise = torch.randn(160, 1, generator=torch.Generator().manual_seed(3)).double()
    torch.testing.assert_close(find(inputs, noise).spread, inputs.std(dim=0), rtol=1e-12, atol=0)


def test_never_more_than_eight_times_the_neighbours_are_asked(find):
    inputs, targets, _ = drawn(1200, 0.5, columns=2)
    assert 2 < find(inputs, targets, neighbours=2).most_neighbours <= 16


def test_copies_of_rows_change_nothing(find, toy):
    inputs, targets = toy(160, seed=1)
    once, twice = find(inputs, targets, rows=40), find(inputs.repeat(2, 1), targets.repeat(2, 1), rows=40)
    assert int(twice.rows.max()) < 160
    torch.testing.assert_close(once.offset, twice.offset, rtol=1e-12, atol=1e-12)
    assert same(twice, once)
    assert same(updated(once, (inputs.repeat(2, 1), targets.repeat(2, 1))), once)


def test_equal_rows_are_no_copies_where_targets_take_few_values(find, generator):
    inputs = torch.randint(3, (400, 2), generator=generator).double()
    targets = (inputs.sum(dim=1) + torch.randint(2, (400,), generator=generator)).double()[:, None]
    assert len(find(inputs, targets).rows.unique()) == 400


def test_rounded_targets_are_known_no_finer_than_to_a_twelfth_of_the_squared_step(find, toy):
    (inputs, targets), unit = toy(300, seed=1), 0.3
    steps = unit * (4 * targets / unit).round()
    state = find(inputs, steps)
    torch.testing.assert_close(state.floor, torch.full((2,), unit**2 / 12).double(), rtol=1e-6, atol=0)
    assert bool((state(inputs).variance >= unit**2 / 12 * (1 - 1e-6)).all())


def test_where_nearly_all_targets_are_the_same_it_is_not_certain(find):
    draws = Draws()
    inputs, noise = draws.normal(3000, 4), draws.normal(3000)
    targets = ((inputs[:, 0] + inputs[:, 1] + 0.7 * noise) > 2.6).double()[:, None]
    predicted = find(inputs[:2000], targets[:2000])(inputs[2000:])
    assert float(((targets[2000:] - predicted.mean).square() / predicted.variance).mean()) < 2
    spread = torch.tensor(1 / 12).double().minimum(targets[:2000].var())
    assert float(predicted.variance.min()) == pytest.approx(float(spread), rel=1e-9)
