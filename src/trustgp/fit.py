"""`trustgp.fit`: the only file that knows the order of the stages."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .checkpoint import Checkpoint
from .data import (
    Rows,
    chunks,
    looks_like_time_series,
    read_rows,
    require_finite,
    structure,
    to_device,
)
from .executors import Executor, Threads
from .experts import Problem, Solved
from .fingerprint import network_fingerprint, rows_fingerprint
from .gating import Division
from .likelihoods import Regression
from .math.calibration import HeldOut
from .mixture import Mixture
from .model import Origin, UncertaintyModel
from .patchwork import Patchwork
from .plan import (
    OVERHEAD,
    Plan,
    check_memory,
    gate_bytes,
    handout_for_budget,
    make_plan,
    parse_bytes,
    size_text,
)
from .progress import Reporter, reporting
from .solving import NO_CAP, Handout, Partition, divide, lend_rows, make_tasks, solve_tasks
from .tangents import JacobianRows, LayerFactors, Tangents, output_mixes
from .tangents.base import TangentMap
from .tangents.network import TangentNetwork, as_matrix, check_network, prepare

PROBE_ROWS = 64
DEFAULT_KEEP = 8192  # parameters kept by default where the kernel needs gradient rows


@dataclass(frozen=True)
class Training:
    """What `update` needs beside the model: the rows, and the experts' left-out groups."""

    rows: Rows
    groups: Tensor | None
    validation: Rows | None
    partitions: tuple[Partition, ...]
    solved: tuple[tuple[Solved, ...], ...]


def fit(
    network: nn.Module,
    train: Any,
    *,
    likelihood: Regression | None = None,
    validation: Any = None,
    groups: Any = None,
    num_experts: int | None = None,
    tangents: Tangents | None = None,
    outputs: str = "shared",
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
) -> UncertaintyModel:
    """Give a trained network an honest error bar. The network, the loader and the tensors stay as they are.

    Args:
        network: Trained `torch.nn.Module`, in eval mode, that maps rows to [n] or [n, C].
        train: The rows it was trained on: (inputs, targets), a Dataset or a DataLoader.
        likelihood: What the targets are; None: `Regression()`.
        validation: Rows it was not trained on: the size of the error bar is fitted to them.
        groups: Trajectory of each training row, shape [n]: left out together in calibration.
        num_experts: None: about 1,000 rows each.
        tangents: `LayerFactors()` or `JacobianRows(...)`; None: chosen from the network.
        outputs: "shared", "separate" or "pseudo": how several outputs enter the kernel.
        patchwork: How many neighbours lend how many rows; None: `Patchwork(neighbours=4, fraction=0.1)`.
        division: How the rows are divided; None: `Division()`.
        budget: The most the fitted model may hold: bytes, or a text like "64 MiB".
        memory: The most the fit itself may need; None: what is free.
        executor: Where experts are solved; None: threads, one per core (one on a GPU).
        device: Where to work; None: where the network is.
        seed: The same seed gives the same model.
        progress: Whether to show bars in a terminal.
        checkpoint: A folder; finished experts are kept there, and the same call goes on after a crash.
        strict: Raise when an expert cannot be solved, instead of letting it answer with the prior.
    """
    likelihood = likelihood or Regression()
    patchwork, division = patchwork or Patchwork(), division or Division()
    rows = read_rows(train, name="train")
    held = None if validation is None else read_rows(validation, name="validation")
    labels = check_groups(groups, rows)
    tangent_network, maps, tangents, chosen = _prepare(network, rows, tangents, outputs, device, seed)
    executor = executor or Threads(1 if tangent_network.device.type == "cuda" else None)
    with reporting(enabled=progress) as report:
        residual = _residual(tangent_network, likelihood, rows, executor, report, name="train")
        if held is not None:
            _residual(tangent_network, likelihood, held, executor, report, name="validation")
        limit = None if budget is None else parse_bytes(budget, name="budget")
        plan = make_plan(
            [tangent_map for tangent_map, _ in maps],
            rows.take(torch.arange(min(PROBE_ROWS, len(rows)))),
            len(rows),
            num_experts,
            division=division,
            patchwork=patchwork,
            num_outputs=residual.shape[1],
            budget=limit,
            workers=executor.workers,
        )
        bytes_limit = None if memory is None else parse_bytes(memory, name="memory")
        check_memory(plan, bytes_limit, tangent_network.device)
        _say(report, plan, rows, chosen)
        if held is None and labels is None:
            _warn_time_series(rows, seed)
        origin = Origin(
            network=network_fingerprint(tangent_network.module),
            data=rows_fingerprint(rows, labels),
            rows=len(rows),
            structure=structure(rows.inputs),
            outputs=outputs,
            tangents=tangents,
            names=tangent_network.names,
            likelihood=likelihood,
            cap=(),
            lend=(),
            seed=seed,
        )
        settings = _settings(origin, plan, patchwork, division, limit)
        store = None if checkpoint is None else Checkpoint.open(Path(checkpoint), settings)
        fitted = [
            _fit_mixture(
                index,
                Problem(rows, tangent_map, served, residual, labels),
                plan,
                patchwork=patchwork,
                division=division,
                room=None if limit is None else limit // len(maps),
                seed=seed,
                executor=executor,
                report=report,
                store=store,
                strict=strict,
            )
            for index, (tangent_map, served) in enumerate(maps)
        ]
        origin = replace(
            origin,
            cap=tuple(handout.cap for _, _, _, handout in fitted),
            lend=tuple(handout.lend for _, _, _, handout in fitted),
        )
        training = Training(
            rows,
            labels,
            held,
            tuple(partition for _, partition, _, _ in fitted),
            tuple(tuple(solved) for _, _, solved, _ in fitted),
        )
        mixtures = tuple(mixture for mixture, _, _, _ in fitted)
        return calibrated(tangent_network.module, mixtures, origin, training)


def calibrated(
    module: nn.Module, mixtures: tuple[Mixture, ...], origin: Origin, training: Training
) -> UncertaintyModel:
    """The model, its scale fitted to the validation rows, else to the groups, else left at the defaults."""
    num_outputs = sum(len(mixture.outputs) for mixture in mixtures)
    calibrations = origin.likelihood.calibrate(None, num_outputs)
    model = UncertaintyModel(module, mixtures, calibrations, origin, training)
    held_out: HeldOut | None = None
    if training.validation is not None:
        held_out = model_held_out(model, training.validation)
    elif training.groups is not None:
        held_out = HeldOut.cat(_left_out(mixtures, training))
    model.calibrations = origin.likelihood.calibrate(held_out, num_outputs)
    return model


def _left_out(mixtures: tuple[Mixture, ...], training: Training) -> list[HeldOut]:
    """The left-out groups of all experts, with the steadied scales that predictions use."""
    parts = []
    for mixture, solved in zip(mixtures, training.solved, strict=True):
        for log_kappa, result in zip(mixture.log_kappa, solved, strict=True):
            if result.held_out is not None:
                rows = len(result.held_out) // len(log_kappa)
                parts.append(replace(result.held_out, log_kappa=log_kappa.repeat(rows)))
    return parts


def model_held_out(model: UncertaintyModel, rows: Rows) -> HeldOut:
    """Validation rows, chunk by chunk."""
    with torch.no_grad():
        parts = [model.held_out(rows.take(i), rows.targets[i]) for i in chunks(len(rows))]
    return HeldOut.cat(parts)


def choose_tangents(network: nn.Module, rows: Rows, device: torch.device | None) -> tuple[Tangents, str]:
    """The exact factors where they are exact; else gradient rows of the largest parameters."""
    sample = rows.take(torch.arange(min(2, len(rows))))
    try:
        tangents = LayerFactors()
        tangents.choose(network)
        prepared = prepare(network, tangents.parameters, device)
        mix = torch.eye(as_matrix(prepared.outputs(sample)).shape[1], dtype=torch.float64)[:1]
        tangents.bind(prepared, mix, sample, rows.targets[:2])
        return (
            tangents,
            "LayerFactors: every parameter belongs to a layer whose gradient factorises",
        )
    except ValueError as reason:
        total = sum(p.numel() for p in network.parameters() if p.requires_grad)
        keep = None if total <= DEFAULT_KEEP else DEFAULT_KEEP
        return JacobianRows(keep=keep), f"JacobianRows(keep={keep}), since {reason}"


def _prepare(network, rows: Rows, tangents, outputs: str, device, seed: int):
    """The private copy of the network and its tangent maps, after every probe has passed."""
    target = torch.device(device) if device is not None else None
    sample = rows.take(torch.arange(min(PROBE_ROWS, len(rows))))
    place = next(network.parameters(), torch.empty(0)).device if isinstance(network, nn.Module) else "cpu"
    probed = as_matrix(check_network(network, to_device(sample, torch.device(place))))
    mixes = output_mixes(outputs, probed.shape[1], torch.Generator().manual_seed(seed))
    if tangents is None:
        tangents, chosen = choose_tangents(network, rows, target)
    else:
        chosen = f"{tangents}, as asked for"
    names = tangents.choose(network)
    prepared = prepare(network, names, target)
    targets = rows.targets[: len(probed)]
    maps = [(tangents.bind(prepared, mix, sample, targets), served) for mix, served in mixes]
    return prepared, maps, tangents, chosen


def _residual(
    network: TangentNetwork,
    likelihood: Regression,
    rows: Rows,
    executor: Executor,
    report: Reporter,
    *,
    name: str,
) -> Tensor:
    """-H^-1 R of all rows, shape [n, C], after checking outputs and targets."""
    parts = list(chunks(len(rows)))

    @torch.no_grad()
    def outputs_of(index: Tensor) -> Tensor:
        return network.matrix(rows.take(index)).cpu()

    results = dict(
        report.track(executor.run(outputs_of, parts), stage="running the network", total=len(parts))
    )
    outputs = torch.cat([results[i] for i in range(len(parts))])
    likelihood.check(outputs, rows.targets, name=name)
    require_finite(outputs, f"the network's outputs on the {name} rows")
    return likelihood.residual(outputs, rows.targets.cpu())


def _fit_mixture(
    index: int,
    problem: Problem,
    plan: Plan,
    *,
    patchwork: Patchwork,
    division: Division,
    room: int | None,
    seed: int,
    executor: Executor,
    report: Reporter,
    store: Checkpoint | None,
    strict: bool,
) -> tuple[Mixture, Partition, list[Solved], Handout]:
    """Divide, hand out the rows, solve."""
    tangents = problem.tangents
    partition, bound = divide(
        tangents,
        problem.rows,
        plan.num_experts,
        division=replace(division, subset=plan.subset),
        patchwork=patchwork,
        seed=seed,
        executor=executor,
        report=report,
    )
    handout = _handout(tangents, partition, patchwork, division, plan, room, len(problem.outputs))
    tasks = make_tasks(partition, handout)
    finished = {} if store is None else store.finished(index, tasks, tangents)
    solved = solve_tasks(
        problem,
        tasks,
        executor=executor,
        report=report,
        finished=finished,
        on_solved=lambda i, result: None if store is None else store.keep(index, i, result),
        strict=strict,
    )
    experts = tuple(result.expert for result in solved)
    mixture = Mixture(tangents, partition.gate, experts, problem.outputs, partition.neighbours, bound)
    return mixture, partition, solved, handout


def _handout(
    tangents: TangentMap,
    partition: Partition,
    patchwork: Patchwork,
    division: Division,
    plan: Plan,
    room: int | None,
    num_outputs: int,
) -> Handout:
    """How many rows an expert may hold: all of them, or what the budget leaves."""
    sizes = torch.bincount(partition.nearest, minlength=partition.gate.num_experts).tolist()
    lend = lend_rows(patchwork, len(partition.nearest), plan.num_experts)
    if room is None:
        return Handout(cap=NO_CAP, lend=lend)
    gate = gate_bytes(tangents, plan.subset, division.components, len(sizes))
    near = [len(neighbours) for neighbours in partition.neighbours]
    return handout_for_budget(tangents, sizes, near, lend, room - gate - OVERHEAD, num_outputs)


def check_groups(groups: Any, rows: Rows) -> Tensor | None:
    """Labels as 0, 1, 2, ...; any kind of label will do, one for each row, in the rows' order."""
    if groups is None:
        return None
    given = groups.cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    labels = torch.from_numpy(np.unique(given, return_inverse=True)[1].reshape(given.shape))
    if labels.shape != (len(rows),):
        raise ValueError(f"groups have shape {tuple(labels.shape)}; one label for each of {len(rows)} rows.")
    if not rows.ordered:
        raise ValueError(
            "groups are given but the train loader shuffles: labels and rows would not match. "
            "Pass a loader with shuffle=False, or the dataset itself."
        )
    return labels


def _warn_time_series(rows: Rows, seed: int) -> None:
    if looks_like_time_series(rows, torch.Generator().manual_seed(seed)):
        warnings.warn(
            "the rows look like a time series: neighbouring rows are far more alike than random ones. "
            "Without validation rows the error bar is then too small for new motions; pass `groups=` "
            "(trajectory labels) or `validation=` (rows from other trajectories).",
            stacklevel=3,
        )


def _settings(
    origin: Origin, plan: Plan, patchwork: Patchwork, division: Division, budget: int | None
) -> dict[str, Any]:
    """Everything that decides what an expert comes out as, for the checkpoint's fingerprint."""
    return {
        "network": origin.network,
        "data": origin.data,
        "outputs": origin.outputs,
        "tangents": [type(origin.tangents).__name__, origin.tangents.settings()],
        "names": list(origin.names),
        "likelihood": [type(origin.likelihood).__name__, origin.likelihood.settings()],
        "experts": plan.num_experts,
        "subset": plan.subset,
        "components": division.components,
        "patchwork": [patchwork.neighbours, patchwork.fraction],
        "budget": budget,
        "seed": origin.seed,
    }


def _say(report: Reporter, plan: Plan, rows: Rows, chosen: str) -> None:
    report.say(f"tangents: {chosen}")
    report.say(
        f"{len(rows)} rows, {plan.num_experts} experts: the model will hold about "
        f"{size_text(plan.state_bytes)}, the fit needs at most about {size_text(plan.peak_bytes)} "
        f"and about {plan.seconds:.0f} s."
    )
