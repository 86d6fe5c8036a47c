"""From a network and rows to a fitted model: the order of the stages."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..data.fingerprint import network_fingerprint, rows_fingerprint, tensor_fingerprint, weights_fingerprints
from ..data.quantities import size_text
from ..data.rows import Rows, kinds, read_rows, require_finite_rows
from ..data.trees import structure
from ..executors import FitContext, nearby
from ..executors.progress import rate_text, reporting
from ..experts.expert import Problem
from ..experts.witness_fit import find_witness
from ..math.calibration import CalibrationRows
from ..state.model_file import check_savable
from ..state.model_state import ModelState, Provenance, Training, nbytes
from ..tangents.modules import check_kind, has_output_selector
from ..tangents.probes import Probes
from .budget import plan_for_budget, shrink_to_budget
from .calibrate import calibrate
from .checkpoint import Checkpoint, explain_interrupts, locked
from .divide import FeatureTable, precompute_linear, run_tangents
from .options import FitOptions
from .plan import Plan, choose_plan, log_plan
from .prepare import (
    FitRows,
    Prepared,
    Residuals,
    leave_out_kernel,
    make_problems,
    prepare_network,
    run_network,
    split_rows,
)
from .solve import FittedMixture, fit_mixture


def fit_model(network: nn.Module, train: Any, options: FitOptions) -> ModelState:
    """Give a trained network an honest error bar: one after another, the stages of `trustgp.fit`."""
    began = time.perf_counter()
    with (
        locked(options.checkpoint),  # first: a folder that is in use is refused before the work
        reporting(enabled=options.progress) as report,
        ThreadPoolExecutor(1) as background,
    ):
        check_kind(network)
        rows = read_rows(train, name="train", finite=False, unpack=options.unpack, network=network)
        device = options.device or next(network.parameters(), torch.empty(0)).device
        executor = options.executors(device)[0]
        # on the device, where the work stays in this process
        device_rows = rows.to_device(device) if nearby(executor) is executor else rows
        require_finite_rows(device_rows, "train")
        ready = prepare_network(network, device_rows, options)
        context = FitContext(device, options.seed, executor, report)
        data = split_rows(ready, device_rows, options, context)
        ready, num_experts, rank = plan_for_budget(network, device_rows, ready, data, options)
        check_savable([tangents for tangents, _ in ready.maps], device_rows.take(torch.arange(1)))
        executor, plan = choose_plan(ready, data, options, num_experts, rank)
        log_plan(report, plan, len(data.rows), ready, options.outputs)
        host_data = data.rebind(rows)  # as the user passed them
        prints = background.submit(_fingerprints, ready.network.module, host_data)  # it may take seconds
        probes = Probes.of(ready.network, host_data.rows)
        store = _open_checkpoint(prints, plan, ready, options, probes)
        context = replace(context, executor=executor, store=store)
        with explain_interrupts(report, store):
            problems = _problems(ready, device_rows, data, plan, options, context)
            limit = None if options.budget.size is None else plan.witness_bytes
            witness = find_witness(data.rows, options.witness, context.nearby(), limit)
            fitted: list[FittedMixture] = []
            while problems:  # each goes when it is solved, and its features with it
                fitted.append(fit_mixture(len(fitted), problems.pop(0), plan, options, context))
            report.begin("calibrating")
            state = _assemble(ready, data, options, prints.result(), fitted, plan.rank)
            state = calibrate(replace(state, witness=witness, probes=probes), report)
            small = shrink_to_budget(state, options.budget.size)
            state = calibrate(small, report) if small.provenance.compressed else small
        for tangents, _ in ready.maps:
            tangents.release_buffers()
        seconds = time.perf_counter() - began
        speed = f"{rate_text(seconds)} s, {rate_text(len(data.rows) / seconds)} rows/s"
        report.log(f"fitted in {speed}; the model takes {size_text(nbytes(state))}.")
        assert state.training is not None
        training = replace(state.training, rows=host_data.rows, validation=host_data.validation)
        return replace(state, training=training)


def _fingerprints(module: nn.Module, data: FitRows) -> dict[str, Any]:
    """Of network, rows and weights."""
    prints = {"network": network_fingerprint(module), "data": rows_fingerprint(data.rows, data.groups)}
    return {**prints, "weights": weights_fingerprints(module)}


def _open_checkpoint(
    prints: Future[dict[str, Any]], plan: Plan, ready: Prepared, options: FitOptions, probes: Probes | None
) -> Checkpoint | None:
    """The folder of solved experts, if the user named one; that of another fit is refused."""
    if options.checkpoint is None:
        return None
    settings = {
        **{name: prints.result()[name] for name in ("network", "data")},
        "tangents": [type(ready.tangents).__name__, ready.tangents.settings()],
        "names": list(ready.network.names),
        "experts": plan.num_experts,
        **options.settings(),
    }
    if has_output_selector(ready.network.module):  # a function has no fingerprint, but its output has
        settings["output"] = tensor_fingerprint(ready.probed)
    return Checkpoint.open(options.checkpoint, settings, (probes, ready.network) if probes else None)


def _problems(
    ready: Prepared, device_rows: Rows, data: FitRows, plan: Plan, options: FitOptions, context: FitContext
) -> list[Problem]:
    """What the experts of each kernel share. Where features are kept, the pass through the network that makes
    those of the first kernel gives the outputs, too."""
    rows, validation, likelihood = data.rows, data.validation, options.likelihood
    first, features, linear = ready.maps[0][0], None, None
    residuals = Residuals(likelihood, device_rows, "train", ready.projections)
    if plan.keep_features and not ready.network.half:
        table = FeatureTable(first, len(rows), mapped=plan.mapped)
        for index, made, outputs in run_tangents(first, rows, context, outputs=True):
            table.write(index, made)
            residuals.add(rows.parent_indices(index), outputs)
        features = table.features()
    else:
        for index, outputs in run_network(ready.network, rows, context):
            residuals.add(rows.parent_indices(index), outputs)
    if validation is not None and data.split[1]:  # split off from the training rows
        for index, outputs in run_network(ready.network, validation, context):
            residuals.check(validation.parent_indices(index), outputs)
    values = residuals.all()
    residuals.warn()
    if validation is not None and not data.split[1]:
        checked = Residuals(likelihood, validation, "validation", ready.projections)
        checked.compute(ready.network, context)  # for its errors
    if not likelihood.common_prior:  # a common prior is found on few rows
        linear = precompute_linear(first, rows, context)
    problems = make_problems(ready.maps, rows, values, data.groups, ready.projections, linear)
    if plan.rank is not None and likelihood.leaves_out:
        problems = [replace(one, leave_out_tangents=leave_out_kernel(one.tangents, rows)) for one in problems]
    return [replace(problems[0], cached=features), *problems[1:]]


def _assemble(
    ready: Prepared,
    data: FitRows,
    options: FitOptions,
    prints: dict[str, Any],
    fitted: list[FittedMixture],
    rank: int | None,
) -> ModelState:
    """The kernels together, with their provenance; not yet calibrated."""
    provenance = Provenance(
        network=prints["network"],
        data=prints["data"],
        rows=len(data.rows),
        structure=structure(data.rows.first),
        outputs=options.outputs,
        tangents=ready.tangents,
        likelihood=options.likelihood,
        lend=tuple(one.lend for one in fitted),
        seed=options.seed,
        witness=options.witness,
        split=data.split,
        rank=rank,
        weights=prints["weights"],
        kinds=tuple(kinds(data.rows.first)),
    )
    parts = ([getattr(one, name) for one in fitted] for name in ("mixture", "partition", "solved", "far"))
    mixtures, partitions, solved, far = (tuple(x for x in part if x is not None) for part in parts)
    far = CalibrationRows.cat(far) if far else None
    training = Training(data.rows, data.groups, data.validation, partitions, solved, far)
    return ModelState(ready.network.module, mixtures, provenance, training=training)
