"""Projections of what goes into layers and comes back: leading directions, and the rest at random."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..data.trees import Inputs, count, take
from .jacobian.accumulators import Collector
from .jacobian.layer_gradients import LayoutError
from .jacobian.per_sample import Gradients
from .jacobian.strategies import layerwise

SAMPLED = 64  # rows, and vectors of a layer, in which its leading directions are found
SAMPLED_MIXES = 4
RIDGE = 1e-10  # of the largest energy: directions with less are lost in rounding
SAMPLE_BYTES = 256 * 2**20  # what these rows may take on the way

Projections = Mapping[tuple[str, str], Tensor]
"""P [m, k] of a parameter's side, by its name and "left" (its first dimension) or "right"."""


class Sampler(Collector):
    """Notes some of the vectors that come by at each side of each weight, and nothing else."""

    together = False

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], list[Tensor]] = defaultdict(list)

    def part(self, rows: slice, mixed: slice) -> Sampler:
        return self

    def room(self, size: int) -> int:
        return 0

    def thin(self, name: str, side: str, values: Tensor, axis: int, groups: int) -> Tensor:
        parted = values.unflatten(axis, (groups, -1))
        axis = axis + 1 if axis >= 0 else -1
        vectors = parted.movedim(axis, -1).flatten(0, -2)
        chosen = evenly(len(vectors), SAMPLED).to(vectors.device)
        self.found[name, side].append(vectors[chosen].double().cpu())
        return parted.narrow(axis, 0, 1).flatten(axis - 1, axis)


def find_projections(gradients: Gradients, sample: Inputs, widest: int, seed: int) -> Projections:
    """Projections of every side of a weight that mixes, where it is wider than they are."""
    plan, network = gradients.plan(sample), gradients.network
    few = take(sample, torch.arange(max(2, min(SAMPLED, SAMPLE_BYTES // plan.row_bytes))) % count(sample))
    mix = gradients.mix[evenly(len(gradients.mix), SAMPLED_MIXES)].to(network.device, network.dtype)
    sampler, generator = Sampler(), torch.Generator().manual_seed(seed)
    with suppress(LayoutError), torch.inference_mode(False):
        layerwise(network, plan, mix, few, sampler)
    found = {}
    for name, value in network.parameters.items():
        seen = {side: sampler.found.get((name, side)) for side in ("left", "right")}
        if any(seen.values()):
            width = widest if value.ndim == 2 else widest // 2
            for place, (side, vectors) in enumerate(seen.items()):
                # without vectors it is a side whose entries are looked up
                chosen = torch.empty(0, value.shape[place]) if vectors is None else torch.cat(vectors)
                by = projection(chosen, width, generator)
                if by is not None:
                    found[name, side] = by.to(network.device, network.dtype)
    return found


def projection(vectors: Tensor, width: int, generator: torch.Generator) -> Tensor | None:
    """P [m, k] from some vectors [s, m]; random signs without any; None: k >= m, and nothing is projected."""
    m = vectors.shape[1]
    if width >= m:
        return None
    if not len(vectors):
        return (torch.randint(0, 2, (m, width), generator=generator) * 2.0 - 1.0) / math.sqrt(width)
    vectors = vectors[evenly(len(vectors), SAMPLED)].double()
    vectors = torch.where(torch.isfinite(vectors), vectors, 0.0)
    energy, turned = torch.linalg.eigh(vectors @ vectors.T)
    most = min(width // 2, int((energy > RIDGE * energy[-1]).sum()))
    lead = vectors.T @ turned[:, len(energy) - most :]
    lead = lead * lead.gather(0, lead.abs().argmax(dim=0, keepdim=True)).sign()  # the same on any machine
    noise = torch.randn(m, width - most, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(torch.cat([lead / lead.norm(dim=0), noise], dim=1)).Q
    basis[:, most:] *= math.sqrt((m - most) / (width - most))
    return basis
