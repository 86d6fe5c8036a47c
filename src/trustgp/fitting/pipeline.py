"""From a network and rows to a fitted model: the only file that knows the order of the stages."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..data.fingerprint import network_fingerprint, rows_fingerprint, tensor_fingerprint, weights_fingerprints
from ..data.rows import Rows, kinds, read_rows, require_finite_rows
from ..data.trees import structure
from ..executors import FitContext, nearby
from ..executors.progress import rate_text, reporting
from ..experts.expert import Problem
from ..experts.witness_fit import find_witness
from ..math.calibration import CalibrationRows
from ..state.model_file import check_savable
from ..state.model_state import ModelState, Provenance, Training
from ..tangents.modules import check_kind, has_output_selector
from ..tangents.probes import Probes
from .budget import plan_for_budget, shrink_to_budget
from .calibrate import calibrate
from .checkpoint import Checkpoint, explain_interrupts, locked
from .divide import precompute_features, precompute_linear
from .options import FitOptions
from .plan import Plan, choose_plan, log_plan
from .prepare import (
    FitRows,
    Prepared,
    Residuals,
    find_judge,
    make_problems,
    prepare_network,
    split_rows,
    tell_outputs,
)
from .solve import FittedMixture, fit_mixture


def fit_model(network: nn.Module, train: Any, options: FitOptions) -> ModelState:
    """Give a trained network an honest error bar: one after another, the stages of `trustgp.fit`."""
    began = time.perf_counter()
    with (
        locked(options.checkpoint),  # first: a folder that is in use is refused before the work
        reporting(enabled=options.progress) as report,
        ThreadPoolExecutor(1) as aside,
    ):
        check_kind(network)
        rows = read_rows(train, name="train", finite=False, unpack=options.unpack, network=network)
        device = options.device or next(network.parameters(), torch.empty(0)).device
        executor = options.executors(device)[0]
        # on the device, where the work stays in this process
        near = rows.to_device(device) if nearby(executor) is executor else rows
        require_finite_rows(near, "train")
        ready = prepare_network(network, near, options)
        context = FitContext(device, options.seed, executor, report)
        data = split_rows(ready, near, options, context)
        ready, num_experts, rank = plan_for_budget(network, near, ready, data, options)
        check_savable([tangents for tangents, _ in ready.maps], near.take(torch.arange(1)))
        executor, plan = choose_plan(ready, data, options, num_experts, rank)
        log_plan(report, plan, len(data.rows), ready, options.outputs)
        home = data.rebind(rows)  # as they were handed over
        prints = aside.submit(_fingerprints, ready, home)  # of gigabytes they take seconds
        probes = Probes.of(ready.network, home.rows)
        store = _open_checkpoint(prints, plan, ready, options, probes)
        context = replace(context, executor=executor, store=store)
        with explain_interrupts(report, store):
            room = None if options.budget.size is None else plan.witness_bytes
            problems = _problems(ready, near, data, plan, options, context)
            witness = find_witness(data.rows, options.witness, context.nearby(), room)
            heard = 0 if witness is None else witness.nbytes
            fitted: list[FittedMixture] = []
            while problems:  # each goes when it is solved, and its features with it
                beside = {"kernels": len(ready.maps), "witness": heard}
                fitted.append(fit_mixture(len(fitted), problems.pop(0), plan, options, context, **beside))
            report.begin("calibrating")
            state = _assembled(ready, data, options, prints.result(), fitted, plan.rank)
            state = calibrate(replace(state, witness=witness, probes=probes), report)
            small = shrink_to_budget(state, options.budget.size)
            state = calibrate(small, report) if small.provenance.compressed else small
        for tangents, _ in ready.maps:
            tangents.release_buffers()
        seconds = time.perf_counter() - began
        report.say(f"fitted in {rate_text(seconds)} s, {rate_text(len(data.rows) / seconds)} rows/s.")
        assert state.training is not None
        return replace(state, training=replace(state.training, rows=home.rows, validation=home.validation))


def _fingerprints(ready: Prepared, data: FitRows) -> dict[str, Any]:
    """Of network, rows and weights."""
    module = ready.network.module
    return {
        "network": network_fingerprint(module),
        "data": rows_fingerprint(data.rows, data.groups),
        "weights": weights_fingerprints(module),
    }


def _open_checkpoint(
    prints: Future[dict[str, Any]], plan: Plan, ready: Prepared, options: FitOptions, probes: Probes | None
) -> Checkpoint | None:
    """The folder of solved experts; None: the user wants none. One of another fit is refused."""
    if options.checkpoint is None:
        return None
    settings = {
        **{name: prints.result()[name] for name in ("network", "data")},
        "tangents": [type(ready.tangents).__name__, ready.tangents.settings()],
        "names": list(ready.network.names),
        "experts": plan.num_experts,
        **options.settings(),
    }
    if has_output_selector(ready.network.module):  # a function has no fingerprint; what it picked has
        settings["output"] = tensor_fingerprint(ready.probed)
    return Checkpoint.open(options.checkpoint, settings, probes, ready.network)


def _problems(
    ready: Prepared, given: Rows, data: FitRows, plan: Plan, options: FitOptions, context: FitContext
) -> list[Problem]:
    """What the experts of each kernel share. Where features are kept, the pass through the network that makes
    those of the first kernel gives the outputs, too."""
    rows, first, known = data.rows, ready.maps[0][0], None
    found = Residuals(options.likelihood, given, "train", ready.blends)

    def tell(index: Tensor, outputs: Tensor) -> None:
        found(rows.parent_indices(index), outputs)

    if plan.keep_features and not ready.network.half:
        known = precompute_features(first, rows, context, mapped=plan.mapped, tell=tell)
    else:
        tell_outputs(ready.network, rows, context, tell)
    held = data.validation
    if held is not None and data.split[1]:
        tell_outputs(ready.network, held, context, lambda i, out: found.check(held.parent_indices(i), out))
    residuals, linear = found.all(), None
    found.warn()
    if held is not None and not data.split[1]:
        apart = Residuals(options.likelihood, held, "validation", ready.blends)
        tell_outputs(ready.network, held, context, apart)
        apart.all()  # or what is wrong with them
    if not options.likelihood.common_prior:  # a common prior is found on few rows
        linear = precompute_linear(first, rows, context)
    problems = make_problems(ready.maps, rows, residuals, data.groups, ready.blends, linear)
    if plan.rank is not None and options.likelihood.leaves_out:
        problems = [replace(problem, judge=find_judge(problem.tangents, rows)) for problem in problems]
    return [replace(problems[0], known=known), *problems[1:]]


def _assembled(
    ready: Prepared,
    data: FitRows,
    options: FitOptions,
    prints: dict[str, Any],
    fitted: list[FittedMixture],
    rank: int | None,
) -> ModelState:
    """The kernels together, with where they come from; not yet calibrated."""
    provenance = Provenance(
        network=prints["network"],
        data=prints["data"],
        rows=len(data.rows),
        structure=structure(data.rows.first),
        outputs=options.outputs,
        tangents=ready.tangents,
        names=ready.network.names,
        likelihood=options.likelihood,
        lend=tuple(one.lend for one in fitted),
        seed=options.seed,
        witness=options.witness,
        split=data.split,
        rank=rank,
        weights=prints["weights"],
        kinds=tuple(kinds(data.rows.first)),
    )
    mixtures = tuple(one.mixture for one in fitted)
    return ModelState(ready.network.module, mixtures, provenance, training=_training(data, fitted))


def _training(data: FitRows, fitted: list[FittedMixture]) -> Training:
    partitions, solved = tuple(one.partition for one in fitted), tuple(one.solved for one in fitted)
    far = [one.far for one in fitted if one.far is not None]
    far = CalibrationRows.cat(far) if far else None
    return Training(data.rows, data.groups, data.validation, partitions, solved, far)
