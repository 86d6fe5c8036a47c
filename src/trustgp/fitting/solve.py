"""Fit of one kernel's mixture: divide the rows, assign them to experts, solve the experts."""

from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch

from ..data.chunking import evenly
from ..data.user_warnings import add_note, warn_user
from ..executors import FitContext, WorkerLostError, nearby
from ..experts.expert import (
    MAX_LEAVE_OUT_ROWS,
    Problem,
    Solved,
    Task,
    agree_on_prior,
    prior_expert,
    retrained_errors,
    solve_expert,
)
from ..experts.gate import Partition
from ..experts.mixture import Mixture
from ..experts.neighbours import CANDIDATES, border_rows, lend_rows
from ..experts.stacked_system import solve_group, solved_together
from ..likelihoods import Likelihood
from ..math.evidence import FactorisationError
from ..math.held_out import CalibrationRows
from .divide import divide, empty_cuda_cache, precompute_features
from .leave_out import clusters_left_out
from .options import FitOptions
from .plan import Plan

JUDGED_EXPERTS = 8  # evenly spread, whose rows are left out one by one, where there are no groups


@dataclass(frozen=True)
class FittedMixture:
    """Fitted mixture of one kernel, with its partition and its solved experts."""

    mixture: Mixture
    partition: Partition
    solved: tuple[Solved, ...]
    lend: int  # rows from each neighbour
    far: CalibrationRows | None  # rows as predicted by experts further away


def fit_mixture(
    index: int, problem: Problem, plan: Plan, options: FitOptions, context: FitContext
) -> FittedMixture:
    """Fit kernel number `index`: divide the rows, assign them to experts, and solve the experts."""
    tangents, store = problem.tangents, context.store
    empty_cuda_cache(tangents.network.device)  # features of the previous kernel
    if plan.keep_features and problem.cached is None:
        features = precompute_features(tangents, problem.rows, context, mapped=plan.mapped)
        problem = replace(problem, cached=features)
    context.report.begin("dividing the rows")
    partition, bound = divide(problem, plan.num_experts, options, context)
    lend = lend_rows(options.patchwork, len(partition.nearest), plan.num_experts)
    tasks = judged_tasks(problem, make_tasks(partition, lend), partition, options.likelihood)
    if options.likelihood.common_prior:
        problem = replace(problem, prior=agree_on_prior(problem, tasks, context))
    stored = {} if store is None else store.finished(index, tasks, tangents)
    keep = None if store is None else partial(store.keep, index)
    solved = solve_tasks(problem, tasks, context, finished=stored, on_solved=keep, strict=options.strict)
    experts = tuple(result.expert for result in solved)
    mixture = Mixture(tangents, partition.gate, experts, problem.outputs, partition.neighbours, bound)
    far = clusters_left_out(problem, mixture, tasks)
    tangents.release_buffers()  # the next kernel needs the memory
    return FittedMixture(mixture, partition, tuple(solved), lend, far)


def make_tasks(partition: Partition, lend: int) -> list[Task]:
    """Task of each expert: its own rows, and candidates among its neighbours' rows, the nearest to the
    border, of which it borrows up to `lend` per neighbour."""
    centroids = partition.gate.centroids
    nearest, points = (tensor.to(centroids.device) for tensor in (partition.nearest, partition.points))
    sizes = torch.bincount(nearest, minlength=len(centroids)).tolist()
    order = nearest.argsort(stable=True)  # one sort for all: there may be millions of rows
    own, most = order.split(sizes), CANDIDATES * lend
    offered = [
        [border_rows(own[j], points, centroids[i], centroids[j], most) for j in neighbours]
        for i, neighbours in enumerate(partition.neighbours)
    ]
    lent = torch.cat([order[:0], *chain(*offered)]).cpu()  # one transfer from a GPU for all
    candidates = lent.split([sum(map(len, rows)) for rows in offered])
    own = order.cpu().split(sizes)
    parts = zip(own, candidates, offered, strict=True)  # cloned: each may be sent to a worker
    return [Task(rows.clone(), others.clone(), lend * len(lists)) for rows, others, lists in parts]


def judged_tasks(
    problem: Problem, tasks: list[Task], partition: Partition, likelihood: Likelihood
) -> list[Task]:
    """Mark the experts whose left-out rows calibrate the model: all with groups, else a few of them."""
    if not likelihood.leaves_out:
        return tasks
    filled, tasks = [i for i, task in enumerate(tasks) if len(task.own)], list(tasks)
    few = evenly(len(filled), JUDGED_EXPERTS if problem.groups is None else len(filled)).tolist()
    for i in (filled[k] for k in few):
        own = tasks[i].own
        around = torch.cat([own[:0], *(tasks[j].own for j in partition.neighbours[i])])
        around = around[evenly(len(around), max(0, MAX_LEAVE_OUT_ROWS - len(own)))]
        tasks[i] = replace(
            tasks[i], judged=True, around=own[:0] if problem.leave_out_tangents is None else around
        )
    return tasks


def solve_tasks(
    problem: Problem,
    tasks: list[Task],
    context: FitContext,
    *,
    finished: dict[int, Solved] | None = None,
    on_solved: Callable[[int, Solved], None] | None = None,
    strict: bool = False,
) -> list[Solved]:
    """Solve every task whose position is not in `finished`; an expert that cannot be solved predicts the
    prior, or raises an error if `strict`. `on_solved` is called with each new position and its result."""
    judged, kernel = [task for task in tasks if task.judged], problem.leave_out_tangents
    if len(judged) > 1 and kernel and all(len(t.own) + len(t.around) == len(problem.rows) for t in judged):
        errors = retrained_errors(problem, kernel, torch.arange(len(problem.rows)))
        problem = replace(problem, retrained=errors)  # every expert has all rows, with its neighbours
    solved: dict[int, Solved | FactorisationError] = dict(finished or {})
    done, todo = len(solved), [i for i in range(len(tasks)) if i not in solved]
    left = [replace(tasks[i], number=i) for i in todo]
    groups = solved_together(problem, left) if nearby(context.executor) is context.executor else []
    results = _all_results(problem, left, groups, context)
    counts = {"total": len(tasks), "done": done, "rows": lambda pair: len(tasks[todo[pair[0]]].own)}
    tracked = context.report.track(results, stage="solving the experts", **counts)
    with closing(results):  # an error below stops the workers at once
        for position, result in tracked:
            solved[todo[position]] = result
            if isinstance(result, FactorisationError):
                if strict:
                    raise FactorisationError(f"expert {todo[position]}: {result}") from result
            elif on_solved is not None:
                on_solved(todo[position], result)
    return _with_priors(tasks, solved)


def _all_results(
    problem: Problem, tasks: list[Task], groups: list[list[int]], context: FitContext
) -> Generator[tuple[int, Any], None, None]:
    """Yield positions and results: of groups that are solved together, then of the other tasks, one by one. A
    WorkerLostError names the experts without a result."""
    others, device = set(range(len(tasks))), problem.tangents.network.device
    moved = {name: getattr(problem, name).to(device) for name in ("residual", "outputs") if groups}
    for group in groups:
        with suppress(FactorisationError, torch.linalg.LinAlgError):  # pyright: ignore[reportPrivateImportUsage]
            results = solve_group(replace(problem, **moved), [tasks[i] for i in group])
            empty_cuda_cache(device)
            others.difference_update(group)  # else one by one, so that the failed one is known
            yield from zip(group, results, strict=True)
    positions = sorted(others)
    solve = partial(_solve_or_explain, problem)
    try:
        for place, result in context.executor.run(solve, [tasks[i] for i in positions]):
            empty_cuda_cache(device)
            yield positions[place], result
    except WorkerLostError as error:
        lost = ", ".join(str(tasks[positions[i]].number) for i in error.positions)
        add_note(error, f"Experts without a result: {lost}.")
        raise


def _solve_or_explain(problem: Problem, task: Task) -> Solved | FactorisationError:
    try:
        return solve_expert(problem, task)
    except (FactorisationError, torch.linalg.LinAlgError) as error:  # pyright: ignore[reportPrivateImportUsage]
        return FactorisationError(str(error))
    except Exception as error:
        add_note(error, f"This was in expert {task.number}, which has {len(task.own)} rows of its own.")
        raise


def _with_priors(tasks: list[Task], solved: dict[int, Solved | FactorisationError]) -> list[Solved]:
    """Replace failed experts by ones that predict the prior variance."""
    in_order = [solved[i] for i in range(len(tasks))]  # not as they finished: sums must not depend on that
    siblings = [r.expert for r in in_order if isinstance(r, Solved) and not r.expert.failed]
    failed = {i: r for i, r in enumerate(in_order) if isinstance(r, FactorisationError)}
    if failed:
        first = next(iter(failed.values()))
        if not siblings:
            raise FactorisationError(f"no expert could be solved: {first}") from first
        warn_user(
            f"experts {', '.join(map(str, failed))} could not be solved and answer with the prior variance "
            f"({first}). strict=True raises instead."
        )
    return [
        Solved(prior_expert(task, siblings), None) if isinstance(result, FactorisationError) else result
        for task, result in zip(tasks, in_order, strict=True)
    ]
