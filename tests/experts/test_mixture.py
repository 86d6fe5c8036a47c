import math
from dataclasses import replace

import pytest
import torch
from reference import dense_gram, dense_jacobian, posterior_mean, posterior_variance, relative_sizes
from shared_fixtures import toy_rows

from trustgp.experts.gate import nearest_two
from trustgp.experts.mixture import LatentPrediction
from trustgp.experts.posteriors import LatentMoments, PriorPosterior

NEW = toy_rows(30, seed=9)[0]


@pytest.fixture(scope="module")
def mixture(fit_case):
    return fit_case(budget="none").mixtures[0]


def test_predictions_equal_the_dense_gp_of_the_expert_of_the_nearest_centroid(mixture, case):
    raw = mixture.raw(NEW)
    points = mixture.gate.embed(mixture.tangents(NEW))
    assert torch.equal(raw.expert[:, 0], nearest_two(points, mixture.gate.centroids)[0])
    assert len(raw.expert.unique()) > 1  # otherwise this test shows nothing
    train, test = dense_jacobian(case.network, case.inputs), dense_jacobian(case.network, NEW)
    mix = mixture.tangents.mix
    residual = case.targets - case.network(case.inputs).detach()
    for index, expert in enumerate(mixture.experts):
        chosen = raw.expert[:, 0] == index
        rows, amplitude = expert.rows, relative_sizes(test[chosen])
        typical = relative_sizes(train[rows]).mean(dim=0)
        tau = float(expert.noise[0] / (expert.scale * typical)[0])
        gram, cross = dense_gram(train[rows], mix), dense_gram(test[chosen], mix, train[rows])
        prior = dense_gram(test[chosen], mix).diagonal()
        unit = posterior_variance(gram, cross, prior, tau)
        # The condition of K + tau I, up to 1e8, costs that many digits.
        variance, atol = unit[:, None] * amplitude * expert.scale, 1e-10 * float(prior.max())
        torch.testing.assert_close(raw.epistemic[chosen], variance, rtol=1e-6, atol=atol)
        mean = posterior_mean(gram, cross, residual[rows], tau)
        torch.testing.assert_close(raw.residual_mean[chosen], mean, rtol=1e-6, atol=1e-8)
        assert torch.equal(raw.noise[chosen], expert.noise.expand(int(chosen.sum()), 2))
        torch.testing.assert_close(raw.novelty[chosen][:, 0], unit / prior, rtol=1e-6, atol=1e-10)


class NoGradient(PriorPosterior):
    def __call__(self, features):
        zeros = torch.zeros(len(features), dtype=torch.float64)
        return LatentMoments(zeros, zeros, zeros[:, None].expand(-1, 2))


def test_rows_without_any_gradient_are_novel(mixture):
    posterior = NoGradient(torch.zeros(0, 2, dtype=torch.float64))
    experts = tuple(replace(expert, posterior=posterior) for expert in mixture.experts)
    assert bool((replace(mixture, experts=experts).raw(NEW).novelty == 1.0).all())


def raw_of(n: int, outputs: int) -> LatentPrediction:
    values = torch.arange(1.0, n * outputs + 1, dtype=torch.float64).reshape(n, outputs)
    expert = torch.arange(n)[:, None]
    first = [values * k for k in (1, 2, 3, 4)]
    return LatentPrediction(*first, values / 100, expert, *(values * k for k in (5, 6, 7, 8, 9)))


def test_predictions_are_scattered_among_invalid_rows():
    valid = torch.tensor([False, True, True, False])
    raw = replace(raw_of(2, 3), nearest=torch.ones(2, 2, dtype=torch.float64))
    spread = raw.spread(valid)
    assert bool(torch.isinf(spread.epistemic[~valid]).all())
    assert bool((spread.novelty[~valid] == 1).all())
    assert spread.expert[:, 0].tolist() == [-1, 0, 1, -1]
    assert bool((spread.witness_precision[~valid] == 0).all())
    assert torch.equal(spread.epistemic[valid], raw.epistemic)
    assert spread.nearest.tolist() == [[0.0] * 2, [1.0] * 2, [1.0] * 2, [0.0] * 2]
    assert raw_of(2, 3).spread(valid).nearest is None
    assert raw.take(torch.tensor([1])).nearest.shape == (1, 2)
    assert LatentPrediction.cat([raw, raw]).nearest.shape == (4, 2)


def test_outputs_of_several_kernels_are_concatenated():
    joined = LatentPrediction.cat([raw_of(3, 1), raw_of(3, 2)], dim=1)
    assert joined.epistemic.shape == (3, 3)
    assert joined.expert.shape == (3, 2)
    assert torch.equal(joined.residual_mean[:, 1:], raw_of(3, 2).residual_mean)


def test_held_out_rows_have_an_entry_for_each_row_and_output():
    residual = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    raw = raw_of(2, 2)
    rows = raw.calibration_rows(residual, torch.arange(2), 10 * residual)
    assert rows.residual.tolist() == rows.epistemic.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert rows.output.tolist() == [0, 1, 0, 1]
    assert rows.witness_mean.tolist() == [5.0, 10.0, 15.0, 20.0]
    assert rows.witness_precision.tolist() == [6.0, 12.0, 18.0, 24.0]
    assert rows.log_leverage.tolist() == [7.0, 14.0, 21.0, 28.0]
    assert rows.log_noise.tolist() == [8.0, 16.0, 24.0, 32.0]
    assert rows.log_stated.tolist() == [9.0, 18.0, 27.0, 36.0]
    assert rows.target.tolist() == [10.0, 20.0, 30.0, 40.0]
    assert torch.equal(rows.measures, raw.measures().repeat_interleave(2, dim=0))


def test_novelty_measures_are_those_of_the_witness_or_share_of_the_prior_and_variance():
    raw, expected = raw_of(3, 2), []
    for share, pair in zip((0.015, 0.035, 0.055), ((3.0, 6.0), (9.0, 12.0), (15.0, 18.0)), strict=True):
        expected += [math.log(share), math.log(math.prod(pair)) / 2]  # of E, with the noise
    assert raw.measures().flatten().tolist() == pytest.approx(expected, rel=1e-12)
    nearest = torch.ones(3, 2, dtype=torch.float64)
    assert replace(raw, nearest=nearest).measures() is nearest
    empty = replace(raw, epistemic=0 * raw.epistemic, noise=0 * raw.noise, novelty=0 * raw.novelty)
    assert bool(torch.isfinite(empty.measures()).all())
