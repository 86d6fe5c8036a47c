"""From a network and rows to a fitted model: the order of the stages."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..data.fingerprint import network_fingerprint, rows_fingerprint, tensor_fingerprint, weights_fingerprints
from ..data.quantities import size_text
from ..data.rows import Rows, kinds, read_rows, require_finite_rows
from ..data.split import weighted
from ..data.trees import leaves, structure
from ..data.user_warnings import warn_user
from ..executors import FitContext, nearby
from ..executors.progress import rate_text, reporting
from ..experts.expert import Problem
from ..experts.witness_fit import find_witness
from ..math.held_out import CalibrationRows
from ..state.model_file import check_savable
from ..state.model_state import ModelState, Provenance, Training, nbytes
from ..tangents.called import called_predictor, is_called, warn_called
from ..tangents.modules import unwrap
from ..tangents.outputs import as_network, has_output_selector
from ..tangents.probes import Probes
from .budget import plan_for_budget, shrink_to_budget
from .calibrate import HeldOutFit, ValidationPasses, calibrate
from .checkpoint import Checkpoint, explain_interrupts, locked
from .divide import FeatureTable, precompute_linear, recorded, run_tangents
from .options import FitOptions
from .plan import MAX_EXPERTS, Plan, choose_plan, default_sizes, log_plan
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
from .whole import RowSums

STRIDES, MIN_THINNED_ROWS = (8, 32), 200  # every how many-th training row is tried, and how many must be left
# What validation rows must gain by a calibration of their own before that is tried, and by thinning; and what
# left-out groups must gain by it: each candidate predicts them from its own rows, and they are few.
MIN_SURPRISE, MIN_GAIN, MIN_GROUP_GAIN = 0.05, 0.01, 0.05


def fit_model(network: Any, train: Any, options: FitOptions) -> ModelState:
    """Give a trained network an honest error bar: one after another, the stages of `trustgp.fit`."""
    began = time.perf_counter()
    with (
        locked(options.checkpoint),  # first: a folder that is in use is refused before the work
        reporting(enabled=options.progress) as report,
        ThreadPoolExecutor(1) as background,
    ):
        network, rows = _read(network, train, options)
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
            sums = RowSums(ready, data.rows, options)
            state, suits = _fit_with_thinning(ready, device_rows, data, plan, options, context, sums)
            if suits.warning:
                warn_user(suits.warning)
            host_data = host_data.every(state.provenance.stride)
            signed = _signed(state.provenance, prints.result(), host_data)
            state = replace(state, probes=probes, provenance=signed)
        ready.network.recording = True
        seconds = time.perf_counter() - began
        speed = f"{rate_text(seconds)} s, {rate_text(len(data.rows) / seconds)} rows/s"
        report.log(f"fitted in {speed}; the model takes {size_text(nbytes(state))}.")
        assert state.training is not None
        parts = {"rows": host_data.rows, "validation": host_data.validation, "by_output": None}
        training = replace(state.training, **parts)
        return replace(state, training=training)


def _fit_with_thinning(
    ready: Prepared,
    device_rows: Rows,
    data: FitRows,
    plan: Plan,
    options: FitOptions,
    context: FitContext,
    sums: RowSums,
) -> tuple[ModelState, HeldOutFit]:
    """The model of all rows, or of every k-th where held-out rows prefer it."""
    problems = _problems(ready, device_rows, data, plan, options, context, sums)
    whole = sums.fields(problems[0].residual)
    strides, grouped = thinning_strides(data, options), data.validation is None
    judge, gain = ("left-out groups", MIN_GROUP_GAIN) if grouped else ("validation rows", MIN_GAIN)
    thinned = [[one.every(stride) for one in problems] for stride in strides]
    passes = ValidationPasses() if strides else None
    shared = {"by_output": sums.by_output, "passes": passes}
    state, suits = _fit_rows(ready, data, problems, whole, plan, options, context, **shared)
    for number, (stride, fewer) in enumerate(zip(strides, thinned, strict=True), start=1):
        if not grouped and suits.start - suits.loss < MIN_SURPRISE:
            break  # validation rows are like left-out training rows
        every, how = data.every(stride), {"first": number * len(ready.maps), "passes": passes}
        size = default_sizes(ready, len(every.rows), options)[0]
        size = min(size, max(MAX_EXPERTS, plan.num_experts // stride))  # of many, fewer suffice
        smaller = replace(plan, num_experts=min(size, plan.num_experts))
        other, its = _fit_rows(ready, every, fewer, whole, smaller, options, context, **how)
        context.report.log(f"every {stride}th row: NLL of {judge} {its.loss:.3f}, was {suits.loss:.3f}")
        if its.loss < suits.loss - gain:
            chosen = {"stride": stride, "thinned": f"every {stride}th, as {judge} chose"}
            state, suits = replace(other, provenance=replace(other.provenance, **chosen)), its
    return state, suits


def _read(network: Any, train: Any, options: FitOptions) -> tuple[nn.Module, Rows]:
    """The network, unwrapped and checked, and its training rows."""
    how = {"name": "train", "finite": False, "unpack": options.unpack}
    if is_called(given := unwrap(network)):
        rows = weighted(read_rows(train, **how), options.weights)
        network = called_predictor(given, rows.first)
        warn_called(network, held_out=options.validation is not None)
        return network, rows
    network = as_network(network, options.likelihood.combined)
    return network, weighted(read_rows(train, **how, network=network), options.weights)


def thinning_strides(data: FitRows, options: FitOptions) -> list[int]:
    """Every how many-th row experts may have: rows along a trajectory are fewer than they look. Validation
    rows choose, or left-out groups; without either there is no choice."""
    if (data.validation is None and data.groups is None) or not options.likelihood.leaves_out:
        return []
    return [stride for stride in STRIDES if len(data.rows) >= stride * MIN_THINNED_ROWS]


def _fit_rows(
    ready: Prepared,
    data: FitRows,
    problems: list[Problem],
    whole: dict[str, Any],
    plan: Plan,
    options: FitOptions,
    context: FitContext,
    *,
    first: int = 0,
    by_output: Tensor | None = None,
    passes: ValidationPasses | None = None,
) -> tuple[ModelState, HeldOutFit]:
    """Experts, witness and calibration of these rows, whose gradients may be kept [n, C, D]; a checkpoint
    counts the kernels from `first` on. All models of a fit share the passes of validation rows."""
    limit = None if options.budget.size is None else plan.witness_bytes
    witness = find_witness(data.rows, options.witness, context.nearby(), limit)
    fitted: list[FittedMixture] = []
    while problems:  # each goes when it is solved, and its features with it
        fitted.append(fit_mixture(first + len(fitted), problems.pop(0), plan, options, context))
    context.report.begin("calibrating")
    fitted[0] = replace(fitted[0], mixture=replace(fitted[0].mixture, **whole))
    state = replace(_assemble(ready, data, options, fitted, plan.rank), witness=witness)
    if by_output is not None:
        assert state.training is not None
        state = replace(state, training=replace(state.training, by_output=by_output))
    state, suits = calibrate(state, context.report, passes)
    small = shrink_to_budget(state, options.budget.size)
    return calibrate(small, context.report, passes) if small.provenance.compressed else (small, suits)


def _fingerprints(module: nn.Module, data: FitRows) -> dict[str, Any]:
    """Of network, rows and weights."""
    with ThreadPoolExecutor(2) as pool:
        network, rows = (
            pool.submit(network_fingerprint, module),
            pool.submit(rows_fingerprint, data.rows, data.groups),
        )
        return {"weights": weights_fingerprints(module), "network": network.result(), "data": rows.result()}


def _signed(provenance: Provenance, prints: dict[str, Any], data: FitRows) -> Provenance:
    """With the fingerprints of the network and of the rows that the experts have."""
    if provenance.stride > 1:
        prints = prints | {"data": rows_fingerprint(data.rows, data.groups)}
    return replace(provenance, **prints)


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
        settings["output"] = tensor_fingerprint(*leaves(ready.probed))
    return Checkpoint.open(options.checkpoint, settings, (probes, ready.network) if probes else None)


def _problems(
    ready: Prepared,
    device_rows: Rows,
    data: FitRows,
    plan: Plan,
    options: FitOptions,
    context: FitContext,
    sums: RowSums,
) -> list[Problem]:
    """What the experts of each kernel share. Where features are kept, the pass through the network that makes
    those of the first kernel gives the outputs and the `sums`, too."""
    rows, validation, likelihood = data.rows, data.validation, options.likelihood
    first, features, linear = ready.maps[0][0], None, None
    residuals = Residuals(likelihood, device_rows, "train", ready.projections)
    if plan.keep_features and ready.network.one_pass:
        table = FeatureTable(first, len(rows), mapped=plan.mapped)
        with recorded(passes := sums.passes(first)):
            for tangents, chosen in passes:
                made = run_tangents(tangents, rows, context, outputs=True, index=chosen, also=sums.reduced)
                for index, part, outputs, reduced in made:
                    table.write(index, part)
                    residuals.add(rows.parent_indices(index), outputs)
                    sums.add(index, reduced)
        features = table.features()
    else:
        for index, outputs in run_network(ready.network, rows, context):
            residuals.add(rows.parent_indices(index), outputs)
    sums.complete(context)
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
    fitted: list[FittedMixture],
    rank: int | None,
) -> ModelState:
    """The kernels together, with their provenance but for its fingerprints; not yet calibrated."""
    provenance = Provenance(
        network="",
        data="",
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
        kinds=tuple(kinds(data.rows.first)),
        stated=ready.network.stated,
        head=ready.network.head,
    )
    parts = ([getattr(one, name) for one in fitted] for name in ("mixture", "partition", "solved", "far"))
    mixtures, partitions, solved, far = (tuple(x for x in part if x is not None) for part in parts)
    far = CalibrationRows.cat(far) if far else None
    training = Training(data.rows, data.groups, data.validation, partitions, solved, far)
    return ModelState(ready.network.module, mixtures, provenance, training=training)
