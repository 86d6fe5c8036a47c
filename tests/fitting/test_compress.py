"""Smaller models from fitted ones: what they keep, what they promise, and what they refuse."""

import copy
from dataclasses import replace

import pytest
import torch
from reference import dense_jacobian
from shared_fixtures import toy_rows

import trustgp
from trustgp.data.tensor_file import ArtifactError, read, write
from trustgp.experts.mixture import LatentPrediction
from trustgp.experts.posteriors import PriorPosterior
from trustgp.state import model_state as predict

HELD, NEAR = toy_rows(240, seed=7), toy_rows(60, seed=9)[0]
STRANGE = torch.cat([NEAR, 3 * NEAR, 30 * NEAR])  # near the training rows, and far from all of them
FORMS = [{"rank": 12}, {"rank": 5, "witness": False}, {"witness": False}]


@pytest.fixture(scope="module")
def whole(fit_case):
    """Of gradient rows."""
    return fit_case(validation=HELD)


@pytest.fixture(scope="module")
def sketched(fit_case):
    return fit_case(validation=HELD, tangents=trustgp.Sketch(64))


def compress(model, **options):
    return trustgp.compress(model, progress=False, **options)


def answers(model, inputs) -> LatentPrediction:
    return predict.predict_uncalibrated(model.state, inputs)[1]


@pytest.mark.parametrize("rank", [1, 30])
def test_the_variance_is_that_of_dense_linear_algebra_with_the_other_directions_unknown(case, whole, rank):
    small, jacobian = compress(whole, rank=rank), dense_jacobian(case.network, case.inputs)
    mixture, raw = small.mixtures[0], answers(small, STRANGE)
    mix = mixture.tangents.mix[0]
    phi, new = (torch.einsum("c,ncp->np", mix, j) for j in (jacobian, dense_jacobian(case.network, STRANGE)))
    for number, (expert, before) in enumerate(zip(mixture.experts, whole.mixtures[0].experts, strict=True)):
        served = (raw.expert[:, 0] == number).nonzero().flatten()
        # tau from what the whole expert keeps of its largest eigenvalue
        eigenvalues, vectors = torch.linalg.eigh(phi[before.rows].T @ phi[before.rows])
        least = float(before.posterior.shrinkage.min())
        tau = float(eigenvalues[-1]) * least / (1.0 - least)
        leading, kept = vectors[:, -rank:], eigenvalues[-rank:]
        explained = (1.0 - tau / (kept + tau)) * (new[served] @ leading).square()
        novelty = 1.0 - explained.sum(dim=1) / new[served].square().sum(dim=1)
        torch.testing.assert_close(raw.novelty[served, 0], novelty, rtol=1e-7, atol=1e-7)
        assert expert.posterior.directions == rank


@pytest.mark.parametrize(("name", "rank"), [("whole", 3), ("sketched", 20)])
def test_no_variance_falls_and_no_mean_moves(name, rank, request):
    model = request.getfixturevalue(name)
    before, after = answers(model, STRANGE), answers(compress(model, rank=rank), STRANGE)
    assert torch.equal(before.expert, after.expert)
    prior = before.epistemic / before.novelty
    assert bool((after.epistemic >= before.epistemic - 1e-10 * prior).all())
    assert bool((after.epistemic <= prior * (1 + 1e-10)).all())
    assert torch.equal(before.residual_mean, after.residual_mean)


def test_the_best_determined_directions_stay(sketched):
    small = compress(sketched, rank=5)
    for before, after in zip(sketched.mixtures[0].experts, small.mixtures[0].experts, strict=True):
        assert after.posterior.basis.shape == (64, 5)
        least = before.posterior.shrinkage.sort().values[:5]
        assert torch.equal(after.posterior.shrinkage.sort().values, least)
        assert torch.equal(after.posterior.weights, before.posterior.weights)
    twice = compress(compress(sketched, rank=20), rank=5)  # forms are nested
    for one, other in zip(small.mixtures[0].experts, twice.mixtures[0].experts, strict=True):
        assert torch.equal(one.posterior.basis, other.posterior.basis)
    assert small.nbytes < sketched.nbytes


def test_with_validation_rows_it_is_calibrated_anew_and_without_as_before(whole):
    small = compress(whole, rank=12, validation=HELD)
    likelihood = whole.origin.likelihood
    rows = likelihood.calibration_rows(*predict.predict_uncalibrated(small.state, HELD[0]), HELD[1])
    expected = likelihood.recalibrate(rows, small.shape, whole.calibrations)
    assert torch.equal(small.calibrations[0].bias, expected[0].bias)
    assert len(small.held_scores) == len(HELD[0])
    bare = compress(whole, rank=12)
    assert all(a is b for a, b in zip(bare.calibrations, whole.calibrations, strict=True))
    assert len(bare.held_scores) == 0


@pytest.mark.parametrize(("name", "options"), zip(["whole", "sketched", "whole"], FORMS, strict=True))
def test_a_file_holds_it_to_the_bit(name, options, request, case, tmp_path):
    small = compress(request.getfixturevalue(name), validation=HELD, **options)
    small.threshold(false_alarm=0.05)
    small.save(tmp_path / "small.trustgp")
    again = trustgp.load(tmp_path / "small.trustgp", case.network)
    one, two = small.predict(STRANGE), again.predict(STRANGE)
    assert torch.equal(one.variance, two.variance)
    assert torch.equal(one.corrected.mean, two.corrected.mean)
    assert torch.equal(one.is_novel, two.is_novel)
    assert again.nbytes == small.nbytes
    assert again.origin == small.origin
    assert again.origin.compressed


def test_an_expert_that_failed_still_answers_with_the_prior(whole):
    model = copy.copy(whole)
    (mixture,) = whole.mixtures
    first = replace(mixture.experts[0], posterior=PriorPosterior(torch.empty(0, 2).double()))
    mixtures = (replace(mixture, experts=(first, *mixture.experts[1:])),)
    model.state = replace(whole.state, mixtures=mixtures)
    small = compress(model, rank=5)
    assert small.failed == [(0, 0)]
    raw = answers(small, STRANGE)
    assert bool((raw.novelty[raw.expert[:, 0] == 0] == 1).all())


def test_an_update_keeps_to_the_directions(whole, toy):
    small = compress(whole, rank=6, witness=False)
    small.update(toy(30, seed=3), progress=False)
    assert small.origin.rows == 190
    assert {expert.posterior.directions for expert in small.mixtures[0].experts} == {6}
    assert small.witness is None


def test_exact_models_are_refused_with_what_to_do_but_may_lose_their_witness(fit_case):
    exact = fit_case(validation=HELD, budget="none")
    with pytest.raises(ValueError, match=r'are exact.*Fit without budget="none", or with tangents='):
        compress(exact, rank=8)
    assert compress(exact, witness=False).witness is None
    long = fit_case(validation=HELD, budget="none", tangents=trustgp.Sketch(64))
    assert compress(long, rank=8).state.directions == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to compress: pass rank= or witness=False"),
        ({"witness": True}, "nothing to compress"),
        ({"rank": 0}, "rank=0; a whole number of at least 1"),
        ({"rank": 2.5}, "rank=2.5; a whole number"),
        ({"rank": True}, "rank=True"),
        ({"witness": 12}, "witness=12; allowed are False"),
    ],
)
def test_nonsense_is_refused_with_what_is_allowed(whole, options, message):
    with pytest.raises(ValueError, match=message):
        compress(whole, **options)


@pytest.mark.parametrize("rank", [0, -3, "6", True])
def test_a_file_with_a_forged_rank_is_refused(whole, case, tmp_path, rank):
    path = tmp_path / "small.trustgp"
    compress(whole, rank=6).save(path)
    text, tensors = read(path, kind="trustgp-model")
    write(path, kind="trustgp-model", text={**text, "rank": rank}, tensors=dict(tensors))
    with pytest.raises(ArtifactError, match="description"):
        trustgp.load(path, case.network)
