from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from reference import dense_gram, dense_jacobian, mass_between_by_loops

from trustgp.data.rows import Rows
from trustgp.executors import FitContext, Threads
from trustgp.experts import gate as gate_module
from trustgp.experts.expert import Problem
from trustgp.experts.neighbours import CANDIDATES, MIN_BORROWED, Patchwork, lend_rows
from trustgp.fitting import divide as divide_module
from trustgp.fitting import solve as solving
from trustgp.fitting.divide import divide, embed_rows
from trustgp.fitting.options import FitOptions
from trustgp.fitting.solve import JUDGED_EXPERTS, judged_tasks, make_tasks
from trustgp.likelihoods import Classification, Regression
from trustgp.tangents import LayerFactors, output_mixes
from trustgp.tangents.network import prepare


def bound_map(case):
    mix, _ = output_mixes("shared", 2, torch.Generator())[0]
    return LayerFactors().bind(prepare(case.network, "all", None), mix, case.inputs[:4], case.targets[:4])


def context_of(report):
    return FitContext(torch.device("cpu"), 0, Threads(2), report)


def problem_of(case, **options) -> Problem:
    residual = case.targets - case.network(case.inputs).detach()
    rows = Rows(case.inputs, case.targets)
    return Problem(rows, bound_map(case), torch.arange(2), residual, **{"groups": None, **options})


def divided(case, report, experts, seed=0):
    return divide(problem_of(case), experts, FitOptions(), replace(context_of(report), seed=seed))


def test_a_partition_keeps_the_components_of_its_rows(case, report):
    partition, _ = divided(case, report, 5)
    points = embed_rows(bound_map(case), partition.gate, Rows(case.inputs, case.targets), context_of(report))
    torch.testing.assert_close(partition.points, points, rtol=1e-10, atol=1e-10)
    for i in range(0, 160, 13):
        distances = [float((points[i] - c).norm()) for c in partition.gate.centroids]
        assert int(partition.nearest[i]) == distances.index(min(distances))


@pytest.mark.parametrize(("experts", "clustered"), [(4, 32), (10, 80)])
def test_of_many_experts_the_k_means_has_more_rows_than_the_gate_holds(
    case, report, monkeypatch, experts, clustered
):
    monkeypatch.setattr(gate_module, "SUBSET", 32)
    seen = []

    def find_centroids(subset, points, *rest, **options):
        seen.append((subset, points))
        return gate_module.find_centroids(subset, points, *rest, **options)

    monkeypatch.setattr(divide_module, "find_centroids", find_centroids)
    partition, _ = divided(case, report, experts)
    ((subset, points),) = seen
    assert len(partition.gate.projection.features) == 32
    assert len(subset) == clustered
    rows = torch.randperm(160, generator=torch.Generator().manual_seed(0))[:clustered].sort().values
    torch.testing.assert_close(subset, points[rows], rtol=1e-10, atol=1e-10)


def test_the_bound_of_many_rows_is_right_on_average(case, report, monkeypatch):
    gram = dense_gram(dense_jacobian(case.network, case.inputs), torch.eye(2).double() / 2**0.5)
    monkeypatch.setattr(divide_module, "EXACT_BOUND_ROWS", 100)  # now 160 rows are many
    monkeypatch.setattr(divide_module, "SAMPLED_BOUND_ROWS", 20)
    off = []
    for seed in range(20):
        partition, estimate = divided(case, report, 16, seed=seed)
        off.append(float(estimate) - mass_between_by_loops(gram, partition.nearest))
    assert max(map(abs, off)) > 0.0
    assert abs(sum(off) / len(off)) < 0.02


def test_borrowed_rows_lie_on_the_border_and_the_nearest_are_offered(case, report):
    partition, _ = divided(case, report, 5)
    tasks = make_tasks(partition, 3)
    assert any(len(task.candidates) for task in tasks)
    for expert, task in enumerate(tasks):
        assert not set(task.own.tolist()) & set(task.candidates.tolist())
        assert len(set(task.candidates.tolist())) == len(task.candidates)
        expected = []
        for neighbour in partition.neighbours[expert]:
            here, there = partition.gate.centroids[expert], partition.gate.centroids[neighbour]
            rows = (partition.nearest == neighbour).nonzero().flatten().tolist()
            excess = (partition.points - here).norm(dim=1) - (partition.points - there).norm(dim=1)
            expected += sorted(rows, key=excess.tolist().__getitem__)[: 3 * CANDIDATES]
        assert sorted(task.candidates.tolist()) == sorted(expected)
        assert task.borrowed == 3 * len(partition.neighbours[expert])


def test_without_groups_a_few_experts_evenly_spread_are_judged_and_with_groups_all(case, report):
    partition, _ = divided(case, report, 20)
    tasks = make_tasks(partition, 3)
    alone, grouped = problem_of(case), problem_of(case, groups=torch.arange(160) // 8)
    few = [task.judged for task in judged_tasks(alone, tasks, partition, Regression())]
    assert len(few) >= 20
    assert sum(few) == JUDGED_EXPERTS
    assert (few[0], few[-1]) == (True, True)
    places = [i for i, one in enumerate(few) if one]
    steps = [after - before for before, after in pairwise(places)]
    assert max(steps) - min(steps) <= 1
    assert all(task.judged for task in judged_tasks(grouped, tasks, partition, Regression()))
    others = judged_tasks(alone, tasks, partition, Classification())
    assert not any(task.judged for task in others)
    assert not any(task.judged for task in tasks)  # these are as they were
    tasks[1] = replace(tasks[1], own=tasks[1].own[:0])
    assert [task.judged for task in judged_tasks(grouped, tasks, partition, Regression())].index(False) == 1


def test_rows_around_are_the_neighbours_own_as_many_as_there_is_room_for(case, report, monkeypatch):
    partition, _ = divided(case, report, 5)
    plain = judged_tasks(problem_of(case), make_tasks(partition, 3), partition, Regression())
    assert all(len(task.around) == 0 for task in plain)  # only where there is a kernel for it
    problem = problem_of(case, leave_out_tangents=bound_map(case))
    for most in (1000, 60):
        monkeypatch.setattr(solving, "MAX_LEAVE_OUT_ROWS", most)
        tasks = judged_tasks(problem, make_tasks(partition, 3), partition, Regression())
        for expert, task in enumerate(tasks):
            beside = torch.isin(partition.nearest, torch.tensor(partition.neighbours[expert])).nonzero()
            assert set(task.around.tolist()) <= set(beside.flatten().tolist())
            assert len(task.around) == max(0, min(len(beside), most - len(task.own)))


@pytest.mark.parametrize(
    ("patchwork", "n", "rows"),
    [
        (Patchwork(4, 0.1), 1000, 10),
        (Patchwork(4, 0.1), 95, 1),
        (Patchwork(0, 0.1), 1000, 0),
        (Patchwork(), 10_000, 100),
        (Patchwork(), 1000, MIN_BORROWED),
        (Patchwork(), 95, 10),  # all that an average one has
        (Patchwork(neighbours=0), 1000, 0),
    ],
)
def test_lent_rows_are_a_share_of_an_average_expert_of_ten(patchwork, n, rows):
    assert lend_rows(patchwork, n, 10) == rows
