import pytest
import torch
from reference import profile_likelihood, stationary_gram
from sklearn.gaussian_process.kernels import RBF

from trustgp.math.evidence import LENGTHS, RATIOS, choose_length, distances, squared_exponential


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_distances_are_those_of_the_differences():
    first, second = draw(7, 3), draw(5, 3, seed=1)
    expected = (first[:, None] - second).square().sum(dim=2).sqrt()
    torch.testing.assert_close(distances(first, second), expected, rtol=1e-12, atol=0)


def test_distances_keep_their_digits_far_from_the_origin():
    rows = (draw(6, 3) * 2**20).round() / 2**20  # so that the shift below loses no digit
    expected = distances(rows, rows)
    found = distances(rows + 2.0**25, rows + 2.0**25)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert torch.equal(found.diagonal(), torch.zeros(6, dtype=torch.float64))


@pytest.mark.parametrize("length", [0.3, 1.0, 4.0])
def test_the_kernel_is_the_formula_and_scikit_learns(length):
    first, second = draw(9, 4), draw(6, 4, seed=1)
    found = squared_exponential(first, second, scalar(length))
    torch.testing.assert_close(found, stationary_gram(first, second, length), rtol=1e-10, atol=0)
    theirs = torch.from_numpy(RBF(length)(first.numpy(), second.numpy()))
    torch.testing.assert_close(found, theirs, rtol=1e-10, atol=0)


def test_the_kernel_of_a_row_with_itself_is_one_and_of_strangers_zero():
    rows = torch.cat([draw(5, 2), draw(1, 2) + 1e50])
    gram = squared_exponential(rows, rows, scalar(0.5))
    assert torch.equal(gram, gram.T)
    assert gram.diagonal().tolist() == [1.0] * 6
    assert gram[5, :5].tolist() == [0.0] * 5


def test_a_length_too_small_to_square_is_no_trouble():
    rows = draw(3, 2)
    assert torch.equal(squared_exponential(rows, rows, scalar(1e-300)), torch.eye(3, dtype=torch.float64))


def test_the_kernel_stays_positive_definite_beside_a_row_far_away():
    rows = torch.cat([1e-6 * draw(80, 3), scalar(30.0).expand(1, 3)])
    gram = squared_exponential(rows, rows, scalar(1e-6))
    assert float(torch.linalg.eigvalsh(gram).min()) > -1e-12


def sets(length=0.7, ratio=1e-2, count=2, seed=0):
    """Draws from the process itself, of a known length and noise ratio, each set with scales of its own."""
    inputs, targets = [], []
    for k in range(count):
        rows = 2 * draw(60, 2, seed=seed + k)
        gram = stationary_gram(rows, rows, length) + ratio * torch.eye(60, dtype=torch.float64)
        values = torch.linalg.cholesky(gram) @ draw(60, 3, seed=seed + 100 + k)
        inputs.append(rows)
        targets.append(values * torch.tensor([1.0, 1e5, 1e-3]) * 10.0**k)
    return inputs, targets


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


@pytest.mark.parametrize("length", [0.7, 1.4])
@pytest.mark.parametrize("ratio", [1e-4, 1e-2])
def test_the_choice_is_what_the_rows_were_drawn_with(length, ratio):
    found = choose_length(*sets(length, ratio, count=3), scalar(1.0))
    assert [float(value) for value in found] == pytest.approx([length, ratio])


def test_a_change_of_units_does_not_change_the_choice():
    inputs, targets = sets()
    once = choose_length(inputs, targets, scalar(1.0))
    again = choose_length([1e6 * rows for rows in inputs], [1e-8 * t for t in targets], scalar(1e6))
    assert float(again[0]) == pytest.approx(1e6 * float(once[0]), rel=1e-12)
    assert float(again[1]) == float(once[1])


def test_rows_that_no_ratio_can_tell_apart_give_an_answer():
    same = torch.zeros(60, 2, dtype=torch.float64)
    length, ratio = choose_length([same], [draw(60, 2)], scalar(1.0))
    assert float(length) in LENGTHS
    assert float(ratio) == RATIOS[-1]
