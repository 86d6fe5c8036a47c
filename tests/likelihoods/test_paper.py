"""The paper's own form, by its one name."""

import math

import pytest
import torch
from reference import dense_jacobian, flat_parameters, largest_columns, log_marginal_likelihood

import trustgp
from trustgp.math.cross_entropy import newton_step

KEPT, EACH = 60, 40


@pytest.fixture(scope="module")
def model(case):
    rows, pruning = (case.inputs, case.targets), (KEPT, EACH)
    return trustgp.paper(case.network, rows, pruning=pruning, num_experts=6, progress=False)


def solved_by_hand(network, inputs, mixture, output):
    """Of each expert: its columns of the gradient of one output, their rows [m, d], s and sigma^2."""
    jacobian = dense_jacobian(network, inputs)[:, output, mixture.tangents.kept]
    for expert in mixture.experts:
        columns = largest_columns(jacobian[expert.rows[: int(expert.own)]], EACH, 1)
        rows = jacobian[expert.rows][:, columns]
        yield mixture.tangents.kept[columns], rows, float(expert.scale), float(expert.noise)


def test_the_variance_is_the_papers(case, model, toy):
    new = torch.cat([case.inputs[:20], toy(20, 9)[0], 5 * case.inputs[:5]])
    gradients, p = dense_jacobian(case.network, new), model.predict(new)
    for c, mixture in enumerate(model.mixtures):
        experts = list(solved_by_hand(case.network, case.inputs, mixture, c))
        for i, number in enumerate(p.expert[:, c].tolist()):
            columns, rows, s, noise = experts[number]
            here, eye = gradients[i, c, columns], torch.eye(len(rows), dtype=torch.float64)
            gram, cross = s * rows @ rows.T, s * rows @ here
            expected = s * here @ here - cross @ torch.linalg.inv(gram + noise * eye) @ cross + noise
            # a difference of two numbers that are far larger
            assert float(p.variance[i, c]) == pytest.approx(float(expected), rel=1e-6)
    assert torch.equal(p.mean, case.network(new).detach())
    assert not (p.excess + p.rare).any()


def test_outputs_are_separate_and_two_neighbours_lend_their_rows(case, model):
    assert len(model.mixtures) == 2
    assert model.witness is None
    for mixture in model.mixtures:
        assert len(mixture.tangents.kept) == KEPT
        for neighbours, expert in zip(mixture.neighbours, mixture.experts, strict=True):
            own = int(expert.own)
            assert len(neighbours) <= 2
            others = [mixture.experts[j] for j in neighbours]
            lenders = torch.cat([other.rows[: int(other.own)] for other in others])
            assert set(expert.rows[own:].tolist()) <= set(lenders.tolist())
            assert len(expert.rows) - own == min(len(lenders), len(neighbours) * math.ceil(160 / 6))


def test_files_updates_and_held_out_rows_leave_the_variance_the_papers(case, model, toy, tmp_path):
    new, more, rows = toy(9, 6)[0], toy(30, 5), (case.inputs, case.targets)
    before = model.predict(new)
    model.save(tmp_path / "paper.trustgp")
    again = trustgp.load(tmp_path / "paper.trustgp", case.network).predict(new)
    assert torch.equal(again.variance, before.variance)
    assert torch.equal(before.corrected.variance, before.variance)
    assert torch.equal(before.plain.variance, before.variance)
    options = {"num_experts": 2, "progress": False}
    alone, validated = (trustgp.paper(case.network, rows, validation=v, **options) for v in (None, more))
    assert torch.equal(alone.predict(new).variance, validated.predict(new).variance)
    alone.update(more)
    grown = alone.predict(new)
    assert torch.equal(grown.variance, grown.plain.variance)
    assert not torch.equal(grown.variance, validated.predict(new).variance)


def test_pruning_is_left_out_where_there_is_little_to_prune(case):
    rows = case.inputs, case.targets
    found = trustgp.paper(case.network, rows, num_experts=2, progress=False)
    assert len(found.mixtures[0].tangents.kept) == len(flat_parameters(case.network))
    other = trustgp.paper(case.network, rows, num_experts=2, pruning=None, progress=False)
    variance, expected = (model.predict(rows[0]).variance for model in (found, other))
    torch.testing.assert_close(variance, expected, rtol=1e-6, atol=0)


def test_classes_are_cooled_by_a_variance_with_the_noise_inside(make_mlp, toy):
    network, (inputs, targets) = make_mlp(outputs=3), toy(90, seed=2)
    labels = (targets[:, 0] > 0).long() + (targets[:, 1] > 0).long()
    kind = trustgp.Classification()
    model = trustgp.paper(network, (inputs, labels), likelihood=kind, num_experts=1, progress=False)
    new = toy(8, seed=3)[0]
    jacobian, there = (dense_jacobian(network, rows) for rows in (inputs, new))
    residual, theta = newton_step(network(inputs).detach(), labels), flat_parameters(network)
    variances = []
    for c, mixture in enumerate(model.mixtures):
        (expert,) = mixture.experts
        s, noise = float(expert.scale), float(expert.noise)
        rows, here = jacobian[:, c], there[:, c]
        cross, eye = s * here @ rows.T, torch.eye(len(rows), dtype=torch.float64)
        explained = cross @ torch.linalg.inv(s * rows @ rows.T + noise * eye) * cross
        variances.append(s * here.square().sum(1) - explained.sum(1) + noise)
        aim = rows @ theta + residual[:, c]
        found = log_marginal_likelihood(rows @ rows.T, aim, s, noise / s)
        assert found > log_marginal_likelihood(rows @ rows.T, aim, 1.25 * s, noise / s / 1.25)
    cooled = (1 + math.pi / 8 * torch.stack(variances).mean(0)).sqrt()
    expected = (network(new) / cooled[:, None]).softmax(dim=1)
    torch.testing.assert_close(model.predict(new).probabilities, expected.detach(), rtol=1e-6, atol=1e-9)
