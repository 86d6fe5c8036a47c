"""The second opinion: what a fitted witness says of rows, against loops over rows and scikit-learn."""

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import how_much_it_counts
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from torch.utils._python_dispatch import TorchDispatchMode
from witness_reference import witness_answer, witness_level

from trustgp import Witness
from trustgp.experts.witness import FARTHEST, vectors_of
from trustgp.experts.witness_fit import FEWEST_ROWS, witness_applies
from trustgp.export.module.experts import GraphWitness
from trustgp.state.expert_tensors import witness_tensors

PARTS = ("mean", "variance", "novelty", "precision")


@pytest.fixture(scope="module")
def rows(toy):
    return toy(160, seed=1)


@pytest.fixture(scope="module")
def cells(find, rows):
    """A witness of several cells."""
    state = find(*rows, rows=40)
    assert len(state.sizes) >= 4
    return state


@pytest.fixture(scope="module")
def whole(find, rows):
    """A witness of one cell, all of whose rows are asked."""
    state = find(*rows, neighbours=160)
    assert state.sizes.tolist() == [160]
    return state


def asked(toy, n=30):
    """Rows among the others, between them, and away from them."""
    inputs = toy(n, seed=5)[0]
    return torch.cat([inputs, 1.7 * inputs])


def assert_says(said, expected, rtol=1e-8, atol=1e-9):
    for name, value in zip(PARTS, expected, strict=True):
        # both solve with G, of which the condition is up to 1e8 here
        torch.testing.assert_close(getattr(said, name), value, rtol=rtol, atol=atol, msg=name)


# against loops over rows, and a whole Gaussian process


@pytest.mark.parametrize("options", [{}, {"neighbours": 3}, {"neighbours": 60}, {"rows": 5, "borrowed": 0}])
def test_it_answers_as_a_loop_over_rows(find, rows, toy, options):
    state = find(*rows, **{"rows": 40, **options})
    at = asked(toy)
    assert len(state(at).mean) == 60
    assert_says(state(at), witness_answer(witness_tensors(state), at))


def test_a_cell_with_fewer_rows_than_are_asked_answers_from_those(cells, toy):
    """Also where other cells, which are asked at the same time, have more."""
    few = replace(cells, neighbours=cells.sizes.double().median().long())
    assert int(cells.sizes.min()) < int(few.neighbours) < int(cells.sizes.max())
    assert_says(few(asked(toy)), witness_answer(witness_tensors(few), asked(toy)))


@pytest.mark.parametrize("output", [0, 1])
def test_a_cell_that_is_asked_whole_is_scikit_learns_gaussian_process(whole, rows, toy, output):
    theirs = GaussianProcessRegressor(
        RBF(float(whole.length), "fixed"), alpha=float(whole.ratio), optimizer=None
    )
    at, centre = asked(toy), rows[1][:, output].mean()
    theirs.fit(whole.points.double().numpy(), (rows[1][:, output] - centre).numpy())
    mean, std = theirs.predict(whole.scaled(at).numpy(), return_std=True)
    said = whole(at)
    torch.testing.assert_close(said.mean[:, output] - centre, torch.from_numpy(mean), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(said.novelty.sqrt(), torch.from_numpy(std), rtol=1e-6, atol=1e-6)


def test_level_and_reach_are_those_of_rows_that_are_left_out(cells):
    level, novelties = witness_level(witness_tensors(cells))
    torch.testing.assert_close(cells.level, level, rtol=1e-7, atol=0)
    assert float(cells.reach) == pytest.approx(novelties[int(0.95 * len(novelties))], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_in_float32_cost_next_to_nothing(find, rows, toy, dtype):
    state = find(*(value.to(dtype) for value in rows), rows=40)
    assert state.points.dtype == torch.float32
    assert state.targets.dtype == dtype
    exact = witness_tensors(state)
    exact["points"] = state.scaled(rows[0].to(dtype))[state.rows]
    exact["targets"] = (rows[1].to(dtype).double())[state.rows] - state.centre.repeat_interleave(
        state.sizes, dim=0
    )
    at = toy(30, seed=5)[0].to(dtype)
    said, expected = state(at), witness_answer(exact, at)
    spread = float(rows[1].std())
    torch.testing.assert_close(said.mean, expected[0], rtol=0, atol=1e-5 * spread)
    torch.testing.assert_close(said.variance, expected[1], rtol=1e-3, atol=0)


@pytest.mark.parametrize("options", [{}, {"neighbours": 3}, {"neighbours": 60}])
def test_the_graph_of_plain_operations_says_the_same(find, rows, toy, options):
    state = find(*rows, **{"rows": 40, **options})
    said = state(asked(toy))
    assert_says(GraphWitness(state)(asked(toy)), [getattr(said, name) for name in PARTS], rtol=1e-7)


def categories(n, seed):
    """Rows of two columns of categories, one of them in ones and zeros: many lie in the same place."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.nn.functional.one_hot(torch.randint(4, (n,), generator=generator), 4).double()
    inputs = torch.cat([kinds, torch.randint(3, (n, 1), generator=generator)], dim=1)
    return inputs, inputs[:, :2].sum(dim=1, keepdim=True) + torch.randn(n, 1, generator=generator).double()


def test_of_rows_as_far_away_as_others_the_first_are_asked_by_every_runtime(find):
    state = find(*categories(500, seed=0), rows=120)
    at = categories(40, seed=1)[0]
    said = state(at)
    assert_says(GraphWitness(state)(at), [getattr(said, name) for name in PARTS])
    assert_says(said, witness_answer(witness_tensors(state), at), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_in_half_precision_are_answered_as_the_same_numbers_in_double(find, rows, toy, dtype):
    half = [value.to(dtype) for value in rows]
    state, exact = find(*half, rows=40), find(*(value.double() for value in half), rows=40)
    at = toy(30, seed=5)[0].to(dtype)
    said, expected = state(at), exact(at.double())
    assert all(value.dtype == torch.float64 for value in (said.mean, said.variance, said.precision))
    spread = float(rows[1].std())
    torch.testing.assert_close(said.mean, expected.mean, rtol=0, atol=1e-5 * spread)
    torch.testing.assert_close(said.variance, expected.variance, rtol=1e-3, atol=0)


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
    for floor, values in zip(cells.floor.tolist(), rows[1].T.tolist(), strict=True):
        ordered, variance = sorted(values), statistics.variance(values)
        step = min(b - a for a, b in pairwise(ordered) if b - a > 1e-6 * variance**0.5)
        assert floor == pytest.approx(max(1e-8 * variance, step**2 / 12), rel=1e-10)
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


def test_many_rows_are_answered_lot_by_lot(cells, toy, monkeypatch):
    once = cells(asked(toy))
    monkeypatch.setattr("trustgp.experts.witness.AT_ONCE", 2**16)
    assert_says(cells(asked(toy)), [getattr(once, name) for name in PARTS])


class Calls(TorchDispatchMode):
    """Counts the operations that torch is asked for."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("size", [40, 750])
def test_one_row_takes_few_operations_however_many_cells_there_are(find, rows, size):
    state, one = find(*rows, rows=size), rows[0][:1]
    state(one)  # what is looked up once
    with Calls() as calls:
        state(one)
    assert calls.count <= 40


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


@pytest.mark.parametrize("wrong", [{"rows": 1}, {"borrowed": -1}, {"neighbours": 0}, {"most_inputs": 0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value}.*at least 2, 0, 1 and 1"):
        Witness(**wrong)
