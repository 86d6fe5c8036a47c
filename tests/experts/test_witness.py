"""Predictions of a fitted witness, against loops over rows and scikit-learn."""

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from shared_fixtures import toy_rows
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from witness_reference import witness_answer, witness_left_out, witness_level, witness_opinion

from trustgp import Witness
from trustgp.experts import witness
from trustgp.experts.witness import MAX_SCALED_INPUT, vectors_of
from trustgp.experts.witness_fit import MIN_ROWS, witness_applies
from trustgp.export.module.experts import GraphWitness
from trustgp.state.expert_tensors import witness_tensors

ROWS, NEAR = toy_rows(160, seed=1), toy_rows(30, seed=5)[0]
NEW = torch.cat([NEAR, 1.7 * NEAR])  # among the training rows, between them, and away from them
PARTS = ("mean", "variance", "novelty", "precision", "distance", "noise")


@pytest.fixture(scope="module")
def cells(find):
    """A witness of several cells."""
    state = find(*ROWS, rows=40)
    assert len(state.sizes) >= 4
    return state


def assert_predicts(predicted, expected, rtol=1e-8, atol=1e-9):
    values = expected if isinstance(expected, tuple) else [getattr(expected, name) for name in PARTS]
    for name, value in zip(PARTS, values, strict=True):
        # both solve with G, whose condition number is up to 1e8 here
        close = 1e-6 if name == "distance" else atol  # the order of ties is added to it
        torch.testing.assert_close(getattr(predicted, name), value, rtol=rtol, atol=close, msg=name)


@pytest.mark.parametrize("options", [{}, {"neighbours": 3}, {"neighbours": 60}, {"rows": 5, "borrowed": 0}])
def test_predictions_and_the_exported_graph_equal_a_loop_over_rows(find, options):
    state = find(*ROWS, **{"rows": 40, **options})
    assert_predicts(state(NEW), witness_opinion(witness_tensors(state), NEW))
    if "borrowed" not in options:
        assert_predicts(GraphWitness.of(state, NEW)(NEW), state(NEW), rtol=1e-7)


def test_products_give_the_kernel_that_differences_give_and_serve_near_rows_only(find, monkeypatch):
    state = replace(find(*ROWS, rows=40, neighbours=6), ratio=torch.tensor(1e-3, dtype=torch.float64))
    assert state.full
    assert 10.0 < float(state.near_radius / state.length) < 1e6
    monkeypatch.setattr(witness, "SOLVED_NUMBERS", 200)  # several lots
    by_products = state(NEW)
    vars(state)["near_radius"] = 0.0
    assert_predicts(by_products, state(NEW), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("options", [{"neighbours": 6}, {"neighbours": 60}, {"rows": 5, "borrowed": 0}])
@pytest.mark.parametrize("compact", [True, False])
def test_where_no_value_is_read_and_in_the_exported_graph_predictions_are_the_same(
    find, monkeypatch, options, compact
):
    ratio = torch.tensor(1e-3, dtype=torch.float64)
    state = replace(find(*ROWS, **{"rows": 40, **options}), ratio=ratio)
    assert state.compact
    at = torch.cat([NEW, 1e4 * NEW[:3]])  # the last have no near rows
    expected = state(at)
    monkeypatch.setattr(witness, "readable", lambda _: False)
    monkeypatch.setattr(witness, "MIN_PRODUCTS", 0)
    for one in (state, GraphWitness.of(state, at)):
        vars(one)["compact"] = compact
        assert_predicts(one(at), expected, rtol=1e-7)


def test_distances_from_products_differ_by_rounding_only():
    first, second = (torch.randn(3, n, 4, dtype=torch.float64) for n in (5, 7))
    second[:, 0] = first[:, 0]
    expected = torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
    torch.testing.assert_close(witness._by_products(first, second), expected, rtol=1e-12, atol=1e-7)


def test_one_cell_with_all_rows_as_neighbours_is_scikit_learns_gaussian_process(find):
    whole = find(*ROWS, neighbours=160)
    assert whole.sizes.tolist() == [160]
    kernel = RBF(float(whole.length), "fixed")
    theirs = GaussianProcessRegressor(kernel, alpha=float(whole.ratio), optimizer=None)
    centre = ROWS[1].mean(dim=0)
    theirs.fit(whole.points.double().numpy(), (ROWS[1] - centre).numpy())
    mean, std = map(torch.from_numpy, theirs.predict(whole.scaled(NEW).numpy(), return_std=True))
    torch.testing.assert_close(whole(NEW).mean - centre, mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(whole(NEW).novelty.sqrt(), std[:, 0], rtol=1e-6, atol=1e-6)


def test_level_reach_and_errors_are_those_of_left_out_rows(cells):
    table = witness_tensors(cells)
    left_out = witness_left_out(table, torch.arange(160)).items()
    squared = {row: (y - mean) ** 2 for row, (_, mean, _, y) in left_out}
    expected = torch.tensor([squared[row].tolist() for row in cells.rows.tolist()], dtype=torch.float64)
    torch.testing.assert_close(cells.errors, expected, rtol=1e-6, atol=1e-12)  # also of borrowed rows
    level, novelties = witness_level(table)
    torch.testing.assert_close(cells.level, level, rtol=1e-7, atol=0)
    assert float(cells.reach) == pytest.approx(novelties[int(0.95 * len(novelties))], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rows_in_any_precision_are_predicted_as_in_double(find, dtype):
    x, y, at = (value.to(dtype) for value in (*ROWS, NEW[:30]))
    state = find(x, y, rows=40)
    assert state.points.dtype == torch.float32
    if dtype.itemsize >= 4:
        assert state.targets.dtype == dtype
        exact = witness_tensors(state) | {"points": state.scaled(x)[state.rows]}
        exact["targets"] = y.double()[state.rows] - state.centre.repeat_interleave(state.sizes, dim=0)
        expected = witness_answer(exact, at)
    else:
        double = find(x.double(), y.double(), rows=40)(at.double())
        expected = double.mean, double.variance
    predicted = state(at)
    assert all(getattr(predicted, name).dtype == torch.float64 for name in PARTS)
    torch.testing.assert_close(predicted.mean, expected[0], rtol=0, atol=1e-5 * float(ROWS[1].std()))
    torch.testing.assert_close(predicted.variance, expected[1], rtol=1e-3, atol=0)


@pytest.mark.parametrize("unit", [1e-25, 1e22])
def test_squared_errors_of_float32_targets_neither_over_nor_underflow(find, unit):
    one, other = (find(ROWS[0].float(), (u * ROWS[1]).float(), rows=40)(NEW) for u in (1.0, unit))
    torch.testing.assert_close(other.noise / unit**2, one.noise, rtol=1e-3, atol=0)


def categories(n, seed):
    """Two columns of categories, one of them one-hot: many rows have equal inputs."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.nn.functional.one_hot(torch.randint(4, (n,), generator=generator), 4).double()
    inputs = torch.cat([kinds, torch.randint(3, (n, 1), generator=generator)], dim=1)
    return inputs, inputs[:, :2].sum(dim=1, keepdim=True) + torch.randn(n, 1, generator=generator).double()


def test_of_equally_distant_rows_every_runtime_takes_the_first(find, monkeypatch):
    state, at = find(*categories(500, seed=0), rows=120), categories(40, seed=1)[0]
    expected = state(at)
    assert_predicts(expected, witness_opinion(witness_tensors(state), at), rtol=1e-6, atol=1e-7)
    monkeypatch.setattr(witness, "readable", lambda _: False)  # as in an exported graph
    assert_predicts(GraphWitness.of(state, at)(at), expected)


@pytest.mark.parametrize("size", [1e3, 1e30, 1e300])
def test_far_away_the_precision_is_zero(cells, size):
    predicted = cells(torch.full((4, 3), size, dtype=torch.float64) * torch.tensor([[1.0, -1.0, 1.0]]))
    assert bool((predicted.precision == 0).all())
    assert bool(torch.isfinite(predicted.mean).all())
    assert bool((predicted.novelty == 1).all())
    assert float(cells.scaled(torch.full((1, 3), size, dtype=torch.float64)).abs().max()) <= MAX_SCALED_INPUT


def test_its_opinion_is_the_expected_error_and_logarithms_that_are_finite(cells):
    predicted, outputs = cells(NEW), torch.ones(len(NEW), 2, dtype=torch.float64)
    opinion = predicted.opinion(outputs)
    assert torch.equal(opinion["witness_mean"], predicted.mean - 1.0)
    assert torch.equal(opinion["witness_precision"], predicted.precision)
    torch.testing.assert_close(opinion["log_noise"].exp(), predicted.noise, rtol=1e-10, atol=0)
    expected = torch.stack([predicted.novelty, predicted.distance], dim=1).clamp_min(1e-12)
    torch.testing.assert_close(opinion["nearest"].exp(), expected, rtol=1e-10, atol=0)
    zero = replace(predicted, noise=0 * predicted.noise, distance=0 * predicted.distance)
    assert all(bool(torch.isfinite(value).all()) for value in zero.opinion(outputs).values())


def test_the_variance_never_falls_below_the_floor(cells):
    for floor, values in zip(cells.floor.tolist(), ROWS[1].T.tolist(), strict=True):
        ordered, variance = sorted(values), statistics.variance(values)
        step = min(b - a for a, b in pairwise(ordered) if b - a > 1e-6 * variance**0.5)
        assert floor == pytest.approx(max(1e-8 * variance, step**2 / 12), rel=1e-10)
    high = replace(cells, floor=torch.full((2,), 1e3, dtype=torch.float64))
    assert bool((high(ROWS[0]).variance == 1e3).all())


def test_predictions_do_not_depend_on_other_rows_their_order_or_chunks(cells, monkeypatch):
    whole = cells(NEW)
    order = torch.randperm(len(NEW), generator=torch.Generator().manual_seed(0))
    for index in (order, order[:7], order[:1]):
        expected = tuple(getattr(whole, name)[index] for name in PARTS)
        assert_predicts(cells(NEW[index]), expected, rtol=1e-9, atol=1e-12)
    monkeypatch.setattr("trustgp.experts.witness.CHUNK_BYTES", 2**16)
    assert_predicts(cells(NEW), whole)


def test_vectors_hold_every_number_of_a_row_whatever_the_order_of_a_dict():
    a, b, c = torch.ones(4, 2), torch.full((4,), 2.0), torch.full((4, 1), 3.0, dtype=torch.float64)
    vectors = vectors_of({"z": a, "a": (b, c)})
    assert vectors.dtype == torch.float64
    assert vectors[0].tolist() == [2.0, 3.0, 1.0, 1.0]
    assert torch.equal(vectors_of({"a": (b, c), "z": a}), vectors)


@pytest.mark.parametrize(
    ("inputs", "applies"),
    [
        (torch.zeros(5, 3), True),
        (torch.zeros(5), True),
        (torch.zeros(5, 3, dtype=torch.float16), True),
        ((torch.zeros(5, 3), torch.zeros(5, 61)), True),
        ({"a": torch.zeros(5, 3), "b": torch.zeros(5, 62)}, False),
        (torch.zeros(5, 2, 2), False),
        (torch.zeros(5, 3, dtype=torch.bool), False),
        ((torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)), False),
    ],
)
def test_a_witness_takes_up_to_64_real_numbers_a_row(inputs, applies):
    assert witness_applies(MIN_ROWS, inputs, Witness()) == applies
    assert witness_applies(MIN_ROWS, torch.zeros(5, 65), Witness(most_inputs=65))
    assert not witness_applies(MIN_ROWS, torch.zeros(5, 3), Witness(most_inputs=2))


@pytest.mark.parametrize("wrong", [{"rows": 1}, {"borrowed": -1}, {"neighbours": 0}, {"most_inputs": 0}])
def test_settings_below_their_minimum_are_refused(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value}.*at least 2, 0, 1 and 1"):
        Witness(**wrong)
