"""The same seed gives the same model, whatever the threads, random states and modes of the user."""

import random
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from fitted_zoo import names

from trustgp import Division, Threads


@contextmanager
def setting(name, value):
    """Another number of threads, or default dtype, of torch."""
    before = getattr(torch, f"get_{name}")()
    getattr(torch, f"set_{name}")(value)
    yield
    getattr(torch, f"set_{name}")(before)


@pytest.mark.parametrize("name", names("rows")[::2])
def test_the_same_seed_gives_the_same_model_with_any_number_of_workers(fitted_zoo, assert_same_state, name):
    member = fitted_zoo[name]
    assert_same_state(member.fit(), member.model)
    assert_same_state(member.fit(executor=Threads(1)), member.model)


def test_another_seed_gives_another_gate(fit_case):
    division = Division(subset=64)  # fewer than there are rows, so that the seed chooses
    one, other = (fit_case(division=division, seed=seed, witness=None) for seed in (0, 1))
    assert not torch.equal(one.mixtures[0].gate.centroids, other.mixtures[0].gate.centroids)


def test_the_number_of_torch_threads_does_not_change_the_model(fit_case, toy, state_of):
    """The calibration to rounding: some BLAS libraries add up the passes over validation rows in the order of
    their threads."""
    options, models = {"groups": torch.arange(160) // 20, "validation": toy(300, seed=4)}, []
    for count in (1, 2):
        with setting("num_threads", count):
            models.append(fit_case(**options))
            models[-1].predict(torch.zeros(2, 3, dtype=torch.float64))
            assert torch.get_num_threads() == count  # the user's
    one, other = (state_of(model) for model in models)
    for name, value in one.items():
        tolerance = 1e-7 if name.startswith("calibration") else 0.0
        torch.testing.assert_close(other[name], value, rtol=tolerance, atol=tolerance, msg=name)


def test_random_state_and_dtype_of_the_user_do_not_change_the_model(fit_case, fitted, assert_same_state):
    """Modes of torch: reliability/test_31_what_people_pass.py."""
    torch.manual_seed(99)
    with setting("default_dtype", torch.float64):
        assert_same_state(fit_case(), fitted)


def test_random_states_and_the_default_dtype_are_not_changed(fit_case, toy):
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
