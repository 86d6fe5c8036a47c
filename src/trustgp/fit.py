"""`trustgp.fit`: the only file that knows the order of the stages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from .budget import (
    OVERHEAD,
    FromTheStart,
    gate_bytes,
    handout_for_budget,
    parse_budget,
    parse_bytes,
    size_text,
)
from .calibrating import Training, calibrated
from .checkpoint import Checkpoint
from .data import Rows, read_rows
from .ending import explaining
from .executors import Executor, Threads, nearby, usual_threads
from .experts import Problem, Solved
from .fingerprint import tensor_fingerprint
from .gating import Division
from .holding import hold_out, some_rows
from .likelihoods import Likelihood, Regression
from .mixture import Mixture
from .model import Origin, UncertaintyModel
from .origins import checkpoint_settings, make_origin
from .patchwork import Patchwork
from .plan import Plan
from .preparing import (
    Prepared,
    check_groups,
    find_blends,
    make_problems,
    outputs_text,
    prepare_network,
    residual_of,
    warn_time_series,
)
from .priors import agree_on_prior
from .progress import Reporter, reporting
from .settling import Wanted, plan_that_fits
from .solving import (
    NO_CAP,
    Handout,
    Partition,
    divide,
    know_features,
    know_linear,
    lend_rows,
    make_tasks,
    solve_tasks,
)
from .tangents import Tangents
from .tangents.base import TangentMap
from .tangents.picking import Output, is_picked
from .witness import Witness, WitnessState
from .witnessing import Court, find_witness

WITHIN = "within"  # in the folder of a checkpoint: experts that were limited from the start

if TYPE_CHECKING:
    from .detection import Detection, DetectionModel


@overload
def fit(
    network: nn.Module,
    train: Any,
    *,
    likelihood: Likelihood | None = None,
    validation: Any = None,
    groups: Any = None,
    num_experts: int | None = None,
    tangents: Tangents | None = None,
    outputs: str | None = None,
    output: Output | None = None,
    patchwork: Patchwork | None = None,
    division: Division | None = None,
    witness: Witness | None = Witness(),  # noqa: B008 - frozen
    budget: int | str | Sequence[int | str] | None = None,
    memory: int | str | None = None,
    executor: Executor | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    strict: bool = False,
) -> UncertaintyModel: ...
@overload
def fit(
    network: nn.Module,
    train: Any,
    *,
    likelihood: Detection,
    validation: Any = None,
    num_experts: int | None = None,
    patchwork: Patchwork | None = None,
    division: Division | None = None,
    budget: int | str | None = None,
    memory: int | str | None = None,
    executor: Executor | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    strict: bool = False,
) -> DetectionModel: ...
def fit(
    network: nn.Module,
    train: Any,
    *,
    likelihood: Likelihood | Detection | None = None,
    validation: Any = None,
    groups: Any = None,
    num_experts: int | None = None,
    tangents: Tangents | None = None,
    outputs: str | None = None,
    output: Output | None = None,
    patchwork: Patchwork | None = None,
    division: Division | None = None,
    witness: Witness | None = Witness(),  # noqa: B008 - frozen
    budget: int | str | Sequence[int | str] | None = None,
    memory: int | str | None = None,
    executor: Executor | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    strict: bool = False,
) -> UncertaintyModel | DetectionModel:
    """Give a trained network an honest error bar. The network, the loader and the tensors stay as they are.

    Args:
        network: Trained `torch.nn.Module`, in eval mode, that maps rows to [n] or [n, C].
        train: The rows it was trained on: (inputs, targets), a Dataset, a DataLoader, an iterable of batches.
        likelihood: What the targets are: `Regression()`, which None stands for, or `Classification()`.
            For a detector `Detection()`, which is no likelihood but the settings of a fit to its queries:
            `train` and `validation` are then pictures with `Things`; `groups`, `tangents`, `output`,
            `outputs` and `witness` are refused; a `DetectionModel` comes back.
        validation: Rows it was not trained on: the size of the error bar is fitted to them. Without them,
            `Classification()` keeps a tenth of the training rows from the experts for that.
        groups: Trajectory of each training row, shape [n]: left out together in calibration.
        num_experts: None: about 1,000 rows each.
        tangents: `LayerFactors()`, `JacobianRows(...)` or `Sketch(...)`; None: chosen from the network.
        outputs: "shared", "separate" or "pseudo": how several outputs enter the kernel. None: "shared" for
            regression, "pseudo", whose cost does not grow with the classes, for classification.
        output: Picks the tensor [n] or [n, C] from what the network returns, where that is a tuple, a dict or
            an object: `lambda result: result.logits`. None: the network returns it.
        patchwork: How many neighbours lend how many rows; None: `Patchwork(neighbours=4, fraction=0.1)`.
        division: How the rows are divided; None: `Division()`.
        witness: A second opinion from the inputs themselves, where they are vectors; None: without.
        budget: The most the fitted model may hold: bytes, or a text like "64 MiB". Or the most time that a
            prediction for one row may take on this machine, "2 ms", or both, "64 MiB, 2 ms". With validation
            rows the model is fitted without a limit, where the memory allows it, and `trustgp.tune` finds its
            best form within the budget; else each expert holds the rows that say most.
        memory: The most the fit itself may need; None: what is free.
        executor: Where experts are solved: `Threads(...)`, `executors.Processes(...)`, `executors.Ray(...)`;
            None: threads, one per core (two on a GPU), or a single one where the memory is short.
        device: Where to work; None: where the network is.
        seed: The same seed gives the same model.
        progress: Whether to show bars in a terminal.
        checkpoint: A folder; finished experts are kept there, and the same call goes on after a crash.
        strict: Raise when an expert cannot be solved, instead of letting it answer with the prior.
    """
    said = dict(locals())  # every option, by name
    from .detection import Detection, fit_detector  # which fits

    if isinstance(likelihood, Detection):
        return fit_detector(settings=said.pop("likelihood"), **said)
    likelihood = likelihood or Regression()
    patchwork, division = patchwork or Patchwork(), division or Division()
    most_allowed = parse_budget(budget, name="budget")
    timed = most_allowed.seconds is not None
    if timed and validation is None:
        raise ValueError(
            f"budget={budget!r} names a time: pass validation=, rows on which forms are compared."
        )
    limit = None if timed else most_allowed.size
    most = None if memory is None else parse_bytes(memory, name="memory")
    rows = read_rows(train, name="train")
    held = None if validation is None else read_rows(validation, name="validation")
    if limit is not None and held is not None and not isinstance(budget, FromTheStart):
        from .tuning import best_form  # which fits

        if (best := best_form({**said, "train": rows, "validation": held})) is not None:
            return best
        checkpoint = None if checkpoint is None else Path(checkpoint) / WITHIN
    labels = check_groups(groups, rows)
    outputs = likelihood.default_outputs if outputs is None else outputs
    witness = witness if likelihood.heard else None
    ready = prepare_network(
        network,
        rows,
        likelihood=likelihood,
        tangents=tangents,
        outputs=outputs,
        output=output,
        device=device,
        seed=seed,
    )
    if held is not None:
        likelihood.check(ready.num_outputs, held.targets, name="validation")
    usual = [usual_threads(ready.network.device), Threads(1)] if executor is None else [executor]
    executor = usual[0]
    blends = find_blends([tangent_map.mix for tangent_map, _ in ready.maps], likelihood, seed)
    with reporting(enabled=progress) as report, ExitStack() as stack:
        residuals = residual_of(
            ready.network, likelihood, rows, executor, report, name="train", blends=blends
        )
        if held is not None:
            residual_of(ready.network, likelihood, held, executor, report, name="validation", blends=blends)
        report.begin("planning")
        given = _given(rows, residuals, held, labels, likelihood, seed)
        rows = given.rows
        learnt = ready.num_outputs if not blends else len(blends)
        wanted = Wanted(num_experts, division, patchwork, witness, limit, most, learnt)
        executor, plan, keep = plan_that_fits(ready, rows, wanted, usual)
        _say(report, plan, rows, ready, outputs)
        if given.validation is None and labels is None:
            warn_time_series(rows, seed)
        origin = make_origin(ready, rows, given.groups, outputs, likelihood, seed, witness, given.split)
        settings = checkpoint_settings(origin, plan, patchwork, division, limit)
        if is_picked(ready.network.module):  # a function has no fingerprint; what it picked has
            settings["output"] = tensor_fingerprint(given.residuals[0])
        store = None if checkpoint is None else Checkpoint.open(Path(checkpoint), settings)
        stack.enter_context(explaining(report, store))
        court = Court(ready.network.device, seed, nearby(executor), report)
        heard = find_witness(rows, witness, court, None if limit is None else plan.witness_bytes)
        room = None if limit is None else (limit - (0 if heard is None else heard.nbytes)) // len(ready.maps)
        run = _Run(plan, patchwork, division, room, seed, executor, report, store, strict, keep)
        # a common prior is found on few rows
        linear = None if likelihood.common_prior else know_linear(ready.maps[0][0], rows, report)
        near = rows.near(ready.network.device) if nearby(executor) is executor else rows
        problems = make_problems(ready.maps, near, given.residuals, given.groups, blends)
        fitted = [
            _fit_mixture(index, replace(problem, linear=linear), run, common_prior=likelihood.common_prior)
            for index, problem in enumerate(problems)
        ]
        model = _assembled(ready.network.module, origin, fitted, given, heard, report)
    if not timed:
        return model
    from .tuning import tune  # which may fit again

    return tune(model, held, budget=budget, progress=progress).best


@dataclass(frozen=True)
class _Run:
    """What holds for all kernels of one fit."""

    plan: Plan
    patchwork: Patchwork
    division: Division
    room: int | None  # bytes for each kernel
    seed: int
    executor: Executor
    report: Reporter
    store: Checkpoint | None
    strict: bool
    keep_features: bool


@dataclass(frozen=True)
class _Given:
    """What the experts and the calibration get of what the user handed over.

    Args:
        rows: Of the experts.
        residuals: Of these rows, for each kernel.
        groups: Of these rows, to be left out together; None: none are.
        validation: Rows to calibrate on; None: none.
        split: How many rows were handed over, and how many of them were split off to calibrate on; or 0, 0.
    """

    rows: Rows
    residuals: list[Tensor]
    groups: Tensor | None
    validation: Rows | None
    split: tuple[int, int]


def _given(
    rows: Rows,
    residuals: list[Tensor],
    held: Rows | None,
    labels: Tensor | None,
    likelihood: Likelihood,
    seed: int,
) -> _Given:
    """Rows for the experts and rows to calibrate on: split off where a likelihood cannot do without."""
    # where rows are split off, groups only say which of them go together
    groups = None if likelihood.needs_held_out else labels
    if held is not None or not likelihood.needs_held_out:
        return _Given(rows, residuals, groups, held, (0, 0))
    off = hold_out(rows, labels, seed)
    count = int(off.sum())
    held = some_rows(rows, off) if count else None
    return _Given(
        some_rows(rows, ~off), [residual[~off] for residual in residuals], groups, held, (len(rows), count)
    )


@dataclass(frozen=True)
class _Fitted:
    """One kernel, solved."""

    mixture: Mixture
    partition: Partition
    solved: tuple[Solved, ...]
    handout: Handout


def _fit_mixture(index: int, problem: Problem, run: _Run, *, common_prior: bool) -> _Fitted:
    """Divide, hand out the rows, solve."""
    tangents, store = problem.tangents, run.store
    if run.keep_features:
        problem = replace(problem, known=know_features(tangents, problem.rows, run.executor, run.report))
    run.report.begin("dividing the rows")
    partition, bound = divide(
        tangents,
        problem.rows,
        run.plan.num_experts,
        division=replace(run.division, subset=run.plan.subset),
        patchwork=run.patchwork,
        seed=run.seed,
        executor=run.executor,
        report=run.report,
        known=problem.known,
    )
    handout = _handout(tangents, partition, run, problem.num_targets)
    tasks = make_tasks(partition, handout)
    if common_prior:
        problem = replace(problem, prior=agree_on_prior(problem, tasks, run.executor))
    solved = solve_tasks(
        problem,
        tasks,
        executor=run.executor,
        report=run.report,
        finished={} if store is None else store.finished(index, tasks, tangents),
        on_solved=lambda i, result: None if store is None else store.keep(index, i, result),
        strict=run.strict,
    )
    experts = tuple(result.expert for result in solved)
    mixture = Mixture(tangents, partition.gate, experts, problem.outputs, partition.neighbours, bound)
    return _Fitted(mixture, partition, tuple(solved), handout)


def _assembled(
    module: nn.Module,
    origin: Origin,
    fitted: list[_Fitted],
    given: _Given,
    witness: WitnessState | None,
    report: Reporter,
) -> UncertaintyModel:
    """The kernels together, calibrated."""
    report.begin("calibrating")
    cap, lend = (tuple(getattr(one.handout, name) for one in fitted) for name in ("cap", "lend"))
    partitions, solved = tuple(one.partition for one in fitted), tuple(one.solved for one in fitted)
    training = Training(given.rows, given.groups, given.validation, partitions, solved)
    mixtures = tuple(one.mixture for one in fitted)
    return calibrated(module, mixtures, replace(origin, cap=cap, lend=lend), training, witness, report)


def _handout(tangents: TangentMap, partition: Partition, run: _Run, num_outputs: int) -> Handout:
    """How many rows an expert may hold: all of them, or what the budget leaves."""
    sizes = torch.bincount(partition.nearest, minlength=partition.gate.num_experts).tolist()
    lend = lend_rows(run.patchwork, len(partition.nearest), run.plan.num_experts)
    if run.room is None:
        return Handout(cap=NO_CAP, lend=lend)
    gate = gate_bytes(tangents, run.plan.subset, run.division.components, len(sizes))
    near = [len(neighbours) for neighbours in partition.neighbours]
    return handout_for_budget(tangents, sizes, near, lend, run.room - gate - OVERHEAD, num_outputs)


def _say(report: Reporter, plan: Plan, rows: Rows, ready: Prepared, outputs: str) -> None:
    report.say(f"tangents: {ready.tangents}, {ready.reason}")
    report.say(
        f"{len(rows)} rows, {plan.num_experts} experts: the model will hold about "
        f"{size_text(plan.state_bytes)}, the fit needs at most about {size_text(plan.peak_bytes)} beside the "
        f"data, and about {plan.seconds:.0f} s."
    )
    report.say(outputs_text(ready, outputs))
