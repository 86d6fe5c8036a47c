"""From a network and rows to a fitted model: the only file that knows the order of the stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from ..data.rows import read_rows
from ..executors import FitContext, nearby
from ..executors.progress import Reporter
from ..experts.expert import Problem
from ..experts.witness_fit import find_witness
from ..state.model_state import ModelState, Provenance, Training
from .calibrate import calibrate
from .choose_plan import choose_plan, say_plan
from .divide import precompute_linear
from .fit_rows import FitRows, split_rows
from .interrupts import explain_interrupts
from .options import FitOptions
from .prepare import Prepared, make_problems, prepare_network
from .provenance import make_provenance, open_checkpoint
from .solve import FittedMixture, fit_mixture


def fit_model(network: nn.Module, train: Any, options: FitOptions, report: Reporter) -> ModelState:
    """Give a trained network an honest error bar: one after another, the stages of `trustgp.fit`.

    Args:
        network: Trained, in eval mode.
        train: The rows it was trained on.
        options: Parsed.
        report: Shows how far it is.
    """
    rows = read_rows(train, name="train")
    ready = prepare_network(network, rows, options)
    device = ready.network.device
    context = FitContext(device, options.seed, options.executors(device)[0], report)
    data = split_rows(ready, rows, options, context)
    del rows  # where some are split off, the others are a copy
    executor, plan = choose_plan(ready, data.rows, options)
    say_plan(report, plan, len(data.rows), ready, options.outputs)
    provenance = make_provenance(ready, data, options)
    store = open_checkpoint(provenance, plan, ready, data, options)
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
        return calibrate(replace(_assembled(ready, data, provenance, fitted), witness=witness), report)


def _problems(ready: Prepared, data: FitRows, options: FitOptions, context: FitContext) -> list[Problem]:
    """What the experts of each kernel share; rows go to the device where the work stays in this process."""
    linear, rows = None, data.rows
    if not options.likelihood.common_prior:  # a common prior is found on few rows
        linear = precompute_linear(ready.maps[0][0], rows, context)
    if nearby(context.executor) is context.executor:
        rows = rows.near(context.device)
    problems = make_problems(ready.maps, rows, data.residuals, data.groups, ready.blends)
    return [replace(problem, linear=linear) for problem in problems]


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
