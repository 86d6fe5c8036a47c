"""The first stage: everything that is checked and chosen before long work starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.chunking import chunks, map_chunks
from ..data.rows import Rows, finite_rows
from ..data.trees import Inputs, count, take
from ..data.user_warnings import warn_user
from ..executors import FitContext
from ..experts.expert import Problem
from ..likelihoods import Likelihood
from ..tangents import JacobianRows, LayerFactors, Sketch, Tangents
from ..tangents.base import TangentMap
from ..tangents.checks import check_network
from ..tangents.network import TangentNetwork, as_matrix, prepare
from ..tangents.output import with_output
from .options import FitOptions

PROBE_ROWS = 64  # rows on which the network is probed and timed
SAMPLE_ROWS = 512  # rows from which parameters are ranked


@dataclass(frozen=True)
class Prepared:
    """A network that has passed every probe.

    Args:
        network: The private copy and its chosen parameters.
        maps: For each kernel, what makes its features, and the outputs it serves [B].
        tangents: The representation.
        reason: Why this one.
        blends: What the experts of each kernel learn, each [C, B]; empty: all of its outputs.
    """

    network: TangentNetwork
    maps: list[tuple[TangentMap, Tensor]]
    tangents: Tangents
    reason: str
    blends: list[Tensor]

    @property
    def num_outputs(self) -> int:
        """C."""
        return self.maps[0][0].mix.shape[1]


def prepare_network(network: nn.Module, rows: Rows, options: FitOptions) -> Prepared:
    """Probe the network, copy it, and bind its tangents."""
    network, likelihood, tangents = with_output(network, options.output), options.likelihood, options.tangents
    generator = torch.Generator().manual_seed(options.seed)
    chosen = torch.randperm(len(rows), generator=generator)[:SAMPLE_ROWS]
    sample, targets = rows.take(chosen), rows.targets[chosen.to(rows.targets.device)]
    probed = check_network(network, rows.take(torch.arange(min(PROBE_ROWS, len(rows)))))
    num_outputs = as_matrix(probed).shape[1]
    likelihood.check(num_outputs, rows.targets, name="train")
    likelihood.warn(num_outputs, rows.targets)
    mixes = likelihood.mixes(options.outputs, num_outputs, generator)
    reason = "as asked for"
    if tangents is None:
        tangents, reason = choose_tangents(network, rows, options.device, len(mixes[0][0]))
    prepared = prepare(network, tangents.choose(network), options.device)
    targets = likelihood.pruning_targets(lambda: _outputs(prepared, sample), targets)
    maps = [(tangents.bind(prepared, mix, sample, targets), served) for mix, served in mixes]
    if maps[0][0].slow_reason:
        warn_user(maps[0][0].slow_reason)
    blends = find_blends([bound.mix for bound, _ in maps], likelihood, options.seed)
    return Prepared(prepared, maps, tangents, reason, blends)


def _outputs(network: TangentNetwork, inputs: Inputs) -> Tensor:
    """f(x) of a sample, shape [n, C], on the CPU."""
    parts = chunks(count(inputs), network.pass_rows(inputs))
    with torch.no_grad():
        return torch.cat([network.matrix(take(inputs, index)).cpu() for index in parts])


def choose_tangents(
    network: nn.Module, rows: Rows, device: torch.device | None, num_mixed: int
) -> tuple[Tangents, str]:
    """Exact where that is cheap: layer factors, or gradient rows no longer than a sketch; else a sketch."""
    sample = rows.take(torch.arange(min(2, len(rows))))
    try:
        tangents = LayerFactors()
        tangents.choose(network)
        prepared = prepare(network, tangents.parameters, device)
        mix = torch.eye(as_matrix(prepared.outputs(sample)).shape[1], dtype=torch.float64)[:1]
        tangents.bind(prepared, mix, sample, rows.targets[:2])
        return tangents, "every parameter belongs to a layer whose gradient factorises"
    except (ValueError, RuntimeError) as error:
        reason = str(error).partition(";")[0].partition("\n")[0]
    total = sum(p.numel() for p in network.parameters() if p.requires_grad)
    if total * num_mixed <= Sketch().dim:
        return JacobianRows(), f"since {reason}, and a row has only {total * num_mixed} gradients"
    return Sketch(), f"since {reason}, and a row has {total * num_mixed} gradients"


def residual_of(
    network: TangentNetwork,
    likelihood: Likelihood,
    rows: Rows,
    context: FitContext,
    *,
    name: str,
    blends: Sequence[Tensor] = (),
) -> list[Tensor]:
    """-H^-1 R of all rows, shape [n, C], after checking outputs and targets; with blends, [n, B] for each.

    Args:
        network: Whose outputs f they are about.
        likelihood: Gives H and R.
        rows: Inputs and targets.
        context: Where and how the work is done.
        name: Of the rows, in error messages.
        blends: Of each kernel, shape [C, B]: of many outputs, all n x C numbers are never there at once.
    """
    parts = list(chunks(len(rows), network.pass_rows(rows.inputs)))
    targets = rows.targets.cpu()

    @torch.no_grad()
    def residual(index: Tensor) -> tuple[Tensor, list[Tensor]]:
        outputs = torch.cat(map_chunks(lambda part: network.matrix(rows.take(part)).cpu(), index, len(index)))
        if int(index[0]) == 0:
            likelihood.check(outputs.shape[1], targets, name=name)
        found = likelihood.residual(outputs, targets[index])
        return finite_rows(outputs), [found @ blend for blend in blends] or [found]

    results = context.map(residual, parts, stage="running the network", rows=len)
    bad = (~torch.cat([finite for finite, _ in results])).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"the network's outputs on the {name} rows are NaN or infinite in {len(bad)} of {len(rows)} "
            f"rows, first in row {int(bad[0])}; drop or repair these rows."
        )
    return [torch.cat([found[k] for _, found in results]) for k in range(len(blends) or 1)]


def find_blends(mixes: Sequence[Tensor], likelihood: Likelihood, seed: int) -> list[Tensor]:
    """What the experts of each kernel learn, each [C, B]; empty: all of its outputs."""
    generator = torch.Generator().manual_seed(seed)
    blends = [likelihood.output_combination(mix.cpu(), generator) for mix in mixes]
    return [blend for blend in blends if blend is not None]


def make_problems(
    maps: Sequence[tuple[TangentMap, Tensor]],
    rows: Rows,
    residuals: Sequence[Tensor],
    groups: Tensor | None,
    blends: Sequence[Tensor],
) -> list[Problem]:
    """What the experts of each kernel share.

    Args:
        maps: What makes the features of each kernel, and the outputs it serves [B].
        rows: The training rows.
        residuals: Of each kernel, or one for all.
        groups: Of each row, shape [n], or None.
        blends: Of each kernel; empty: none.
    """
    return [
        Problem(
            rows,
            tangent_map,
            served,
            residuals[index if blends else 0],
            groups,
            blend=blends[index] if blends else None,
        )
        for index, (tangent_map, served) in enumerate(maps)
    ]
