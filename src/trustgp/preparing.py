"""The first stage: everything that is checked and chosen before long work starts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .data import Rows, chunks, looks_like_time_series, require_finite
from .executors.base import Executor
from .likelihoods import Regression
from .progress import Reporter
from .tangents import JacobianRows, LayerFactors, Sketch, Tangents, output_mixes
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


def prepare_network(
    network: nn.Module,
    rows: Rows,
    *,
    tangents: Tangents | None,
    outputs: str,
    device: str | torch.device | None,
    seed: int,
    output: Output | None = None,
) -> Prepared:
    """Probe the network, copy it, and bind its tangents."""
    network = with_output(network, output)
    target = torch.device(device) if device is not None else None
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(rows), generator=generator)[:SAMPLE_ROWS]
    sample, targets = rows.take(chosen), rows.targets[chosen.to(rows.targets.device)]
    probed = check_network(network, rows.take(torch.arange(min(PROBE_ROWS, len(rows)))))
    mixes = output_mixes(outputs, as_matrix(probed).shape[1], generator)
    reason = "as asked for"
    if tangents is None:
        tangents, reason = choose_tangents(network, rows, target, len(mixes[0][0]))
    prepared = prepare(network, tangents.choose(network), target)
    maps = [(tangents.bind(prepared, mix, sample, targets), served) for mix, served in mixes]
    if maps[0][0].slow:
        warnings.warn(maps[0][0].slow, stacklevel=3)
    return Prepared(prepared, maps, tangents, reason)


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
    likelihood: Regression,
    rows: Rows,
    executor: Executor,
    report: Reporter,
    *,
    name: str,
) -> Tensor:
    """-H^-1 R of all rows, shape [n, C], after checking outputs and targets."""
    parts = list(chunks(len(rows), network.pass_rows(rows.inputs)))

    @torch.no_grad()
    def outputs_of(index: Tensor) -> Tensor:
        return network.matrix(rows.take(index)).cpu()

    results = dict(
        report.track(executor.run(outputs_of, parts), stage="running the network", total=len(parts))
    )
    outputs = torch.cat([results[i] for i in range(len(parts))])
    likelihood.check(outputs, rows.targets, name=name)
    require_finite(outputs, f"the network's outputs on the {name} rows")
    return likelihood.residual(outputs, rows.targets.cpu())


def warn_time_series(rows: Rows, seed: int) -> None:
    """Warn where leave-one-out would be too optimistic."""
    if looks_like_time_series(rows, torch.Generator().manual_seed(seed)):
        warnings.warn(
            "the rows look like a time series: neighbouring rows are far more alike than random ones. "
            "Without validation rows the error bar is then too small for new motions; pass `groups=` "
            "(trajectory labels) or `validation=` (rows from other trajectories).",
            stacklevel=3,
        )
