"""The first stage: everything that is checked and chosen before long work starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from ..data.chunking import chunks, evenly, map_chunks
from ..data.rows import DenseOutputError, Rows, distinct_rows, finite_rows, read_rows, require_all
from ..data.split import check_groups, holdout_split, repeated, share_in_common
from ..data.trees import Inputs, count, take
from ..data.user_warnings import warn_user
from ..executors import FitContext
from ..experts.expert import Problem
from ..likelihoods import Likelihood
from ..tangents import JacobianRows, LayerFactors, Sketch, Tangents
from ..tangents.base import TangentMap, leading_signs
from ..tangents.jacobian.layer_io import find_head
from ..tangents.network import TangentNetwork, as_matrix, check_network, choose_parameters, prepare, probe
from ..tangents.outputs import StatedOutputs, members_of, with_output
from ..tangents.sketch import SketchMap
from .options import FitOptions

PROBE_ROWS = 64  # rows on which the network is probed
SAMPLE_ROWS = 512  # rows from which parameters are ranked
LIGHT_WIDTH = 512  # length of a row's features in a light model
COMPARED_ROWS = 2048  # rows whose outputs are compared with their targets
MIN_ROWS = 20  # warn if there are fewer
DIRECTIONS = 8  # random directions from which correlations of the outputs are estimated


@dataclass(frozen=True)
class Prepared:
    """A network that has passed every probe."""

    options: FitOptions
    network: TangentNetwork  # the private copy and its chosen parameters
    maps: list[tuple[TangentMap, Tensor]]  # feature map of each kernel, and its outputs [B]
    tangents: Tangents
    reason: str  # why these tangents
    projections: list[Tensor]  # [C, B] each, of the outputs that a kernel learns; empty: all
    probed: Tensor | StatedOutputs  # outputs of the first rows

    @property
    def num_outputs(self) -> int:
        """Number of outputs C."""
        return self.maps[0][0].mix.shape[1]


def prepare_network(
    network: nn.Module, rows: Rows, options: FitOptions, tangents: Tangents | None = None
) -> Prepared:
    """Probe and copy the network, and bind its tangents: these, else the user's, else ones that suit it."""
    network, likelihood = with_output(network, options.select), options.likelihood
    tangents = tangents or options.tangents
    generator = torch.Generator().manual_seed(options.seed)
    chosen = torch.randperm(len(rows), generator=generator)[:SAMPLE_ROWS]
    sample, targets = rows.batch(chosen)
    try:
        probed = check_network(network, rows.take(torch.arange(min(PROBE_ROWS, len(rows)))))
    except DenseOutputError as error:
        raise DenseOutputError(str(error), rows) from None
    num_outputs, stated = as_matrix(probed).shape[1], isinstance(probed, StatedOutputs)
    if stated and not likelihood.uses_stated:
        raise ValueError(f"{likelihood!r} has no use for variances; select= must select the logits alone.")
    likelihood.check(num_outputs, rows.targets, name="train")
    likelihood.warn(num_outputs, rows.targets)
    own = torch.Generator().manual_seed(options.seed)  # the same signs for any number of rows
    mixes = likelihood.mixes(options.outputs, num_outputs, own)
    reason = "as asked for"
    if tangents is None:
        tangents, reason = choose_tangents(members_of(network)[0], rows, options, len(mixes[0][0]))
    prepared = prepare(network, tangents.choose(members_of(network)[0]), options.device, stated=stated)
    prepared.recording = False
    if likelihood.uses_hidden:
        prepared.head = find_head(prepared, sample)
    if options.outputs == "pseudo" and num_outputs > 1 and not likelihood.contrast:
        with suppress(RuntimeError):  # what cannot be differentiated is refused below, and named
            few = take(sample, evenly(count(sample), PROBE_ROWS))
            mixes = [(_longest_mix(prepared, few, own), mixes[0][1])]
    if tangents.wants_targets:
        targets = likelihood.pruning_targets(lambda: outputs_at(prepared, rows, chosen), targets)
    maps = [(tangents.bind(prepared, mix, sample, targets), served) for mix, served in mixes]
    if maps[0][0].slow_reason:
        warn_user(maps[0][0].slow_reason)
    projections = target_projections([bound.mix for bound, _ in maps], likelihood, options.seed)
    return Prepared(options, prepared, maps, tangents, reason, projections, probed)


def _longest_mix(network: TangentNetwork, inputs: Inputs, generator: torch.Generator) -> Tensor:
    """Signs over sqrt(C), shape [1, C], of the combination of outputs with the longest gradient, from second
    moments of the outputs' derivatives along random directions of the parameters."""
    energy: Tensor | float = 0.0
    for _ in range(DIRECTIONS):
        draw = partial(torch.randn, generator=generator, dtype=torch.float32)
        steps = {name: draw(value.shape).to(value) for name, value in network.parameters.items()}
        moved = network.directional(inputs, steps).double()
        energy = energy + moved.T @ moved
    signs = leading_signs(torch.where(torch.isfinite(torch.as_tensor(energy)), energy, 0.0).cpu())
    return signs[None] / len(signs) ** 0.5


@torch.no_grad()
def outputs_at(network: TangentNetwork, rows: Rows, index: Tensor) -> Tensor:
    """f(x) of a few rows, shape [k, C], on the CPU."""
    parts = index.split(network.pass_rows(rows.first))
    return torch.cat([network.matrix(rows.take(part)).cpu() for part in parts])


def choose_tangents(
    network: nn.Module, rows: Rows, options: FitOptions, num_mixed: int
) -> tuple[Tangents, str]:
    """Tangents and the reason for them: layer factors for exact experts, where they apply; else gradient rows
    if these are no longer than a sketch; else a sketch."""
    choice, every, why = options.parameters, dict(network.named_parameters()), "since "
    if not options.light:
        try:
            sample, tangents = rows.take(torch.arange(min(2, len(rows)))), LayerFactors(choice)
            tangents.choose(network)
            prepared = prepare(network, choice, options.device)
            mix = torch.eye(prepared.matrix(sample).shape[1], dtype=torch.float64)[:1]
            tangents.bind(prepared, mix, sample, rows.targets[:2])
            return tangents, "every parameter belongs to a layer whose gradient factorises"
        except (ValueError, RuntimeError) as error:
            why = f"since {str(error).partition(';')[0].partition(chr(10))[0]}, and "
    total = num_mixed * sum(every[name].numel() for name in choose_parameters(network, choice))
    width = LIGHT_WIDTH if options.light else Sketch.dim
    if total <= width:
        return JacobianRows(choice), f"{why}a row has only {total} gradients"
    return Sketch(width, parameters=choice), f"{why}a row has {total} gradients"


class Residuals:
    """Residuals -H^-1 R of rows [n, C], from their outputs chunk by chunk; with projections [C, B], [n, B]
    for each: the n x C matrix is then never allocated. `name` is what error messages call the rows."""

    def __init__(
        self, likelihood: Likelihood, rows: Rows, name: str, projections: Sequence[Tensor] = ()
    ) -> None:
        self._likelihood, self._name, self._projections = likelihood, name, projections
        self._rows, self._targets = rows, rows.targets.cpu()
        self._finite = torch.ones(len(rows), dtype=torch.bool)
        self._values: list[Tensor] = []  # of all rows, filled as they come
        self._added = torch.zeros(len(rows), dtype=torch.bool)
        self._sample: list[tuple[Tensor, Tensor]] = []  # evenly spread rows and their outputs

    def add(self, index: Tensor, outputs: Tensor) -> None:
        """Add the outputs [k, C] of rows `index`."""
        outputs = self._check(index, outputs)
        residual = self._likelihood.residual(outputs, self._targets[index])
        parts = [residual @ one for one in self._projections] or [residual]
        self._values = self._values or [part.new_empty(len(self._added), part.shape[1]) for part in parts]
        for values, part in zip(self._values, parts, strict=True):
            values[index] = part
        self._added[index] = True

    def _check(self, index: Tensor, outputs: Tensor) -> Tensor:
        """Check outputs; return them on the CPU."""
        outputs = outputs.cpu()
        if not self._sample:
            self._likelihood.check(outputs.shape[1], self._targets, name=self._name)
        self._finite[index] = finite_rows(outputs)
        sampled = index % -(-len(self._finite) // COMPARED_ROWS) == 0
        self._sample.append((index[sampled], outputs[sampled]))
        return outputs

    def warn(self) -> None:
        """Warn if the outputs do not suit the targets."""
        index, outputs = (torch.cat(part) for part in zip(*self._sample, strict=True))
        if reason := self._likelihood.output_warning(outputs, self._targets[index]):
            warn_user(reason)

    def all(self) -> list[Tensor]:
        """Residuals in the order of the rows. Raise ValueError if outputs were not finite."""
        self._require_finite()
        return [values[self._added] for values in self._values]

    def check_outputs(self, network: TangentNetwork, rows: Rows, context: FitContext) -> None:
        """Check the outputs of rows whose residuals are not needed, and raise where they are not finite."""
        for index, outputs in run_network(network, rows, context):
            self._check(rows.parent_indices(index), outputs)
        self._require_finite()

    def _require_finite(self) -> None:
        require_all(self._finite, f"the network's outputs on the {self._name} rows")

    def compute(self, network: TangentNetwork, context: FitContext) -> list[Tensor]:
        """Residuals of all rows, by a separate pass through the network."""
        for index, outputs in run_network(network, self._rows, context):
            self.add(index, outputs)
        return self.all()


def run_network(network: TangentNetwork, rows: Rows, context: FitContext) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, chunk by chunk, row indices and the network's outputs for these rows [k, C] on the CPU."""
    parts = list(chunks(len(rows), network.pass_rows(rows.first)))

    @torch.no_grad()
    def outputs_at(index: Tensor) -> Tensor:
        missing = len(parts[0]) - len(index) if network.device.type == "cuda" else 0
        full = torch.cat([index, index[-1:].repeat(missing)])  # cuDNN plans each shape anew
        pieces = map_chunks(lambda part: network.matrix(rows.take(part)).cpu(), full, len(full))
        return torch.cat(pieces)[: len(index)]

    for place, outputs in context.inline().run(outputs_at, parts, stage="running the network", rows=len):
        yield parts[place], outputs


def target_projections(mixes: Sequence[Tensor], likelihood: Likelihood, seed: int) -> list[Tensor]:
    """Projection [C, B] of the outputs for each kernel; empty if its experts learn all of its outputs."""
    generator = torch.Generator().manual_seed(seed)
    projections = [likelihood.output_combination(mix.cpu(), generator) for mix in mixes]
    return [projection for projection in projections if projection is not None]


def make_problems(
    maps: Sequence[tuple[TangentMap, Tensor]],
    rows: Rows,
    residuals: Sequence[Tensor],
    groups: Tensor | None,
    projections: Sequence[Tensor],
    linear: Tensor | None = None,
) -> list[Problem]:
    """Problem of each kernel: what its experts share. Without projections, all share one residual."""
    residuals = residuals if projections else [*residuals] * len(maps)
    each = zip(maps, residuals, projections or [None] * len(maps), strict=True)
    return [Problem(rows, *m, residual, groups, linear=linear, blend=p) for m, residual, p in each]


def of_rank(problem: Problem, rank: int | None, likelihood: Likelihood) -> Problem:
    """Problem for experts of at most `rank` directions (None: all), with a kernel for left-out rows where it
    needs one."""
    if rank is not None and likelihood.leaves_out:
        problem = replace(problem, leave_out_tangents=_leave_out_kernel(problem.tangents, problem.rows))
    return replace(problem, rank=rank)


def _leave_out_kernel(tangents: TangentMap, rows: Rows) -> TangentMap:
    """Kernel that predicts left-out rows of a light model from other trajectories: exact where possible."""
    if not isinstance(tangents, SketchMap) or tangents.sketch.dim >= Sketch.dim:
        return tangents
    network, names = tangents.network, tangents.sketch.parameters
    sample, targets = rows.batch(evenly(len(rows), SAMPLE_ROWS))
    with suppress(ValueError, RuntimeError):
        return LayerFactors(network.names).bind(network, tangents.mix, sample, targets)
    return Sketch(parameters=names).bind(network, tangents.mix, sample, targets)


@dataclass(frozen=True)
class FitRows:
    """The user's rows: those of the experts, and those to calibrate on."""

    rows: Rows  # rows of the experts
    groups: Tensor | None  # label of each of these rows; a group is left out as a whole
    validation: Rows | None  # rows to calibrate on
    split: tuple[int, int] = (0, 0)  # rows passed, and how many of them were split off to calibrate on

    def every(self, stride: int) -> FitRows:
        """FitRows with only every `stride`-th row of the experts."""
        groups = None if self.groups is None else self.groups[::stride]
        return replace(self, rows=self.rows.every(stride), groups=groups)

    def rebind(self, whole: Rows) -> FitRows:
        """FitRows that select these rows from another copy of the user's rows."""
        rows, validation = self.rows.rebind(whole), self.validation
        off = validation.rebind(whole) if validation is not None and self.split[1] else validation
        return replace(self, rows=rows, validation=off)


def split_rows(ready: Prepared, rows: Rows, context: FitContext) -> FitRows:
    """Rows for the experts and rows to calibrate on: the user's, or split off if a likelihood needs any."""
    options, likelihood = ready.options, ready.options.likelihood
    validation = options.validation
    labels = check_groups(options.groups, rows)
    if len(rows) < MIN_ROWS:
        warn_user(
            f"there are only {len(rows)} training rows: the size of the error bar is then hardly more than a "
            "guess. Pass all rows that the network was trained on, not one batch of them."
        )
    if validation is not None:
        network = ready.network.module
        validation = read_rows(validation, name="validation", unpack=options.unpack, network=network)
        probe(network, validation.first, "validation")
        likelihood.check(ready.num_outputs, validation.targets, name="validation")
        if share := share_in_common(validation, rows, options.seed):
            warn_user(
                f"about {100 * share:.0f} % of the validation rows are training rows, too: an error bar that "
                "is fitted to them is too small. Pass validation rows that the network was not trained on, "
                "or none."
            )
    context.report.begin("planning")
    # where rows are split off, groups only decide which of them stay together
    groups = None if likelihood.needs_held_out else labels
    if likelihood.leaves_out and not bool((new := distinct_rows(rows)).all()):  # duplicates are no evidence
        context.report.log(f"{int((~new).sum()):,} of {len(rows):,} rows repeat others and count once")
        rows, groups = rows.subset(new), None if groups is None else groups[new]
    data = FitRows(rows, groups, validation)
    if validation is None and likelihood.needs_held_out:
        off = holdout_split(rows, labels, options.seed)
        count = int(off.sum())
        held_out = repeated(rows.subset(off)) if count else None
        data = FitRows(rows.subset(~off), groups, held_out, (len(rows), count))
    generator = torch.Generator().manual_seed(options.seed)
    unchecked = likelihood.calibrated and data.validation is None and labels is None
    if unchecked and data.rows.looks_like_time_series(generator):
        warn_user(
            "the rows look like a time series: neighbouring rows are far more alike than random ones. "
            "Without validation rows the error bar is then too small for new motions; pass `groups=` "
            "(trajectory labels) or `validation=` (rows from other trajectories)."
        )
    return data
