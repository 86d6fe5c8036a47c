"""The likelihood alone: what it asks of labels, what it learns, and what it answers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trustgp.experts.mixture import LatentPrediction
from trustgp.likelihoods import Classification
from trustgp.math.cross_entropy import Temperature, UsualNovelty
from trustgp.tangents.base import output_mixes


def raw_of(variance: torch.Tensor, experts: int = 2) -> LatentPrediction:
    blank = torch.zeros_like(variance)
    expert = (torch.arange(len(variance)) % experts)[:, None]
    share = variance / (1 + variance)
    return LatentPrediction(variance, blank, blank, blank, share, expert, *[blank] * 5)


def answer(logits: torch.Tensor, variance: torch.Tensor):
    calibrations = (Temperature.default(), UsualNovelty.default())
    return Classification().prediction(logits, raw_of(variance), calibrations)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_any_whole_numbers_are_class_numbers(dtype):
    Classification().check(3, torch.tensor([[0], [2]], dtype=dtype), name="train")


def test_a_class_without_rows_is_named_once():
    with pytest.warns(UserWarning, match=r"2 of 4 classes have no training row \(1, 3\)") as caught:
        Classification().warn(4, torch.tensor([[0], [2]]))
    assert len(caught) == 1


def test_the_aim_leads_the_squared_error_along_the_cross_entropy():
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    labels = torch.tensor([0, 1, 2, 1, 0])
    aim = Classification().pruning_targets(lambda: logits.detach(), labels[:, None])
    squares = torch.autograd.grad(0.5 * (logits - aim).square().sum(), logits)[0]
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    entropy = torch.autograd.grad(loss, logits)[0]
    torch.testing.assert_close(squares, entropy, rtol=0, atol=1e-12)


@pytest.mark.parametrize("outputs", ["shared", "pseudo", "separate"])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_kernels_ignore_what_all_logits_share(outputs, classes):
    for mix, _ in output_mixes(outputs, classes, torch.Generator().manual_seed(0), contrast=True):
        assert float(mix.sum(dim=1).abs().max()) < 1e-12
        assert float(mix.square().sum()) == pytest.approx(1.0)
        blend = Classification().output_combination(mix, torch.Generator().manual_seed(0))
        assert blend.shape == (classes, 1)
        assert abs(float(blend.sum())) < 1e-12


def test_a_random_blend_of_a_shared_kernel_has_its_mean_square():
    ((mix, _),) = output_mixes("shared", 6, torch.Generator(), contrast=True)
    values = torch.randn(6, generator=torch.Generator().manual_seed(0)).double()
    seeds = (torch.Generator().manual_seed(seed) for seed in range(4000))
    blends = torch.cat([Classification().output_combination(mix, seed) for seed in seeds], dim=1)
    mean_square = float((values @ blends).square().mean())
    assert mean_square == pytest.approx(float((mix @ values).square().sum()), rel=0.1)


def test_one_logit_is_learnt_as_it_is():
    ((mix, _),) = output_mixes("pseudo", 1, torch.Generator().manual_seed(0), contrast=True)
    assert Classification().output_combination(mix, torch.Generator()).abs().tolist() == [[1.0]]


def test_probabilities_are_those_of_the_cooled_logits():
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 1.5, 0.0]], dtype=torch.float64)
    variance = torch.tensor([[0.0], [8.0]], dtype=torch.float64)
    found = answer(logits, variance)
    spread = (1 + torch.pi / 8 * variance).sqrt()
    torch.testing.assert_close(found.probabilities, (logits / spread).softmax(1), rtol=0, atol=1e-12)
    assert float(found.score[0]) < float(found.score[1])  # of what is usual nothing is known
    assert torch.equal(found.variance, variance.expand(2, 3))
    assert found.variance.stride(1) == 0  # a view: it costs nothing however many classes there are


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_logit_gives_two_probabilities(shape):
    logits = torch.tensor([-30.0, -1.0, 0.0, 2.0]).reshape(shape)
    found = answer(logits, torch.full((4, 1), 3.0).double())
    expected = torch.sigmoid(logits.flatten().double() / (1 + 3 * torch.pi / 8) ** 0.5)
    torch.testing.assert_close(found.probabilities[:, 1].double(), expected, rtol=1e-5, atol=0)  # float32
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(4))
    assert found.classes.tolist() == [0, 0, 0, 1]
    assert found.mean.shape == found.variance.shape == found.std.shape == shape


@given(st.integers(1, 6), st.integers(0, 2**31), st.floats(1e-6, 1e6), st.floats(0.01, 100))
def test_the_predicted_class_never_changes(classes, seed, spread, size):
    generator = torch.Generator().manual_seed(seed)
    logits = size * torch.randn(8, classes, generator=generator)
    variance = spread * torch.rand(8, 1, generator=generator, dtype=torch.float64)
    found = answer(logits, variance)
    predicted = found.classes
    expected = (logits[:, 0] > 0).long() if classes == 1 else logits.argmax(1)
    assert torch.equal(predicted, expected)
    assert torch.equal(found.probabilities.gather(1, predicted[:, None])[:, 0], found.probabilities.amax(1))


def test_half_precision_logits_have_probabilities_in_single_precision():
    found = answer(torch.tensor([[1.0, 0.0]], dtype=torch.float16), torch.ones(1, 1).double())
    assert found.mean.dtype == torch.float16
    assert found.variance.dtype == torch.float32
    assert found.probabilities.dtype == torch.float32


def test_parts_of_a_prediction_are_joined_without_writing_out_views():
    parts = [answer(torch.randn(n, 50), torch.rand(n, 1).double()) for n in (3, 4)]
    joined = type(parts[0]).cat(parts)
    assert len(joined) == 7
    assert joined.variance.stride(1) == 0
    assert torch.equal(joined.probabilities, torch.cat([part.probabilities for part in parts]))
    assert torch.equal(joined.temperature, torch.cat([part.temperature for part in parts]))
