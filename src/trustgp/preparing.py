"""The first stage: everything that is checked and chosen before long work starts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .data import Inputs, Rows, chunks, count, finite_rows, looks_like_time_series, take
from .executors.base import Executor
from .experts import Problem
from .halving import in_chunks
from .likelihoods import Likelihood, Regression
from .progress import Reporter
from .tangents import JacobianRows, LayerFactors, Sketch, Tangents
from .tangents.base import TangentMap
from .tangents.checking import check_network
from .tangents.network import TangentNetwork, as_matrix, prepare
from .tangents.picking import Output, with_output

PROBE_ROWS = 64  # rows on which the network is probed and timed
SAMPLE_ROWS = 512  # rows from which parameters are ranked


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


@dataclass(frozen=True)
class Prepared:
    """A network that has passed every probe.

    Args:
        network: The private copy and its chosen parameters.
        maps: For each kernel, what makes its features, and the outputs it serves [B].
        tangents: The representation.
        reason: Why this one.
    """

    network: TangentNetwork
    maps: list[tuple[TangentMap, Tensor]]
    tangents: Tangents
    reason: str

    @property
    def num_outputs(self) -> int:
        """C."""
        return self.maps[0][0].mix.shape[1]


def prepare_network(
    network: nn.Module,
    rows: Rows,
    *,
    tangents: Tangents | None,
    outputs: str,
    device: str | torch.device | None,
    seed: int,
    output: Output | None = None,
    likelihood: Likelihood = Regression(),  # noqa: B008 - frozen
) -> Prepared:
    """Probe the network, copy it, and bind its tangents."""
    network = with_output(network, output)
    target = torch.device(device) if device is not None else None
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(rows), generator=generator)[:SAMPLE_ROWS]
    sample, targets = rows.take(chosen), rows.targets[chosen.to(rows.targets.device)]
    probed = check_network(network, rows.take(torch.arange(min(PROBE_ROWS, len(rows)))))
    num_outputs = as_matrix(probed).shape[1]
    likelihood.check(num_outputs, rows.targets, name="train")
    likelihood.warn(num_outputs, rows.targets)
    mixes = likelihood.mixes(outputs, num_outputs, generator)
    reason = "as asked for"
    if tangents is None:
        tangents, reason = choose_tangents(network, rows, target, len(mixes[0][0]))
    prepared = prepare(network, tangents.choose(network), target)
    targets = likelihood.aim(lambda: _outputs(prepared, sample), targets)
    maps = [(tangents.bind(prepared, mix, sample, targets), served) for mix, served in mixes]
    if maps[0][0].slow:
        warnings.warn(maps[0][0].slow, stacklevel=3)
    return Prepared(prepared, maps, tangents, reason)


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
    executor: Executor,
    report: Reporter,
    *,
    name: str,
    blends: Sequence[Tensor] = (),
) -> list[Tensor]:
    """-H^-1 R of all rows, shape [n, C], after checking outputs and targets; with blends, [n, B] for each.

    Args:
        network: Whose outputs f they are about.
        likelihood: Gives H and R.
        rows: Inputs and targets.
        executor, report: Where and how the work is done.
        name: Of the rows, in error messages.
        blends: Of each kernel, shape [C, B]: of many outputs, all n x C numbers are never there at once.
    """
    parts = list(chunks(len(rows), network.pass_rows(rows.inputs)))
    targets = rows.targets.cpu()

    @torch.no_grad()
    def residual(index: Tensor) -> tuple[Tensor, list[Tensor]]:
        outputs = torch.cat(in_chunks(lambda part: network.matrix(rows.take(part)).cpu(), index, len(index)))
        if int(index[0]) == 0:
            likelihood.check(outputs.shape[1], targets, name=name)
        found = likelihood.residual(outputs, targets[index])
        return finite_rows(outputs), [found @ blend for blend in blends] or [found]

    tracked = report.track(
        executor.run(residual, parts),
        stage="running the network",
        total=len(parts),
        rows=lambda found: len(parts[found[0]]),
    )
    results = dict(tracked)
    bad = (~torch.cat([results[i][0] for i in range(len(parts))])).nonzero().flatten()
    if len(bad):
        raise ValueError(
            f"the network's outputs on the {name} rows are NaN or infinite in {len(bad)} of {len(rows)} "
            f"rows, first in row {int(bad[0])}; drop or repair these rows."
        )
    return [torch.cat([results[i][1][k] for i in range(len(parts))]) for k in range(len(blends) or 1)]


def find_blends(mixes: Sequence[Tensor], likelihood: Likelihood, seed: int) -> list[Tensor]:
    """What the experts of each kernel learn, each [C, B]; empty: all of its outputs."""
    generator = torch.Generator().manual_seed(seed)
    blends = [likelihood.blend(mix.cpu(), generator) for mix in mixes]
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


def outputs_text(ready: Prepared, outputs: str) -> str:
    """What the kernel of several outputs costs."""
    count = ready.num_outputs
    passes = {
        "shared": f"{count} backward passes",
        "separate": f"{count} kernels",
        "pseudo": "one backward pass",
    }
    return f"outputs: {outputs}, {passes[outputs]} for {count} {'output' if count == 1 else 'outputs'}"


def warn_time_series(rows: Rows, seed: int) -> None:
    """Warn where leave-one-out would be too optimistic."""
    if looks_like_time_series(rows, torch.Generator().manual_seed(seed)):
        warnings.warn(
            "the rows look like a time series: neighbouring rows are far more alike than random ones. "
            "Without validation rows the error bar is then too small for new motions; pass `groups=` "
            "(trajectory labels) or `validation=` (rows from other trajectories).",
            stacklevel=3,
        )
