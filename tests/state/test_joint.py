"""Joint answers against dense float64 algebra: rows of experts, and outputs of a row."""

import numpy as np
import pytest
import torch
from draws import Draws, normal
from fitted_zoo import names
from reference import inverse_of
from scipy.linalg import sqrtm
from torch import nn

import trustgp
from trustgp.experts.features import NO_COLUMNS
from trustgp.experts.posteriors import GramPosterior, PriorPosterior, make_posterior
from trustgp.experts.whole import RIDGE
from trustgp.tangents.rows import RowFeatures

MEMBERS = [names("regression", words)[0] for words in ("rows", "factors", "separate")]


def solved(phi, tau):
    """The posterior of rows [m, d] with noise ratio tau, by its factor, and S by an explicit inverse."""
    factor = torch.linalg.cholesky(phi @ phi.T + tau * torch.eye(len(phi), dtype=phi.dtype))
    ratio = torch.tensor(tau, dtype=torch.float64)
    own = make_posterior(RowFeatures(phi), NO_COLUMNS, factor, phi[:, :1], ratio)
    return own, inverse_of(phi.T @ phi / tau, 1.0), factor


def test_rows_of_an_expert_have_its_dense_covariance_and_those_of_two_one_root_of_both():
    (first, S, factor), (second, other, _) = (solved(normal(9, 6, seed=k), 0.1 + k) for k in (0, 1))
    x, y = RowFeatures(normal(4, 6, seed=2)), RowFeatures(normal(3, 6, seed=3))
    dense = x.rows @ S @ x.rows.T
    gram = GramPosterior(RowFeatures(normal(9, 6, seed=0)), factor, x.rows[:, :1])
    for answer in (first.covariance(x), gram.covariance(x)):
        torch.testing.assert_close(answer, dense, rtol=1e-10, atol=1e-12)
    assert gram.root_features(x) is None
    roots = torch.from_numpy(np.real(sqrtm(S.numpy()) @ sqrtm(other.numpy())))
    between = first.root_features(x) @ second.root_features(y).T
    torch.testing.assert_close(between, x.rows @ roots @ y.rows.T, rtol=1e-10, atol=1e-12)
    failed = PriorPosterior(x.rows[:0, :1])
    torch.testing.assert_close(failed.root_features(x) @ failed.root_features(x).T, failed.covariance(x))


@pytest.mark.parametrize("name", MEMBERS)
def test_rows_are_correlated_by_their_experts_and_vary_as_predicted(fitted_zoo, name):
    member = fitted_zoo[name]
    model, fresh = member.model, member.fresh[0][:12]
    answer, p = model.joint(fresh), model.predict(fresh)
    for one, other in ((answer, p), (answer.corrected, p.corrected)):
        assert torch.equal(one.mean, other.mean)
        torch.testing.assert_close(one.covariance.diagonal(dim1=1, dim2=2).T, other.variance)
        torch.testing.assert_close(one.epistemic.diagonal(dim1=1, dim2=2).T, other.epistemic)
        assert float(torch.linalg.eigvalsh(one.covariance).min()) > 0
    labels = p.expert.reshape(len(fresh), -1)
    for k, mixture in enumerate(model.mixtures):
        for number in labels[:, k].unique().tolist():
            index = (labels[:, k] == number).nonzero().flatten()
            dense = mixture.experts[number].posterior.covariance(mixture.tangents(fresh[index]))
            deviation = dense.diagonal().sqrt()
            for c in mixture.outputs.tolist():
                block = answer.correlation[c][index[:, None], index]
                expected = dense / (deviation[:, None] * deviation)
                torch.testing.assert_close(block, expected, rtol=1e-6, atol=1e-8)
    # the joint answer of fewer rows is the part of that of all
    torch.testing.assert_close(model.joint(fresh[3:8]).covariance, answer.covariance[:, 3:8, 3:8])


def test_samples_have_the_covariance_of_the_targets_or_of_the_function(fitted_zoo):
    member = fitted_zoo[MEMBERS[0]]
    answer = member.model.joint(member.fresh[0][:3])
    drawn, latent = (answer.sample(20_000, generator=Draws().generator, noise=one) for one in (True, False))
    assert drawn.shape == (20_000, 3, 2)
    again = answer.sample(3, generator=Draws().generator)
    assert torch.equal(again, answer.sample(3, generator=Draws().generator))
    for values, matrices in ((drawn, answer.covariance), (latent, answer.epistemic)):
        deviation = values.std(dim=0)
        error = (values.mean(dim=0) - answer.mean).abs()
        assert bool((error < 5 * deviation / 20_000**0.5).all())
        for c in range(2):
            limit = 5 * deviation[:, None, c] * deviation[:, c] / 20_000**0.5
            assert bool(((values[..., c].T.cov() - matrices[c]).abs() < 1.5 * limit).all())


@pytest.fixture(scope="module")
def several():
    """A float64 network of three outputs, 90 rows, and the model."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double().eval()
    inputs = normal(120, 3, seed=0)
    targets = network(inputs).detach() + 0.1 * normal(120, 3, seed=1)
    rows, validation = (inputs[:90], targets[:90]), (inputs[90:], targets[90:])
    options = {"tangents": trustgp.Sketch(64), "num_experts": 2, "progress": False}
    return network, inputs, trustgp.fit(network, rows, validation=validation, **options)


def test_outputs_of_a_row_are_correlated_as_in_the_dense_posterior_of_all_rows(several, tmp_path):
    network, inputs, model = several
    tangents, units = model.mixtures[0].tangents, model.mixtures[0].whole.units
    rows, new = tangents(inputs[:90]).by_output, tangents(inputs[90:]).by_output
    scaled = rows * units[:, None]
    total = torch.einsum("ncd,nce->de", scaled, scaled)
    posterior = inverse_of(total, RIDGE * float(torch.linalg.eigvalsh(total)[-1]))
    dense = torch.einsum("ncd,de,nge->ncg", new, posterior, new)
    deviation = dense.diagonal(dim1=1, dim2=2).sqrt()
    p = model.predict(inputs[90:])
    each = p.epistemic.sqrt() / deviation
    expected = dense * each[:, :, None] * each[:, None] + torch.diag_embed(p.variance - p.epistemic)
    torch.testing.assert_close(p.covariance, expected, rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(p.covariance.diagonal(dim1=1, dim2=2), p.variance)
    torch.testing.assert_close(p.corrected.covariance.diagonal(dim1=1, dim2=2), p.corrected.variance)
    assert float((p.covariance - torch.diag_embed(p.variance)).abs().amax()) > 1e-4
    model.save(tmp_path / "joint.trustgp")
    again = trustgp.load(tmp_path / "joint.trustgp", network)
    torch.testing.assert_close(again.predict(inputs[90:])[3].covariance, p.covariance[3:4])
    torch.testing.assert_close(again.joint(inputs[90:95]).covariance, model.joint(inputs[90:95]).covariance)


def test_invalid_rows_have_infinite_variances_and_no_covariance(several):
    bad = several[1][:2].clone()
    bad[1] = torch.nan
    covariance = several[2].predict(bad).covariance
    assert torch.equal(covariance[1], torch.diag(torch.full((3,), torch.inf, dtype=torch.float64)))
    assert bool(covariance[0].isfinite().all())


def test_one_output_has_one_matrix(several):
    network, inputs, _ = several
    single = nn.Sequential(network, nn.Linear(3, 1).double(), nn.Flatten(0)).eval()
    targets = single(inputs).detach() + 0.1 * normal(120, seed=2)
    model = trustgp.fit(single, (inputs, targets), num_experts=2, progress=False)
    answer, p = model.joint(inputs[:4]), model.predict(inputs[:4])
    assert answer.covariance.shape == (4, 4)
    assert answer.sample(5).shape == (5, 4)
    torch.testing.assert_close(p.covariance, p.variance[:, None, None])
