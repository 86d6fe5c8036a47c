import random

import numpy as np
import pytest
import torch

from trustgp import JacobianRows, Threads


@pytest.fixture
def with_threads():
    """Run something with a number of torch threads, and put the user's number back."""
    before = torch.get_num_threads()

    def run(count, function):
        torch.set_num_threads(count)
        try:
            return function()
        finally:
            torch.set_num_threads(before)

    yield run
    torch.set_num_threads(before)


OPTIONS = [{}, {"outputs": "pseudo"}, {"tangents": JacobianRows(keep_per_expert=12)}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_seed_gives_the_same_model(fit_case, assert_same_state, options):
    assert_same_state(fit_case(seed=5, **options), fit_case(seed=5, **options))


def test_another_seed_gives_another_gate(fit_case, case, toy):
    inputs, targets = toy(900, seed=3)  # more rows than the gate's subset, so that the seed chooses
    one, other = (fit_case(train=(inputs, targets), seed=seed, witness=None) for seed in (0, 1))
    assert not torch.equal(one.mixtures[0].gate.centroids, other.mixtures[0].gate.centroids)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_number_of_workers_does_not_change_the_model(fit_case, assert_same_state, options):
    one, two = (fit_case(executor=Threads(count), **options) for count in (1, 2))
    assert_same_state(one, two)


@pytest.mark.parametrize("held", ["nothing", "groups", "validation"])
def test_the_number_of_torch_threads_does_not_change_the_model(
    fit_case, toy, with_threads, assert_same_state, held
):
    options = {
        "nothing": {},
        "groups": {"groups": torch.arange(160) // 20},
        "validation": {"validation": toy(300, seed=4)},
    }[held]
    one, two = (with_threads(count, lambda: fit_case(**options)) for count in (1, 2))
    assert_same_state(one, two)


@pytest.mark.parametrize("count", [1, 2])
def test_the_users_thread_count_is_left_alone(fit_case, with_threads, count):
    def run():
        fit_case().predict(torch.zeros(2, 3, dtype=torch.float64))
        return torch.get_num_threads()

    assert with_threads(count, run) == count


def test_random_states_and_the_default_dtype_are_left_alone(fit_case, toy):
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    dtype, gradient = torch.get_default_dtype(), torch.is_grad_enabled()
    model = fit_case(outputs="pseudo", validation=toy(30, seed=1))
    model.predict(toy(5, seed=2)[0])
    model.update(toy(5, seed=2), progress=False)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]
    assert torch.get_default_dtype() == dtype
    assert torch.is_grad_enabled() == gradient


def test_the_users_random_state_and_default_dtype_do_not_change_the_model(
    fit_case, fitted, assert_same_state
):
    torch.manual_seed(99)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        model = fit_case()
    finally:
        torch.set_default_dtype(before)
    assert_same_state(model, fitted)


def test_a_fit_under_no_grad_is_the_same(fit_case, fitted, assert_same_state):
    with torch.no_grad():
        assert_same_state(fit_case(), fitted)
