"""From a network and rows to a fitted model: the only file that knows the order of the stages."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from torch import nn

from ..data.fingerprint import network_fingerprint, rows_fingerprint, tensor_fingerprint
from ..data.rows import read_rows
from ..data.trees import structure
from ..executors import FitContext, nearby
from ..executors.progress import rate_text, reporting
from ..experts.expert import Problem
from ..experts.witness_fit import find_witness
from ..state.model_state import ModelState, Provenance, Training
from ..tangents.modules import has_output_selector
from .calibrate import calibrate
from .checkpoint import Checkpoint, explain_interrupts
from .divide import precompute_linear
from .options import FitOptions
from .plan import Plan, choose_plan, say_plan
from .prepare import FitRows, Prepared, make_problems, prepare_network, split_rows
from .solve import FittedMixture, fit_mixture


def fit_model(network: nn.Module, train: Any, options: FitOptions) -> ModelState:
    """Give a trained network an honest error bar: one after another, the stages of `trustgp.fit`."""
    began = time.perf_counter()
    with reporting(enabled=options.progress) as report, ThreadPoolExecutor(1) as aside:
        rows = read_rows(train, name="train")
        ready = prepare_network(network, rows, options)
        device = ready.network.device
        context = FitContext(device, options.seed, options.executors(device)[0], report)
        data = split_rows(ready, rows, options, context)
        del rows  # where some are split off, the others are a copy
        executor, plan = choose_plan(ready, data, options)
        plan = replace(plan, seconds=plan.seconds + time.perf_counter() - began)  # of all
        say_plan(report, plan, len(data.rows), ready, options.outputs)
        prints = aside.submit(_fingerprints, ready, data)  # of gigabytes they take seconds
        provenance = _provenance(ready, data, options)
        store = _open_checkpoint(prints, plan, ready, data, options)
        context = replace(context, executor=executor, store=store)
        with explain_interrupts(report, store):
            limit = options.budget.size
            room = None if limit is None else plan.witness_bytes
            witness = find_witness(data.rows, options.witness, context.nearby(), room)
            if limit is not None:
                limit = (limit - (0 if witness is None else witness.nbytes)) // len(ready.maps)
            fitted = [
                fit_mixture(index, problem, plan, options, limit, context)
                for index, problem in enumerate(_problems(ready, data, options, context))
            ]
            report.begin("calibrating")
            provenance = replace(provenance, **prints.result())
            state = calibrate(replace(_assembled(ready, data, provenance, fitted), witness=witness), report)
        seconds, expected = time.perf_counter() - began, rate_text(plan.seconds)
        speed = rate_text(len(data.rows) / seconds)
        report.say(f"fitted in {rate_text(seconds)} s, {speed} rows/s; {expected} s were expected.")
        return state


def _fingerprints(ready: Prepared, data: FitRows) -> dict[str, str]:
    """Of network and rows."""
    network = network_fingerprint(ready.network.module)
    return {"network": network, "data": rows_fingerprint(data.rows, data.groups)}


def _provenance(ready: Prepared, data: FitRows, options: FitOptions) -> Provenance:
    """Where the model comes from; fingerprints, and what the experts may hold, are not known yet."""
    return Provenance(
        network="",
        data="",
        rows=len(data.rows),
        structure=structure(data.rows.inputs),
        outputs=options.outputs,
        tangents=ready.tangents,
        names=ready.network.names,
        likelihood=options.likelihood,
        cap=(),
        lend=(),
        seed=options.seed,
        witness=options.witness,
        split=data.split,
    )


def _open_checkpoint(
    prints: Future[dict[str, str]], plan: Plan, ready: Prepared, data: FitRows, options: FitOptions
) -> Checkpoint | None:
    """The folder of solved experts; None: the user wants none. One of another fit is refused."""
    if options.checkpoint is None:
        return None
    settings = {
        **prints.result(),
        "tangents": [type(ready.tangents).__name__, ready.tangents.settings()],
        "names": list(ready.network.names),
        "experts": plan.num_experts,
        "subset": plan.subset,
        **options.settings(),
    }
    if has_output_selector(ready.network.module):  # a function has no fingerprint; what it picked has
        settings["output"] = tensor_fingerprint(data.residuals[0])
    return Checkpoint.open(options.checkpoint, settings)


def _problems(ready: Prepared, data: FitRows, options: FitOptions, context: FitContext) -> list[Problem]:
    """What the experts of each kernel share; rows go to the device where the work stays in this process."""
    linear, rows = None, data.rows
    if not options.likelihood.common_prior:  # a common prior is found on few rows
        linear = precompute_linear(ready.maps[0][0], rows, context)
    if nearby(context.executor) is context.executor:
        rows = rows.near(context.device)
    return make_problems(ready.maps, rows, data.residuals, data.groups, ready.blends, linear)


def _assembled(
    ready: Prepared, data: FitRows, provenance: Provenance, fitted: list[FittedMixture]
) -> ModelState:
    """The kernels together, not yet calibrated."""
    cap, lend = (tuple(getattr(one.quota, name) for one in fitted) for name in ("own", "borrowed"))
    partitions, solved = tuple(one.partition for one in fitted), tuple(one.solved for one in fitted)
    training = Training(data.rows, data.groups, data.validation, partitions, solved)
    mixtures = tuple(one.mixture for one in fitted)
    provenance = replace(provenance, cap=cap, lend=lend)
    return ModelState(ready.network.module, mixtures, provenance, training=training)
