"""Where a function of a few numbers is least."""

import numpy as np
import pytest
import torch

from trustgp.math.search import minimise_from_zero, with_gradient


def bowl(place):
    """Least at 1, 2, ..., along a valley that is long and narrow."""
    steep = 10.0 ** np.arange(len(place))
    away = place - np.arange(1, len(place) + 1)
    return 1e6 + float(steep @ away**2), 2 * steep * away


def test_the_least_place_is_found_however_large_the_loss_is():
    assert minimise_from_zero(bowl, 4, max_iter=200) == pytest.approx([1, 2, 3, 4], abs=1e-4)


def test_it_takes_one_thread_and_gives_the_others_back_after_an_error_too():
    before = torch.get_num_threads()

    def fail(place):
        raise ArithmeticError(torch.get_num_threads())

    with pytest.raises(ArithmeticError, match=r"^1$"):
        minimise_from_zero(fail, 2, max_iter=1)
    assert torch.get_num_threads() == before


def test_it_stays_within_bounds():
    found = minimise_from_zero(bowl, 2, max_iter=200, bounds=[(-0.5, 0.5), (-9, 9)])
    assert found == pytest.approx([0.5, 2.0], abs=1e-4)


def test_so_many_steps_are_taken_at_most():
    rough = minimise_from_zero(bowl, 6, max_iter=1)
    assert rough is not None
    assert bowl(rough)[0] > bowl(minimise_from_zero(bowl, 6, max_iter=200))[0] + 1e-3


def test_where_zero_is_least_it_is_kept():
    assert minimise_from_zero(lambda place: (place @ place, 2 * place), 2, max_iter=9).tolist() == [0.0, 0.0]


def test_nothing_is_said_where_the_loss_is_no_number():
    assert minimise_from_zero(lambda place: (float("nan"), place), 2, max_iter=50) is None


def test_slopes_are_those_of_the_loss():
    value, slope = with_gradient(lambda free: (free**3).sum())(np.array([1.0, 2.0]))
    assert value == pytest.approx(9.0)
    assert slope == pytest.approx([3.0, 12.0])


def test_slopes_are_found_where_gradients_are_switched_off():
    with torch.no_grad():
        assert with_gradient(lambda free: free.square().sum())(np.ones(2))[1] == pytest.approx([2.0, 2.0])
