"""Constant noise, the ensemble, trustgp among its peers, the exact GP on a subset, and the witness alone."""

import pytest
import torch
from draws import Draws

import trustgp
from trustgp.experts.neighbours import Patchwork
from trustgp_experiments.peers import ConstantNoise, Ensemble, SubsetGP, TrustGP, mlp
from trustgp_experiments.peers.trusted import WitnessAlone


def test_constant_noise_is_the_mean_squared_residual_and_an_ensemble_has_the_moments_of_its_members(
    generator,
):
    inputs, targets = torch.randn(64, 3, generator=generator), torch.randn(64, 2, generator=generator)
    networks = [mlp([3, 8, 2], seed=seed).eval() for seed in range(4)]
    with torch.no_grad():
        outputs = torch.stack([network(inputs) for network in networks])
    prediction = Ensemble.fit(networks, (inputs, targets), tune=False).predict(inputs)
    torch.testing.assert_close(prediction.mean, outputs.mean(0))
    torch.testing.assert_close(prediction.epistemic, outputs.var(0, unbiased=False))
    constant = ConstantNoise.fit(networks[0], (inputs, targets))
    expected = (targets - outputs[0]).double().square().mean(dim=0)
    torch.testing.assert_close(constant.noise, expected)
    prediction = constant.predict(inputs)
    assert torch.equal(prediction.mean, outputs[0])
    torch.testing.assert_close(prediction.variance, expected.float().expand(64, 2))
    assert not prediction.epistemic.any()
    assert not prediction.novelty.any()


def test_trustgp_is_one_fit_with_two_readings_and_the_papers_form_has_the_plain_variance(case, toy):
    rows, validation, new = (case.inputs, case.targets), toy(40, 5), toy(9, 6)[0]
    options = {"num_experts": 3, "progress": False}
    ours = TrustGP.fit(case.network, rows, validation, num_experts=3)
    expected = trustgp.fit(case.network, rows, validation=validation, **options).predict(new)
    assert ours.corrected.model is ours.model
    assert torch.equal(ours.predict(new).variance, expected.variance)
    assert torch.equal(ours.corrected.predict(new).mean, expected.corrected.mean)
    paper = TrustGP.fit_paper(case.network, rows, num_experts=3)
    expected = trustgp.paper(case.network, rows, pruning=None, **options).predict(new)
    assert torch.equal(paper.predict(new).variance, expected.plain.variance)
    assert not paper.predict(new).excess.any()
    assert len(paper.model.mixtures) == 2


def test_subset_gp_is_one_exact_expert_on_its_rows(case, toy):
    new, validation = toy(9, 6)[0], toy(60, 5)
    gp = SubsetGP.fit(case.network, (case.inputs, case.targets), validation, rows=50, seed=4)
    kept = torch.randperm(160, generator=torch.Generator().manual_seed(4))[:50]
    options = {"num_experts": 1, "patchwork": Patchwork(neighbours=0), "witness": None, "budget": "none"}
    rows = case.inputs[kept], case.targets[kept]
    expected = trustgp.fit(case.network, rows, validation=validation, seed=4, progress=False, **options)
    assert torch.equal(gp.predict(new).variance, expected.predict(new).variance)
    assert gp.model.num_experts == 1


def test_the_witness_alone_recovers_a_smooth_function_with_its_noise():
    draws = Draws()
    inputs = 4 * draws.uniform(500, 2) - 2
    clean = torch.stack([inputs.sum(1).sin(), inputs[:, 0] * inputs[:, 1]], dim=1)
    noisy = clean + 0.05 * draws.normal(clean.shape)
    peer = WitnessAlone.fit((inputs[:400], noisy[:400]), (inputs[400:450], noisy[400:450]))
    prediction = peer.predict(inputs[450:])
    assert float((prediction.mean - clean[450:]).square().mean().sqrt()) < 0.05
    assert float(prediction.std.mean()) == pytest.approx(0.05, rel=0.4)
    for rows, width in ((20, 2), (100, 65)):
        data = torch.rand(rows, width), torch.rand(rows, 1)
        with pytest.raises(ValueError, match="at least 50 rows of at most 64"):
            WitnessAlone.fit(data, data)
