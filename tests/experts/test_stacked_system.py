"""Experts that are solved together are those that are solved one by one."""

from dataclasses import replace

import pytest
import torch

from trustgp.data.rows import Rows
from trustgp.executors import FitContext, Threads
from trustgp.experts import stacked_system
from trustgp.experts.expert import Problem, Task, solve_expert
from trustgp.experts.features import NO_COLUMNS, features_at
from trustgp.experts.stacked_system import group_bytes, solve_group, solved_together
from trustgp.fitting.solve import solve_tasks
from trustgp.math.evidence import Prior
from trustgp.tangents import JacobianRows, Sketch
from trustgp.tangents.network import prepare

N, WIDTH = 160, 16
PRIOR = Prior(tau=torch.tensor(0.3, dtype=torch.float64), scale=torch.tensor(1.7, dtype=torch.float64))


def problem_of(case, tangents, mix, **options):
    rows = Rows(case.inputs, case.targets)
    network = prepare(case.network, tangents.choose(case.network), None)
    bound = tangents.bind(network, mix, case.inputs[:64], case.targets[:64])
    every = torch.arange(len(rows))
    with torch.no_grad():
        residual = case.targets.double() - case.network(case.inputs).double()
    cached = features_at(bound, rows, every, NO_COLUMNS, None)
    return Problem(rows, bound, torch.arange(2), residual, None, cached=cached, **options)


def tasks_of(sizes=(40, 55, 31, 34)) -> list[Task]:
    own, around = torch.arange(N).split(sizes), torch.arange(N).flip(0)
    return [Task(rows, around[: 8 + i], 5 + i) for i, rows in enumerate(own)]


KINDS = {
    "sketch": (Sketch(WIDTH), torch.ones(1, 2, dtype=torch.float64)),
    "gradients of each output": (JacobianRows("last", keep=8), torch.eye(2, dtype=torch.float64)),
}


@pytest.mark.parametrize("rank", [None, 6])
@pytest.mark.parametrize("prior", [None, PRIOR], ids=["own prior", "common prior"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_expert_of_a_group_is_the_one_that_is_solved_alone(case, monkeypatch, kind, prior, rank):
    monkeypatch.setattr(stacked_system, "LOT_BYTES", 2 * 8 * WIDTH * 64)  # two experts in a lot
    problem = problem_of(case, *KINDS[kind], prior=prior, rank=rank)
    tasks = tasks_of()
    for task, solved in zip(tasks, solve_group(problem, tasks), strict=True):
        alone, together = solve_expert(problem, task).expert, solved.expert
        assert torch.equal(alone.rows, together.rows)
        for name in ("own", "scale", "noise", "kappa", "jitter"):
            torch.testing.assert_close(getattr(together, name), getattr(alone, name), rtol=1e-9, atol=0)
        features = problem.cached.take(torch.arange(0, N, 7))
        moments = [one.posterior(features) for one in (together, alone)]
        assert together.posterior.directions == alone.posterior.directions
        for name in ("unit", "prior", "residual_mean"):
            pair = [getattr(one, name) for one in moments]
            torch.testing.assert_close(*pair, rtol=1e-8, atol=1e-10)


def test_only_experts_of_more_rows_than_columns_on_a_gpu_are_solved_together(case, monkeypatch):
    problem = problem_of(case, *KINDS["sketch"])
    tasks = tasks_of((100, 30, 10, 20))
    assert solved_together(problem, tasks) == []
    monkeypatch.setattr(stacked_system, "DEVICES", ("cpu",))
    assert solved_together(problem, tasks) == [[3, 1, 0]]  # the fewest rows first
    assert solved_together(problem, [replace(task, judged=True) for task in tasks]) == []
    assert solved_together(replace(problem, cached=None), tasks) == []
    assert group_bytes(512) < 4 * 2**30


def test_where_an_expert_of_a_group_fails_the_others_are_solved(case, report, monkeypatch):
    monkeypatch.setattr(stacked_system, "DEVICES", ("cpu",))
    problem, tasks = problem_of(case, *KINDS["sketch"]), tasks_of()
    problem.cached.rows[45] = torch.inf  # of the second
    tasks = [replace(task, borrowed=0) for task in tasks]
    with pytest.warns(UserWarning, match="experts 1 could not be solved"):
        solved = solve_tasks(problem, tasks, FitContext(torch.device("cpu"), 0, Threads(1), report))
    assert [one.expert.failed for one in solved] == [False, True, False, False]
