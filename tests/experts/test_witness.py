"""The second opinion: what a fitted witness says of rows, against dense formulas and scikit-learn."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import how_much_it_counts, leave_out, local_process, stationary_gram
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from witness_reference import witness_answer

from trustgp import Witness
from trustgp.experts.posteriors import Sizes
from trustgp.experts.witness import FARTHEST, vectors_of
from trustgp.experts.witness_fit import FEWEST_ROWS, witness_applies
from trustgp.math.calibration import STEADY
from trustgp.state.expert_tensors import witness_tensors


@pytest.fixture(scope="module")
def rows(toy):
    return toy(160, seed=1)


@pytest.fixture(scope="module")
def cells(find, rows):
    """A witness of several cells."""
    state = find(*rows, rows=40)
    assert len(state.cells) >= 4
    return state


@pytest.fixture(scope="module")
def whole(find, rows):
    """A witness of one cell."""
    state = find(*rows)
    assert len(state.cells) == 1
    return state


def scaled(state, inputs):
    return (inputs - state.offset) / state.spread


def asked(toy, n=30):
    """Rows among the others, between them, and away from them."""
    inputs = toy(n, seed=5)[0]
    return torch.cat([inputs, 1.7 * inputs])


# against the old code, and a cell against the dense formulas


@pytest.mark.parametrize("sizes", [None, Sizes(witness=9), Sizes(half=True)])
def test_it_answers_as_the_code_that_shared_nothing_with_the_experts(cells, toy, sizes):
    state, at = cells if sizes is None else cells.shrink(sizes), asked(toy)
    said, expected = state(at), witness_answer(witness_tensors(state), at)
    for found, value in zip((said.mean, said.variance, said.novelty, said.precision), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-10, atol=1e-10)


def test_mean_and_novelty_are_the_dense_formulas(cells, rows, toy):
    at = asked(toy)
    said = cells(at)
    points = scaled(cells, at)
    nearest = (points[:, None] - cells.centroids).square().sum(dim=2).argmin(dim=1)
    assert len(nearest.unique()) == len(cells.cells)
    for number, cell in enumerate(cells.cells):
        mine = nearest == number
        held = cell.rows
        mean, unit, scale = local_process(
            scaled(cells, rows[0][held]),
            rows[1][held],
            points[mine],
            length=float(cells.length),
            tau=float(cell.tau),
        )
        torch.testing.assert_close(said.mean[mine], mean, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(said.novelty[mine], unit, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(cell.scale, scale, rtol=1e-9, atol=0)
        expected = cells.kappa[number] * scale * (unit[:, None] + cell.tau)
        torch.testing.assert_close(said.variance[mine], expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("output", [0, 1])
def test_one_cell_is_scikit_learns_gaussian_process(whole, rows, toy, output):
    (cell,) = whole.cells
    at = asked(toy)
    scale = float(cell.scale[output])
    kernel = ConstantKernel(scale, "fixed") * RBF(float(whole.length), "fixed")
    theirs = GaussianProcessRegressor(kernel, alpha=scale * float(cell.tau), optimizer=None)
    centre = rows[1][:, output].mean()
    theirs.fit(scaled(whole, rows[0]).numpy(), (rows[1][:, output] - centre).numpy())
    mean, std = theirs.predict(scaled(whole, at).numpy(), return_std=True)
    said = whole(at)
    # Both solve with K + tau I, of which the condition is up to 1e6 here.
    torch.testing.assert_close(said.mean[:, output] - centre, torch.from_numpy(mean), rtol=1e-8, atol=1e-9)
    found = (scale * said.novelty).sqrt()
    torch.testing.assert_close(found, torch.from_numpy(std), rtol=1e-7, atol=1e-7)


@pytest.fixture(scope="module")
def left_out(cells, rows):
    """Of each cell, errors [own, C] and variances over s [own] when its own rows are left out one by one."""
    found = []
    for cell in cells.cells:
        points, tau = scaled(cells, rows[0][cell.rows]), float(cell.tau)
        gram = stationary_gram(points, points, float(cells.length))
        lone = torch.arange(len(points)).clamp_max(int(cell.own))  # errors of borrowed rows are not needed
        both = leave_out(gram, rows[1][cell.rows] - cell.centre, lone, tau)
        found.append(tuple(value[: int(cell.own)] for value in both))
    return found


def test_kappa_is_the_mean_of_errors_when_each_own_row_is_left_out(cells, left_out):
    for cell, (errors, variances) in zip(cells.cells, left_out, strict=True):
        kappa = (errors.square() / (variances[:, None] * cell.scale)).mean(dim=0)
        torch.testing.assert_close(cell.kappa, kappa, rtol=1e-8, atol=0)


def test_kappas_are_pulled_towards_their_average(cells):
    own = torch.stack([cell.own for cell in cells.cells]).double()[:, None]
    logs = torch.stack([cell.kappa for cell in cells.cells]).log()
    average = (own * logs).sum(dim=0) / own.sum()
    expected = ((own * logs + STEADY * average) / (own + STEADY)).exp()
    torch.testing.assert_close(cells.kappa, expected, rtol=1e-12, atol=0)


def test_the_reach_is_the_novelty_of_most_left_out_rows(cells, left_out):
    pairs = zip(cells.cells, left_out, strict=True)
    ordered = torch.cat([variances - cell.tau for cell, (_, variances) in pairs]).sort().values
    assert float(cells.reach) == pytest.approx(float(ordered[int(0.95 * len(ordered))]), rel=1e-8)


# how much it counts


def test_precision_is_the_formula(cells, toy):
    said = cells(asked(toy))
    for i in range(len(said.mean)):
        for c in range(2):
            expected = how_much_it_counts(
                float(said.novelty[i]), float(cells.reach), float(said.variance[i, c])
            )
            assert float(said.precision[i, c]) == pytest.approx(expected, rel=1e-10)


@given(st.floats(0, 1), st.floats(1e-6, 1), st.floats(1e-9, 1e9))
def test_precision_never_exceeds_one_over_the_variance_and_falls_with_novelty(cells, nu, reach, variance):
    one = torch.tensor([nu, min(1.0, 1.1 * nu)], dtype=torch.float64)
    said = replace(
        cells(torch.zeros(2, 3, dtype=torch.float64)),
        variance=torch.full((2, 2), variance, dtype=torch.float64),
        novelty=one,
        reach=torch.tensor(reach, dtype=torch.float64),
    )
    assert bool((said.precision >= 0).all())
    assert bool((said.precision * variance <= 1 + 1e-12).all())
    assert bool((said.precision[1] <= said.precision[0] * (1 + 1e-12)).all())


@pytest.mark.parametrize("size", [1e3, 1e30, 1e300])
def test_far_away_it_is_silent(cells, size):
    said = cells(torch.full((4, 3), size, dtype=torch.float64) * torch.tensor([[1.0, -1.0, 1.0]]))
    assert bool((said.precision == 0).all())
    assert bool(torch.isfinite(said.mean).all())
    assert bool((said.novelty == 1).all())
    assert float(cells.scaled(torch.full((1, 3), size, dtype=torch.float64)).abs().max()) <= FARTHEST


def test_it_never_claims_more_than_the_floor(cells, rows):
    torch.testing.assert_close(cells.floor, 1e-8 * rows[1].var(dim=0), rtol=1e-12, atol=0)
    certain = replace(cells, floor=torch.full((2,), 1e3, dtype=torch.float64))
    assert bool((certain(rows[0]).variance == 1e3).all())


# rows, their order and their form


def test_a_row_is_answered_the_same_in_any_company_and_order(cells, toy):
    at = asked(toy)
    said = cells(at)
    order = torch.randperm(len(at), generator=torch.Generator().manual_seed(0))
    for index in (order, order[:7], order[:1]):
        again = cells(at[index])
        for name in ("mean", "variance", "novelty", "precision"):
            expected = getattr(said, name)[index]
            torch.testing.assert_close(getattr(again, name), expected, rtol=1e-9, atol=1e-12)


def test_many_rows_are_answered_chunk_by_chunk(cells, toy, monkeypatch):
    at = asked(toy)
    once = cells(at)
    monkeypatch.setattr("trustgp.experts.witness.chunks", lambda n, size: torch.arange(n).split(13))
    again = cells(at)
    torch.testing.assert_close(again.mean, once.mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(again.precision, once.precision, rtol=1e-9, atol=1e-12)


def test_inputs_of_another_width_are_refused_with_both_widths(cells):
    with pytest.raises(ValueError, match="inputs hold 2 numbers a row; the witness was fitted on 3"):
        cells(torch.zeros(4, 2, dtype=torch.float64))


def test_vectors_hold_every_number_of_a_row_whatever_the_order_of_a_dict():
    a, b, c = torch.ones(4, 2), torch.full((4,), 2.0), torch.full((4, 1), 3.0, dtype=torch.float64)
    found = vectors_of({"z": a, "a": (b, c)})
    assert found.dtype == torch.float64
    assert found[0].tolist() == [2.0, 3.0, 1.0, 1.0]
    assert torch.equal(vectors_of({"a": (b, c), "z": a}), found)


@pytest.mark.parametrize(
    ("inputs", "speaks"),
    [
        (torch.zeros(5, 3), True),
        (torch.zeros(5), True),
        (torch.zeros(5, 3, dtype=torch.float16), True),
        ((torch.zeros(5, 3), torch.zeros(5, 61)), True),
        ({"a": torch.zeros(5, 3), "b": torch.zeros(5, 62)}, False),
        (torch.zeros(5, 65), False),
        (torch.zeros(5, 2, 2), False),
        (torch.zeros(5, 3, dtype=torch.int64), False),
        (torch.zeros(5, 3, dtype=torch.bool), False),
        ((torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)), False),
    ],
)
def test_it_speaks_of_few_real_numbers_only(inputs, speaks):
    assert witness_applies(FEWEST_ROWS, inputs, Witness()) == speaks


def test_how_many_numbers_are_few_is_a_setting():
    assert witness_applies(FEWEST_ROWS, torch.zeros(5, 65), Witness(most_inputs=65))
    assert not witness_applies(FEWEST_ROWS, torch.zeros(5, 3), Witness(most_inputs=2))


@pytest.mark.parametrize("wrong", [{"rows": 1}, {"borrowed": -1}, {"most_inputs": 0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value}.*at least 2, 0 and 1"):
        Witness(**wrong)
