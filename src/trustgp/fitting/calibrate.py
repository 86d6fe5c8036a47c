"""The last stage: calibration on rows that the experts have not seen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.chunking import at_once, chunks, evenly, row_bytes, working_set
from ..data.rows import Rows
from ..data.split import in_proportion
from ..data.trees import Inputs, state_tensors
from ..data.user_warnings import warn_user
from ..executors.progress import Reporter
from ..experts.features import chunk_rows
from ..experts.mixture import MIN_VARIANCE
from ..experts.witness import WitnessPrediction
from ..experts.witness_fit import groups_left_out
from ..likelihoods.base import NoveltyThreshold
from ..math.calibration import MIN_SUPPORT
from ..math.held_out import CalibrationRows, mean_by_output
from ..math.quantiles import NUM_MEASURES, needed_rows
from ..state.model_state import ModelState, Training, network_pass, predict_uncalibrated
from .leave_out import stated_at
from .prepare import outputs_at
from .whole import left_out_leverage

OVERFIT_RATIO = 3.0  # ratio of held-out to training error from which to warn
MAX_OVERFIT_ROWS = 1024  # rows on which that ratio is measured, at most
MAX_BATCH_ROWS, MAX_BATCH_BYTES = 2**16, 32 * 2**20  # of validation rows predicted together


class HeldOutFit(NamedTuple):
    """How well a calibration fits the rows that it was fitted to."""

    loss: float = 0.0  # mean negative log likelihood
    start: float = 0.0  # the same with the calibration from left-out training rows
    warning: str = ""


class ValidationPasses:
    """Cache of the network's outputs and features of validation rows, by chunk: the next model of a fit
    reuses them, as far as memory allows."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Any]] = {}
        self._bytes = 0

    def __call__(self, chunk: int, state: ModelState, inputs: Inputs) -> tuple[Tensor, Any]:
        """Outputs [n, C] and features of a chunk of rows."""
        if chunk in self._kept:
            return self._kept[chunk]
        made = network_pass(state, inputs)
        size = sum(tensor.nbytes for tensor in state_tensors(made))
        if self._bytes + size <= working_set(state.device):
            self._kept[chunk] = made
            self._bytes += size
        return made


def calibrate(
    state: ModelState, report: Reporter, passes: Callable[..., Any] | None = None
) -> tuple[ModelState, HeldOutFit]:
    """Fit the scale to left-out training rows, then, from that start, to validation rows if there are any."""
    likelihood, training, shape = state.likelihood, state.training, state.shape
    assert training is not None, "a model in a fit has its rows"
    held_out, measures, scores, targets = None, None, state.held_scores, training.rows.targets
    if training.rows.weights is not None:
        targets = targets[in_proportion(training.rows.weights).to(targets.device)]
    if training.validation is not None:
        held_out, measures = _validation_rows(state, training.validation, report, passes)
    if likelihood.leaves_out:
        left_out, left_out_measures, indices = _left_out(state, training)
        calibrations = likelihood.calibrate(left_out, shape, targets, far=training.far)
        if held_out is None:
            held_out, measures = left_out, left_out_measures
            if left_out is not None and training.groups is None:
                _warn_overfit(state, training.rows, indices, left_out)
        else:
            calibrations = likelihood.recalibrate(held_out, shape, calibrations)
    else:
        seen = state.provenance.split[1] > 0
        calibrations = likelihood.calibrate(held_out, shape, targets, seen=seen)
    fitted = HeldOutFit()
    if held_out is not None:
        reason = likelihood.calibration_warning(held_out, calibrations)
        fitted = HeldOutFit(*likelihood.held_out_losses(held_out, calibrations), reason)
    scores = scores if measures is None else likelihood.score(measures, calibrations)
    return replace(state, calibrations=calibrations, held_scores=scores), fitted


def recalibrate(state: ModelState, rows: Rows, report: Reporter) -> ModelState:
    """Refit the scale, and the threshold if there is one, to rows that neither the network nor the experts
    have seen. Values that need training rows (see `OutlierPrior`) do not change."""
    likelihood, shape = state.likelihood, state.shape
    likelihood.check(shape.outputs, rows.targets, name="validation")
    held_out, measures = _validation_rows(state, rows, report)
    calibrations = likelihood.recalibrate(held_out, shape, state.calibrations)
    scores = likelihood.score(measures, calibrations)
    threshold = threshold_again(state.threshold, scores)
    return replace(state, calibrations=calibrations, held_scores=scores, threshold=threshold)


def threshold_again(threshold: NoveltyThreshold | None, scores: Tensor) -> NoveltyThreshold | None:
    """Threshold refitted to these scores; None if there was no threshold or there are too few scores."""
    if threshold is None or len(scores) < needed_rows(1.0 - float(threshold.false_alarm)):
        return None
    return NoveltyThreshold.fit(scores, float(threshold.false_alarm))


@torch.no_grad()
def _validation_rows(
    state: ModelState, rows: Rows, report: Reporter, passes: Callable[..., Any] | None = None
) -> tuple[Any, Tensor]:
    """Validation rows in the form that the likelihood calibrates on, and their novelty measures [n, K], both
    computed in chunks; `passes` returns the network's outputs and features of a chunk."""
    likelihood, held_out, measures = state.likelihood, [], []
    size = row_bytes(rows.first) + 80 * state.shape.outputs
    # large chunks, so that an expert predicts few times; with explicit features, those of one pass
    tangents = state.mixtures[0].tangents
    most = MAX_BATCH_ROWS if tangents.num_columns(expert=False) is None else chunk_rows(tangents)
    parts = list(chunks(len(rows), max(1, min(most, at_once(MAX_BATCH_BYTES, state.device) // size))))
    tracked = report.track(parts, stage="calibrating", total=len(parts), rows=len)
    for chunk, index in enumerate(tracked):
        inputs, targets = rows.batch(index)
        given = None if passes is None else passes(chunk, state, inputs)
        outputs, raw = predict_uncalibrated(state, inputs, given)
        held_out.append(likelihood.calibration_rows(outputs, raw, targets))
        measures.append(likelihood.measures(raw, outputs).cpu())
    return type(held_out[0]).cat(held_out), torch.cat(measures)


def _warn_overfit(state: ModelState, rows: Rows, indices: Tensor, left_out: CalibrationRows) -> None:
    """Warn where the network's error on its training rows is far below its error on left-out rows."""
    network, sample = state.mixtures[0].tangents.network, indices[evenly(len(indices), MAX_OVERFIT_ROWS)]
    outputs, targets = outputs_at(network, rows, sample), rows.targets[sample].cpu()
    training = state.likelihood.residual(outputs, targets).square().mean(dim=0)
    held_out = mean_by_output(left_out, left_out.residual.square(), len(training))
    varying = held_out > 0
    ratio = float((held_out[varying] / training[varying]).log().mean().div(2).exp())
    if ratio >= OVERFIT_RATIO:
        warn_user(
            f"The network overfits: its held-out error is about {min(ratio, 1000.0):.0f}x its training "
            "error. Pass validation= to tighten the intervals."
        )


def _left_out(state: ModelState, training: Training) -> tuple[CalibrationRows | None, Tensor, Tensor]:
    """Left-out rows of all judged experts, with the smoothed scales that predictions use (None if there are
    none); the novelty measures of these rows [k, K]; and their indices among the training rows [k]."""
    parts, targets, witness, device = [], training.rows.targets, None, state.device
    for mixture, solved in zip(state.mixtures, training.solved, strict=True):
        for log_kappa, result in zip(mixture.log_kappa, solved, strict=True):
            if (held_out := result.held_out) is None:
                continue
            own = result.expert.rows[: int(result.expert.own)]
            own = own[evenly(len(own), len(held_out) // len(log_kappa))].cpu()  # a sample if many
            leverage = left_out_leverage(mixture, training.rows, own, training.by_output)
            values = {"log_leverage": leverage, "log_stated": stated_at(mixture, training.rows, own)}
            values["target"] = targets[own.to(targets.device)].double()[:, mixture.outputs.to(targets.device)]
            values = {k: v.flatten().to(held_out.residual.device) for k, v in values.items()}
            held_out = replace(held_out, log_kappa=log_kappa.repeat(len(own)), **values)
            parts.append((own, mixture.outputs, held_out))
    if not parts:
        return None, torch.zeros(0, NUM_MEASURES, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    indices = torch.cat([own for own, *_ in parts]).unique()
    if state.witness is not None:
        groups = torch.arange(len(targets)) if training.groups is None else training.groups
        witness = groups_left_out(state.witness, groups, indices)
    measures = torch.zeros(len(targets), NUM_MEASURES, dtype=torch.float64, device=device)
    counts = torch.zeros(len(targets), dtype=torch.float64, device=device)
    for number, (own, outputs, held_out) in enumerate(parts):
        held_out = _measured(held_out, witness, own.to(device), outputs.to(device), targets)
        measures[own.to(device)] += held_out.measures[:: len(outputs)].to(device)
        counts[own.to(device)] += 1.0
        parts[number] = (own, outputs, held_out)
    rows, every = training.rows, CalibrationRows.cat([held_out for *_, held_out in parts])
    if rows.weights is not None:
        every = every.counted(rows.weights_at(torch.cat([own for own, *_ in parts])))
        indices = indices[in_proportion(rows.weights[indices])]
    return every, (measures / counts[:, None])[indices.to(device)].cpu(), indices


def _measured(
    held_out: CalibrationRows,
    witness: WitnessPrediction | None,
    rows: Tensor,
    outputs: Tensor,
    targets: Tensor,
) -> CalibrationRows:
    """Left-out rows with novelty measures and the prediction g of the witness: its estimate of y - f is
    g - f, which is y - f minus its own error y - g."""
    device = held_out.residual.device
    if witness is None:
        variance = (held_out.epistemic + held_out.noise).clamp_min(MIN_VARIANCE).log()
        own = [held_out.novelty.clamp_min(MIN_SUPPORT).log(), variance]
        means = torch.stack([each.reshape(len(rows), -1).mean(dim=1) for each in own], dim=1)
        return replace(held_out, measures=means.repeat_interleave(len(outputs), dim=0))
    opinion = {name: value[rows] for name, value in witness.opinion(targets.to(witness.mean)).items()}
    measures = opinion.pop("nearest").repeat_interleave(len(outputs), dim=0).to(device)
    values = {name: value[:, outputs].flatten().to(device) for name, value in opinion.items()}
    # `opinion` was given y instead of f, so this value is g - y
    values["witness_mean"] = held_out.residual + values["witness_mean"]
    return replace(held_out, **values, measures=measures)
