"""The stages between a kernel and its mixture: divide, hand out rows, solve."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .data import Rows, chunks
from .executors.base import Executor, WorkerLostError
from .experts import NO_COLUMNS, Problem, Solved, Task, chunk_rows, features_at, prior_expert, solve_expert
from .gating import Division, Gate, find_centroids, make_projection, nearest_two
from .math.evidence import FactorisationError
from .math.kernel_pca import mass_between
from .patchwork import Patchwork, border_rows, neighbour_lists
from .progress import Reporter
from .tangents.base import Features, TangentMap

NO_CAP = 2**62  # own rows of an expert without a budget
EXACT_BOUND = 2048  # rows up to which the bound of the division is computed exactly
SPARE = 2 * 2**30  # bytes that torch may keep on a GPU for later, while experts are solved
CANDIDATES = 2  # border rows offered for each row that is lent


@dataclass(frozen=True)
class Partition:
    """Which expert each training row belongs to.

    Args:
        gate: Made the partition.
        points: Components of each row, shape [n, q], on the CPU.
        nearest: Expert of each row, shape [n].
        neighbours: Of each expert.
    """

    gate: Gate
    points: Tensor
    nearest: Tensor
    neighbours: tuple[tuple[int, ...], ...]

    def extend(self, points: Tensor) -> Partition:
        """The partition with further rows, whose components are given; the experts stay as they are."""
        nearest = nearest_two(points, self.gate.centroids)[0].cpu()
        return replace(
            self, points=torch.cat([self.points, points.cpu()]), nearest=torch.cat([self.nearest, nearest])
        )


@dataclass(frozen=True)
class Handout:
    """How many rows an expert may hold.

    Args:
        cap: Of its own.
        lend: From each neighbour.
    """

    cap: int
    lend: int


def know_features(tangents: TangentMap, rows: Rows, executor: Executor, report: Reporter) -> Features:
    """Features of all rows, made once, chunk by chunk."""
    parts = list(chunks(len(rows), chunk_rows(tangents)))

    @torch.no_grad()
    def make(index: Tensor) -> Features:
        return features_at(tangents, rows, index, NO_COLUMNS, None)

    table: dict[str, Tensor] = {}
    results = report.track(
        executor.run(make, parts),
        stage="making the features",
        total=len(parts),
        rows=lambda found: len(parts[found[0]]),
    )
    for place, found in results:  # written to their places as they come: they stand there once only
        for name, value in found.tensors().items():
            whole = table.setdefault(name, value.new_empty(len(rows), *value.shape[1:]))
            whole[parts[place].to(value.device)] = value
    return tangents.kind.from_tensors(table)


def know_linear(tangents: TangentMap, rows: Rows, report: Reporter) -> Tensor | None:
    """J theta of all rows, [n, C], float64, made once; None where experts choose columns of their own.

    Not in the workers: torch has forward mode in one thread at a time, which may use all cores.
    """
    if tangents.width(expert=True) != tangents.width(expert=False):
        return None
    direction, network = tangents.direction(NO_COLUMNS), tangents.network
    parts = list(chunks(len(rows), network.pass_rows(rows.inputs)))
    tracked = report.track(parts, stage="linearising", total=len(parts), rows=len)
    return torch.cat([network.directional(rows.take(index), direction).double() for index in tracked])


def embed_rows(
    tangents: TangentMap,
    gate: Gate,
    rows: Rows,
    executor: Executor,
    report: Reporter,
    known: Features | None = None,
) -> Tensor:
    """Components of all rows, shape [n, q], chunk by chunk."""
    parts = list(chunks(len(rows), chunk_rows(tangents)))

    @torch.no_grad()
    def embed(index: Tensor) -> Tensor:
        return gate.embed(features_at(tangents, rows, index, NO_COLUMNS, known))

    results = report.track(
        executor.run(embed, parts),
        stage="dividing the rows",
        total=len(parts),
        rows=lambda found: len(parts[found[0]]),
    )
    found = dict(results)
    return torch.cat([found[i] for i in range(len(parts))])


def divide(
    tangents: TangentMap,
    rows: Rows,
    num_experts: int,
    *,
    division: Division,
    patchwork: Patchwork,
    seed: int,
    executor: Executor,
    report: Reporter,
    known: Features | None = None,
) -> tuple[Partition, Tensor]:
    """The partition of the rows, and the bound of the approximation it brings."""
    generator = torch.Generator().manual_seed(seed)
    size = division.subset_size(len(rows), num_experts)
    subset = torch.randperm(len(rows), generator=generator)[:size].sort().values
    device = tangents.network.device
    single = Gate(None, torch.zeros(1, 0, dtype=torch.float64, device=device))

    def alone() -> tuple[Partition, Tensor]:
        zeros = torch.zeros(len(rows), 0, dtype=torch.float64, device=device)
        return _partition(single, zeros, patchwork), torch.zeros((), dtype=torch.float64)

    if num_experts == 1:
        return alone()
    give_back(device)

    @torch.no_grad()
    def project(index: Tensor):
        features = features_at(tangents, rows, index, NO_COLUMNS, known)
        _require_finite_gradients(features.diag(), index)
        projection = make_projection(features, division.components)
        return projection, projection(features)

    ((_, (projection, subset_points)),) = executor.run(project, [subset])
    if subset_points.shape[1] == 0:  # the rows do not differ: there is nothing to divide them by
        return alone()
    gate = Gate(projection, single.centroids)
    points = embed_rows(tangents, gate, rows, executor, report, known)
    give_back(device)
    _require_finite_gradients(points.sum(dim=1), torch.arange(len(rows)))
    centroids = find_centroids(subset_points, points, num_experts, seed=seed)
    partition = _partition(Gate(projection, centroids), points, patchwork)
    return partition, _bound(tangents, rows, partition.nearest, generator, executor, known)


def _require_finite_gradients(values: Tensor, rows: Tensor) -> None:
    """Raise where a row's kernel is NaN or infinite: it could not be assigned to any expert."""
    bad = rows[~torch.isfinite(values).cpu()]
    if len(bad):
        raise FactorisationError(
            f"the network's gradients overflow in {len(bad)} of {len(rows)} training rows, "
            f"first in row {int(bad[0])}; scale the inputs, or drop these rows."
        )


def _partition(gate: Gate, points: Tensor, patchwork: Patchwork) -> Partition:
    nearest, second = (labels.cpu() for labels in nearest_two(points, gate.centroids))
    lists = neighbour_lists(nearest, second, gate.centroids.cpu(), patchwork.neighbours)
    return Partition(gate, points.cpu(), nearest, tuple(map(tuple, lists)))


def _bound(
    tangents: TangentMap,
    rows: Rows,
    labels: Tensor,
    generator: torch.Generator,
    executor: Executor,
    known: Features | None,
) -> Tensor:
    """Share of squared kernel mass between experts: exact for few rows, else on a random subset."""
    limit = EXACT_BOUND if len(rows) <= EXACT_BOUND else 512
    sample = torch.randperm(len(rows), generator=generator)[:limit].sort().values

    @torch.no_grad()
    def measure(index: Tensor) -> Tensor:
        features = features_at(tangents, rows, index, NO_COLUMNS, known)
        gram = features.gram(features)
        return mass_between(gram, labels[index].to(gram.device)).cpu()

    ((_, bound),) = executor.run(measure, [sample])
    return bound


def give_back(device: torch.device) -> None:
    """Memory that torch keeps on a GPU in pieces that fit no other expert."""
    if device.type == "cuda":
        spare = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if spare > SPARE:
            torch.cuda.empty_cache()


def make_tasks(partition: Partition, handout: Handout) -> list[Task]:
    """The rows of each expert: its own, and its neighbours' nearest to the border."""
    centroids = partition.gate.centroids
    nearest, points = (tensor.to(centroids.device) for tensor in (partition.nearest, partition.points))
    sizes = torch.bincount(nearest, minlength=len(centroids)).tolist()
    own = nearest.argsort(stable=True).split(sizes)  # in one go: there may be millions of rows
    tasks = []
    for expert, neighbours in enumerate(partition.neighbours):
        offered = [
            border_rows(own[j], points, centroids[expert], centroids[j], CANDIDATES * handout.lend)
            for j in neighbours
        ]
        candidates = torch.cat([NO_COLUMNS, *(rows.cpu() for rows in offered)])
        tasks.append(Task(own[expert].cpu(), candidates, handout.cap, handout.lend * len(neighbours)))
    return tasks


def lend_rows(patchwork: Patchwork, n: int, num_experts: int) -> int:
    """Rows from each neighbour: a share of an average expert."""
    return math.ceil(patchwork.fraction * n / num_experts) if patchwork.neighbours else 0


def solve_tasks(
    problem: Problem,
    tasks: list[Task],
    *,
    executor: Executor,
    report: Reporter,
    finished: dict[int, Solved],
    on_solved: Callable[[int, Solved], None],
    strict: bool,
) -> list[Solved]:
    """Solve every task that is not yet finished; one that cannot be solved answers with the prior.

    Args:
        finished: Results that are already there, by position.
        on_solved: Called with each new result as it comes.
        strict: Raise on the first expert that cannot be solved.
    """
    todo = [i for i in range(len(tasks)) if i not in finished]
    found: dict[int, Solved | FactorisationError] = dict(finished)
    solve = partial(_solve_or_explain, problem)
    results = _named(executor.run(solve, [replace(tasks[i], number=i) for i in todo]), todo)
    tracked = report.track(
        results,
        stage="solving the experts",
        total=len(tasks),
        done=len(finished),
        rows=lambda found: len(tasks[todo[found[0]]].own),
    )
    with closing(results):  # an error below stops the workers at once
        for position, result in tracked:
            give_back(problem.tangents.network.device)
            found[todo[position]] = result
            if isinstance(result, FactorisationError):
                if strict:
                    raise FactorisationError(f"expert {todo[position]}: {result}") from result
            else:
                on_solved(todo[position], result)
    return _with_priors(tasks, found)


def _solve_or_explain(problem: Problem, task: Task) -> Solved | FactorisationError:
    try:
        return solve_expert(problem, task)
    except (FactorisationError, torch.linalg.LinAlgError) as error:  # pyright: ignore[reportPrivateImportUsage]
        return FactorisationError(str(error))
    except Exception as error:
        error.add_note(f"This was in expert {task.number}, which has {len(task.own)} rows of its own.")
        raise


def _named(results: Iterator[tuple[int, Any]], todo: list[int]) -> Generator[tuple[int, Any], None, None]:
    """The results; where workers were lost, the error says which experts are without one."""
    try:
        yield from results
    except WorkerLostError as error:
        error.add_note(f"Experts without a result: {', '.join(str(todo[i]) for i in error.positions)}.")
        raise


def _with_priors(tasks: list[Task], found: dict[int, Solved | FactorisationError]) -> list[Solved]:
    """Replace what could not be solved by experts that answer with the prior variance."""
    in_order = [found[i] for i in sorted(found)]  # they come as they finish; sums must not depend on it
    siblings = [r.expert for r in in_order if isinstance(r, Solved) and not r.expert.failed]
    failed = {i: r for i, r in sorted(found.items()) if isinstance(r, FactorisationError)}
    if failed and not siblings:
        first = next(iter(failed.values()))
        raise FactorisationError(f"no expert could be solved: {first}") from first
    if failed:
        names = ", ".join(map(str, failed))
        warnings.warn(
            f"experts {names} could not be solved and answer with the prior variance "
            f"({next(iter(failed.values()))}). strict=True raises instead.",
            stacklevel=2,
        )
    solved = []
    for i, task in enumerate(tasks):
        result = found[i]
        solved.append(
            Solved(prior_expert(task, siblings), None) if isinstance(result, FactorisationError) else result
        )
    return solved
