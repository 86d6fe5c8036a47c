"""Clusters of rows that are left out, against dense GPs that are fitted again without them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import reference
import torch
from reference import posterior_mean, posterior_variance, relative_sizes

from trustgp import LayerFactors
from trustgp.data.rows import Rows
from trustgp.experts.expert import Problem
from trustgp.fitting import leave_out as module
from trustgp.fitting.leave_out import clusters_left_out
from trustgp.fitting.solve import judged_tasks, make_tasks
from trustgp.likelihoods import Regression
from trustgp.math.evidence import maximise_evidence


@pytest.fixture(scope="module")
def model(fit_case):
    return fit_case(num_experts=5, tangents=LayerFactors(), witness=None, budget="none")


@pytest.fixture(scope="module")
def dense(case, model):
    """What a fit works with, dense."""
    jacobian = reference.dense_jacobian(case.network, case.inputs)
    residual = case.targets - case.network(case.inputs).detach()
    gram = reference.dense_gram(jacobian, model.mixtures[0].tangents.mix)
    targets = jacobian @ reference.flat_parameters(case.network) + residual
    return SimpleNamespace(gram=gram, amplitude=relative_sizes(jacobian), residual=residual, targets=targets)


def owned(model) -> list[torch.Tensor]:
    nearest = model.memory.partitions[0].nearest
    return [(nearest == i).nonzero().flatten() for i in range(len(model.mixtures[0].experts))]


def by_distance(model, number: int) -> list[int]:
    centroids = model.mixtures[0].gate.centroids
    distances = [float((centroids[number] - c).norm()) for c in centroids]
    return sorted((i for i in range(len(centroids)) if i != number), key=distances.__getitem__)


def left_out(dense, model, number: int, ranks) -> list[dict[str, torch.Tensor]]:
    """The rows of one expert, as several others see them, each GP fitted again."""
    own, nearest = owned(model), by_distance(model, number)
    others = [nearest[rank - 1] for rank in ranks if rank <= len(nearest)]
    rows = torch.cat([own[i] for i in (number, *others)])
    tau = float(maximise_evidence(dense.gram[rows][:, rows], dense.targets[rows]).tau)
    found, gone = [], []
    for place, other in enumerate(others):
        gone.append(own[(number, *others)[place]])
        rest = rows[~torch.isin(rows, torch.cat(gone))]
        expert = model.mixtures[0].experts[other]
        new = torch.tensor([i for i in own[number].tolist() if i not in set(expert.rows.tolist())])
        gram, cross = dense.gram[rest][:, rest], dense.gram[new][:, rest]
        errors = dense.targets[new] - posterior_mean(gram, cross, dense.targets[rest], tau)
        seen = expert.rows
        gram, cross = dense.gram[seen][:, seen], dense.gram[new][:, seen]
        ratio = float(expert.noise[0] / (expert.scale * dense.amplitude[seen].mean(dim=0))[0])
        shift = posterior_mean(gram, cross, dense.residual[seen], ratio)
        prior = dense.gram.diagonal()[new]
        unit = posterior_variance(gram, cross, prior, ratio)
        found.append(
            {
                "residual": (errors + shift).flatten(),
                "residual_mean": shift.flatten(),
                "epistemic": (unit[:, None] * dense.amplitude[new] * expert.scale).flatten(),
                "noise": expert.noise.repeat(len(new)),
                "novelty": (unit / prior).repeat_interleave(2),
                "log_kappa": model.mixtures[0].log_kappa[other].repeat(len(new)),
                "output": torch.arange(2).repeat(len(new)),
                "witness_precision": torch.zeros(2 * len(new), dtype=torch.float64),
            }
        )
    return found


def test_rows_of_left_out_clusters_are_those_of_a_network_trained_without_them(dense, model):
    wanted = [i for i, rows in enumerate(owned(model)) if len(rows) >= module.MIN_CLUSTER_ROWS]
    assert 3 <= len(wanted) <= module.MAX_CLUSTERS
    assert max(map(len, owned(model))) <= module.MAX_ROWS
    parts = [part for number in wanted for part in left_out(dense, model, number, module.DISTANCE_RANKS)]
    assert len(parts) > len(wanted)  # each as several others see it
    for name in parts[0]:
        expected = torch.cat([part[name] for part in parts])
        found = getattr(model.memory.far, name)
        assert found.shape == expected.shape, name
        # inverses of matrices with a condition of up to 1e8, in both
        atol = 1e-6 * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=atol, msg=name)


def again(case, model, monkeypatch=None, **changes):
    """What is said of clusters with some of it changed."""
    residual = case.targets - case.network(case.inputs).detach()
    mixture, partition = model.mixtures[0], model.memory.partitions[0]
    problem = Problem(Rows(case.inputs, case.targets), mixture.tangents, mixture.outputs, residual, None)
    tasks = judged_tasks(problem, make_tasks(partition, model.origin.lend[0]), partition, Regression())
    for name, value in changes.items():
        monkeypatch.setattr(module, name, value)
    return problem, mixture, tasks


def test_only_some_rows_of_few_clusters_are_looked_at(case, model, monkeypatch):
    few = {"MAX_ROWS": 10, "MAX_CLUSTERS": 2, "DISTANCE_RANKS": (1,)}
    found = clusters_left_out(*again(case, model, monkeypatch, **few))
    assert 0 < len(found) <= 2 * 2 * 10
    whole = clusters_left_out(*again(case, model, monkeypatch, MAX_ROWS=1000, DISTANCE_RANKS=(1,)))
    assert len(found) < len(whole)


def test_clusters_that_are_small_or_not_judged_or_alone_say_nothing(case, fit_case, model, monkeypatch):
    problem, mixture, tasks = again(case, model)
    assert clusters_left_out(problem, mixture, [replace(task, judged=False) for task in tasks]) is None
    assert fit_case(num_experts=1, witness=None).memory.far is None
    assert clusters_left_out(*again(case, model, monkeypatch, MIN_CLUSTER_ROWS=1000)) is None
