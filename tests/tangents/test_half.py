"""Factors in float16: what rounding costs, and what it cannot hold."""

import pytest
import torch

from trustgp.tangents.factors import FactorFeatures, HalfFactors, half_scales


def factors(n: int, size: float = 1.0, seed: int = 0) -> FactorFeatures:
    generator = torch.Generator().manual_seed(seed)

    def some(width: int) -> torch.Tensor:
        return size * torch.randn(n, width, generator=generator)

    return FactorFeatures((some(4), some(3)), (some(6), some(2)), (some(5),))


@pytest.mark.parametrize("size", [1e-15, 1e-6, 1.0, 3e4, 1e15])
def test_every_number_keeps_eleven_bits_whatever_the_unit(size):
    whole = factors(7, size)
    packed = HalfFactors.pack(whole, half_scales([whole]))
    assert {half.dtype for half in packed.halves} == {torch.float16}
    for name, value in packed.tensors().items():
        exact = whole.tensors()[name].double()
        assert bool(((value.double() - exact).abs() <= 2.0**-11 * exact.abs()).all())


def test_the_kernel_is_that_of_the_rounded_factors():
    whole, other = factors(7), factors(5, seed=1)
    packed = HalfFactors.pack(whole, half_scales([whole]))
    rounded = FactorFeatures.from_tensors(packed.tensors())
    assert torch.equal(other.gram(packed), other.gram(rounded))  # as experts ask
    assert torch.equal(packed.gram(packed), rounded.gram(rounded))
    assert torch.equal(packed.diag(), rounded.diag())
    exact = other.gram(whole)
    sizes = (other.diag()[:, None] * whole.diag()).sqrt()
    assert bool(((other.gram(packed) - exact).abs() <= 2.0**-10 * sizes).all())


def test_rows_are_taken_and_joined_without_rounding_again():
    whole = factors(7)
    packed = HalfFactors.pack(whole, half_scales([whole]))
    parts = [packed.take(torch.tensor([0, 1, 2])), packed.take(torch.tensor([3, 4, 5, 6]))]
    again = HalfFactors.cat(parts)
    assert len(again) == 7
    assert all(torch.equal(a, b) for a, b in zip(again.halves, packed.halves, strict=True))
    once_more = HalfFactors.from_tensors(packed.tensors())
    assert all(torch.equal(once_more.tensors()[k], v) for k, v in packed.tensors().items())


def test_one_scale_serves_several_lots_and_nothing_overflows():
    small, large = factors(3, 1e-3), factors(4, 1e5)
    scales = half_scales([small, large])
    packed = HalfFactors.pack(large, scales)
    assert all(bool(torch.isfinite(half).all()) for half in packed.halves)
    assert all(float(half.abs().max()) < 2**15 for half in packed.halves)


def test_a_tensor_of_zeros_stays_one():
    zero = FactorFeatures((torch.zeros(2, 3),), (torch.zeros(2, 2),), ())
    packed = HalfFactors.pack(zero, half_scales([zero]))
    assert bool((packed.gram(packed) == 0).all())


def test_numbers_beyond_all_measure_are_refused():
    huge = FactorFeatures((torch.full((2, 3), 1e40, dtype=torch.float64),), (torch.ones(2, 2).double(),), ())
    with pytest.raises(ValueError, match=r"1e\+40.*Leave dtype out"):
        half_scales([huge])


def test_factors_have_no_columns_in_half_either():
    whole = factors(2)
    packed = HalfFactors.pack(whole, half_scales([whole]))
    assert packed.explicit() is None
    assert packed.select(torch.empty(0, dtype=torch.int64)) is packed
    with pytest.raises(ValueError, match="no columns"):
        packed.select(torch.tensor([0]))
