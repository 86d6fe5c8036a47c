"""Pipeline from a network and rows to a fitted model: the order of the stages."""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
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
from ..experts.witness import WitnessState
from ..experts.witness_fit import find_witness
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
from .leave_out import joined
from .options import FitOptions
from .plan import MAX_EXPERTS, Plan, choose_plan, default_sizes, log_plan
from .prepare import (
    FitRows,
    Prepared,
    Residuals,
    make_problems,
    of_rank,
    prepare_network,
    run_network,
    split_rows,
)
from .solve import FittedMixture, fit_mixture
from .whole import RowSums

STRIDES, MIN_THINNED_ROWS = (8, 32), 200  # strides of training rows to try, and rows that must remain
# Minimum gains in NLL: of validation rows by a calibration of their own (else no thinning is tried) and by
# thinning; of left-out groups by thinning: each candidate predicts them from its own rows, and they are few.
MIN_SURPRISE, MIN_GAIN, MIN_GROUP_GAIN = 0.05, 0.01, 0.05


def fit_model(network: Any, train: Any, options: FitOptions) -> ModelState:
    """Fit the error bar of a trained network: run the stages of `trustgp.fit` one after another."""
    began = time.perf_counter()
    with (
        locked(options.checkpoint),  # first: a folder that is in use is refused before the work
        reporting(enabled=options.progress) as report,
        ThreadPoolExecutor(2) as background,
    ):
        network, rows = _read(network, train, options)
        device = options.device or next(network.parameters(), torch.empty(0)).device
        executor = options.executors(device)[0]
        # on the device, if the work stays in this process
        device_rows = rows.to_device(device) if nearby(executor) is executor else rows
        require_finite_rows(device_rows, "train")
        ready = prepare_network(network, device_rows, options)
        prints = _fingerprints(background, ready.network.module)
        context = FitContext(device, options.seed, executor, report)
        data = split_rows(ready, device_rows, context)
        ready, num_experts, rank = plan_for_budget(network, device_rows, ready, data)
        check_savable([tangents for tangents, _ in ready.maps], device_rows.first)
        executor, plan = choose_plan(ready, data, num_experts, rank)
        log_plan(report, plan, ready, len(data.rows))
        host_data = data.rebind(rows)  # as the user passed them
        prints["data"] = background.submit(rows_fingerprint, host_data.rows, host_data.groups)
        probes = Probes.of(ready.network, host_data.rows)
        store = _open_checkpoint(prints, plan, ready, probes)
        fit = Fit(ready, data, plan, replace(context, executor=executor, store=store))
        with explain_interrupts(report, store):
            state, suits = fit.best_model(device_rows)
            if suits.warning:
                warn_user(suits.warning)
            state = _completed(state, probes, prints, host_data.every(state.provenance.stride))
        ready.network.recording = True
        seconds = time.perf_counter() - began
        speed = f"{rate_text(seconds)} s, {rate_text(len(data.rows) / seconds)} rows/s"
        report.log(f"fitted in {speed}; the model takes {size_text(nbytes(state))}.")
        return state


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


def _fingerprints(pool: Executor, module: nn.Module) -> dict[str, Future[Any]]:
    """Futures of the fingerprints of network and weights, which may take seconds."""
    return {
        "network": pool.submit(network_fingerprint, module),
        "weights": pool.submit(weights_fingerprints, module),
    }


def _completed(
    state: ModelState, probes: Probes | None, prints: dict[str, Future[Any]], data: FitRows
) -> ModelState:
    """State with probes and fingerprints, and with the user's own copy of the experts' rows."""
    values = {name: one.result() for name, one in prints.items()}
    if state.provenance.stride > 1:
        values["data"] = rows_fingerprint(data.rows, data.groups)
    assert state.training is not None
    training = replace(state.training, rows=data.rows, validation=data.validation, by_output=None)
    return replace(state, probes=probes, provenance=replace(state.provenance, **values), training=training)


def _open_checkpoint(
    prints: dict[str, Future[Any]], plan: Plan, ready: Prepared, probes: Probes | None
) -> Checkpoint | None:
    """Checkpoint of solved experts, if the user named a folder; a folder of another fit is refused."""
    options = ready.options
    if options.checkpoint is None:
        return None
    settings = {
        **{name: prints[name].result() for name in ("network", "data")},
        "tangents": [type(ready.tangents).__name__, ready.tangents.settings()],
        "names": list(ready.network.names),
        "experts": plan.num_experts,
        **options.settings(),
    }
    if has_output_selector(ready.network.module):  # a function has no fingerprint, but its output has
        settings["output"] = tensor_fingerprint(*leaves(ready.probed))
    return Checkpoint.open(options.checkpoint, settings, (probes, ready.network) if probes else None)


@dataclass(frozen=True)
class Fit:
    """A fit with its plan, ready to run."""

    ready: Prepared
    data: FitRows
    plan: Plan
    context: FitContext

    def best_model(self, device_rows: Rows) -> tuple[ModelState, HeldOutFit]:
        """Model of all rows, or of every k-th row if that one predicts held-out rows better."""
        sums = RowSums(self.ready, self.data.rows)
        problems = self.problems(device_rows, sums)
        whole = sums.fields(problems[0].residual)
        strides, grouped = self._strides(), self.data.validation is None
        judge, gain = ("left-out groups", MIN_GROUP_GAIN) if grouped else ("validation rows", MIN_GAIN)
        thinned = [[one.every(stride) for one in problems] for stride in strides]
        passes = ValidationPasses() if strides else None
        state, suits = self.fit_rows(problems, whole, passes, by_output=sums.by_output)
        for number, (stride, fewer) in enumerate(zip(strides, thinned, strict=True), start=1):
            if not grouped and suits.start - suits.loss < MIN_SURPRISE:
                break  # validation rows are like left-out training rows
            first = number * len(self.ready.maps)
            other, its = self._every(stride).fit_rows(fewer, whole, passes, first=first)
            self.context.report.log(
                f"every {stride}th row: NLL of {judge} {its.loss:.3f}, was {suits.loss:.3f}"
            )
            if its.loss < suits.loss - gain:
                chosen = {"stride": stride, "thinned": f"every {stride}th, as {judge} chose"}
                state, suits = replace(other, provenance=replace(other.provenance, **chosen)), its
        return state, suits

    def _strides(self) -> list[int]:
        """Strides to try for the experts' rows: rows along a trajectory are correlated and count for fewer.
        Validation rows or left-out groups choose between them; without either there are none."""
        unjudged = self.data.validation is None and self.data.groups is None
        if unjudged or not self.ready.options.likelihood.leaves_out:
            return []
        return [stride for stride in STRIDES if len(self.data.rows) >= stride * MIN_THINNED_ROWS]

    def _every(self, stride: int) -> Fit:
        """The fit of every `stride`-th row, with as few experts as these need."""
        data = self.data.every(stride)
        size = min(default_sizes(self.ready, len(data.rows))[0], self.plan.num_experts)
        size = min(size, max(MAX_EXPERTS, self.plan.num_experts // stride))  # of many, fewer suffice
        return replace(self, data=data, plan=replace(self.plan, num_experts=size))

    def problems(self, device_rows: Rows, sums: RowSums) -> list[Problem]:
        """Problem of each kernel: what its experts share. If features are cached, the pass through the
        network that computes those of the first kernel also yields the outputs and the `sums`."""
        ready, data, plan, context = self.ready, self.data, self.plan, self.context
        rows, validation, likelihood = data.rows, data.validation, ready.options.likelihood
        first, features, linear = ready.maps[0][0], None, None
        residuals = Residuals(likelihood, device_rows, "train", ready.projections)
        if plan.keep_features and ready.network.one_pass:
            table = FeatureTable(first, len(rows), mapped=plan.mapped)
            with recorded(passes := sums.passes(first)):
                for tangents, chosen in passes:
                    made = run_tangents(
                        tangents, rows, context, outputs=True, index=chosen, also=sums.reduced
                    )
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
            residuals.check_outputs(ready.network, validation, context)
        values = residuals.all()
        residuals.warn()
        if validation is not None and not data.split[1]:
            checked = Residuals(likelihood, validation, "validation")
            checked.check_outputs(ready.network, validation, context)
        if not likelihood.common_prior:  # a common prior is found on few rows
            linear = precompute_linear(first, rows, context)
        problems = make_problems(ready.maps, rows, values, data.groups, ready.projections, linear)
        problems = [of_rank(one, plan.rank, likelihood) for one in problems]
        return [replace(problems[0], cached=features), *problems[1:]]

    def fit_rows(
        self,
        problems: list[Problem],
        whole: dict[str, Any],
        passes: ValidationPasses | None,
        *,
        first: int = 0,
        by_output: Tensor | None = None,
    ) -> tuple[ModelState, HeldOutFit]:
        """Fit experts, witness and calibration to these rows. `by_output` are cached gradients [n, C, D],
        a checkpoint numbers the kernels from `first` on, and all models of a fit share `passes`."""
        options, report, fitted = self.ready.options, self.context.report, []
        limit = None if options.budget.size is None else self.plan.witness_bytes
        witness = find_witness(self.data.rows, options.witness, self.context.nearby(), limit)
        while problems:  # each is freed when it is solved, and its features with it
            number = first + len(fitted)
            fitted.append(fit_mixture(number, problems.pop(0), self.plan, options, self.context))
        report.begin("calibrating")
        fitted[0] = replace(fitted[0], mixture=replace(fitted[0].mixture, **whole))
        state, suits = calibrate(self._assemble(fitted, witness, by_output), report, passes)
        small = shrink_to_budget(state, options.budget.size)
        return calibrate(small, report, passes) if small.provenance.compressed else (small, suits)

    def _assemble(
        self, fitted: list[FittedMixture], witness: WitnessState | None, by_output: Tensor | None
    ) -> ModelState:
        """Uncalibrated state of all kernels, with its provenance except for the fingerprints."""
        options, data, network = self.ready.options, self.data, self.ready.network
        provenance = Provenance(
            network="",
            data="",
            rows=len(data.rows),
            structure=structure(data.rows.first),
            outputs=options.outputs,
            tangents=self.ready.tangents,
            likelihood=options.likelihood,
            lend=tuple(one.lend for one in fitted),
            seed=options.seed,
            witness=options.witness,
            split=data.split,
            rank=self.plan.rank,
            kinds=tuple(kinds(data.rows.first)),
            stated=network.stated,
            head=network.head,
        )
        partitions, solved = (tuple(getattr(one, name) for one in fitted) for name in ("partition", "solved"))
        far = joined([one.far for one in fitted])
        training = Training(data.rows, data.groups, data.validation, partitions, solved, far, by_output)
        mixtures = tuple(one.mixture for one in fitted)
        return ModelState(network.module, mixtures, provenance, witness=witness, training=training)
