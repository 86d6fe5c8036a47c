import math

import pytest
import torch
from draws import normal
from reference import profile_likelihood, stationary_gram

from trustgp.math import evidence
from trustgp.math.evidence import LENGTHS, RATIOS, best_length, distances, length_losses, relative_lengths


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_distances_keep_their_digits_far_from_the_origin():
    rows = (normal(6, 3) * 2**20).round() / 2**20  # so that the shift below loses no digit
    expected = distances(rows, rows)
    found = distances(rows + 2.0**25, rows + 2.0**25)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert torch.equal(found.diagonal(), torch.zeros(6, dtype=torch.float64))


def sets(length=0.7, ratio=1e-2, count=2, seed=0):
    """Draws from the process itself, of a known length and noise ratio, each set with scales of its own."""
    inputs, targets = [], []
    for k in range(count):
        rows = 2 * normal(60, 2, seed=seed + k)
        gram = stationary_gram(rows, rows, length) + ratio * torch.eye(60, dtype=torch.float64)
        values = torch.linalg.cholesky(gram) @ normal(60, 3, seed=seed + 100 + k)
        inputs.append(rows)
        targets.append(values * torch.tensor([1.0, 1e5, 1e-3]) * 10.0**k)
    return inputs, targets


def choose_length(inputs, targets, typical):
    squares = [torch.cdist(rows, rows).square() for rows in inputs]
    return best_length([length_losses(squares, targets, typical, length) for length in LENGTHS], typical)


def test_the_choice_is_that_of_the_highest_evidence_on_the_grid():
    inputs, targets = sets()
    length, ratio = choose_length(inputs, targets, scalar(1.3))
    losses = {
        (a, b): sum(
            profile_likelihood(stationary_gram(rows, rows, 1.3 * a), values, b)
            for rows, values in zip(inputs, targets, strict=True)
        )
        for a in LENGTHS
        for b in RATIOS
    }
    best = max(losses, key=losses.__getitem__)
    assert (float(length), float(ratio)) == pytest.approx((1.3 * best[0], best[1]), rel=1e-12)


def test_rows_that_no_ratio_can_tell_apart_give_an_answer():
    same = torch.zeros(60, 2, dtype=torch.float64)
    length, ratio = choose_length([same], [normal(60, 2)], scalar(1.0))
    assert float(length) in LENGTHS
    assert float(ratio) == RATIOS[-1]


def penalised(inputs, targets, log_lengths, ratio):
    """Minus the log marginal likelihood, and half the squares of the columns' logarithms about their best
    common one, which is their mean, over 2^2."""
    lengths = torch.tensor(log_lengths, dtype=torch.float64).exp()
    fit = sum(
        profile_likelihood(stationary_gram(x / lengths, x / lengths, 1.0), t, ratio)
        for x, t in zip(inputs, targets, strict=True)
    )
    mean = sum(log_lengths) / len(log_lengths)
    return -fit + sum((one - mean) ** 2 for one in log_lengths) / 8


def test_no_step_to_other_lengths_raises_the_evidence():
    """At the best common length and ratio for them, on a grid; the loss is that of the definition."""
    lengths, inputs, targets = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64), [], []
    for k in range(3):
        rows = 2 * normal(90, 3, seed=k)
        gram = stationary_gram(rows / lengths, rows / lengths, 1.0) + 0.1 * torch.eye(90, dtype=torch.float64)
        inputs.append(rows)
        targets.append(torch.linalg.cholesky(gram) @ normal(90, 2, seed=100 + k))
    relative = relative_lengths(inputs, targets, scalar(2.0)).log().tolist()
    grid = [(0.1 * a, 10**b) for a in range(-4, 20, 2) for b in (-2.0, -1.5, -1.0, -0.5, 0.0)]

    def loss(logs, at):
        return penalised(inputs, targets, [at[0] + one for one in logs], at[1])

    best = min(grid, key=lambda at: loss(relative, at))
    around = [at for at in grid if abs(at[0] - best[0]) < 0.25 and abs(math.log10(at[1] / best[1])) < 0.6]
    for column in range(3):
        for step in (-0.4, 0.4):
            moved = [one + step * (k == column) for k, one in enumerate(relative)]
            assert min(loss(moved, at) for at in around) > loss(relative, best)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_rows_in_one_place_leave_all_lengths_the_same(value):
    same = torch.full((60, 3), value, dtype=torch.float64)
    assert relative_lengths([same], [normal(60, 2)], scalar(1.0)).tolist() == [1.0] * 3


def test_slopes_of_the_profile_are_those_of_small_steps():
    points, targets, tau, step = normal(12, 3), normal(12, 2), 0.3, 1e-5
    _, by_tau, by_length = evidence._profile_and_slopes(points, targets, tau)

    def profile(log_tau=0.0, log_lengths=(0.0, 0.0, 0.0)):
        lengths = torch.tensor(log_lengths, dtype=torch.float64).exp()
        return float(evidence._profile_and_slopes(points / lengths, targets, tau * math.exp(log_tau))[0])

    assert float(by_tau) == pytest.approx((profile(step) - profile(-step)) / (2 * step), rel=1e-5)
    for column in range(3):
        up, down = ([way * step * (k == column) for k in range(3)] for way in (1, -1))
        found = (profile(log_lengths=up) - profile(log_lengths=down)) / (2 * step)
        assert float(by_length[column]) == pytest.approx(found, rel=1e-5)
