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
FEWEST, SHARE = 16, 8  # of these rows at least so many, else at most one in so many: each takes a whole pass
SAMPLED_MIXES = 4
TINY = torch.finfo(torch.float64).tiny
RIDGE = 1e-10  # of the largest energy: directions with less are lost in rounding
SAMPLE_BYTES = 256 * 2**20  # what these rows may take on the way

Projections = Mapping[tuple[str, str], Tensor]
"""P [m, k] of a parameter's side, by its name and "left" (its first dimension) or "right"."""


class Sampler(Collector):
    """Notes some of the vectors that come by at each side of each weight, and nothing else."""

    together = False

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], list[Tensor]] = defaultdict(list)

    def room(self, size: int) -> int:
        return 0

    def thin(self, name: str, side: str, values: Tensor, axis: int, groups: int) -> Tensor:
        parted = values.unflatten(axis, (groups, -1))
        axis = axis + 1 if axis >= 0 else -1
        vectors = parted.movedim(axis, -1).flatten(0, -2)
        chosen = evenly(len(vectors), SAMPLED).to(vectors.device)
        self.found[name, side].append(vectors[chosen])
        return parted.narrow(axis, 0, 1).flatten(axis - 1, axis)


def find_projections(gradients: Gradients, sample: Inputs, widest: int, seed: int) -> Projections:
    """Projections of every side of a weight that mixes, where it is wider than they are."""
    plan, network = gradients.plan(sample), gradients.network
    most = min(SAMPLED, SAMPLE_BYTES // plan.row_bytes, max(FEWEST, count(sample) // SHARE))
    few = take(sample, torch.arange(max(2, most)) % count(sample))
    mix = gradients.mix[evenly(len(gradients.mix), SAMPLED_MIXES)].to(network.device, network.dtype)
    sampler, generator = Sampler(), torch.Generator().manual_seed(seed)
    with suppress(LayoutError), torch.inference_mode(False):
        layerwise(network, plan, mix, few, sampler)
    lots: dict[tuple, list[tuple[tuple[str, str], Tensor]]] = defaultdict(list)  # alike, so made together
    for name, value in network.parameters.items():
        seen = {side: sampler.found.get((name, side)) for side in ("left", "right")}
        width = widest if value.ndim == 2 else widest // 2
        for place, (side, vectors) in enumerate(seen.items() if any(seen.values()) else ()):
            # without vectors it is a side whose entries are looked up
            chosen = value.new_empty(0, value.shape[place]) if vectors is None else torch.cat(vectors)
            chosen = chosen[evenly(len(chosen), SAMPLED).to(chosen.device)]
            if chosen.shape[1] > width:
                lots[chosen.shape, width].append(((name, side), chosen))
    found = {}
    for (_, width), lot in lots.items():
        keys, vectors = zip(*lot, strict=True)
        by = projections_from(torch.stack(vectors), width, generator).to(network.dtype)
        found.update(zip(keys, by.unbind(), strict=True))
    return found


def projections_from(vectors: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """P [b, m, k] from some vectors [b, s, m], with m > k; random signs where there are none."""
    b, s, m = vectors.shape
    if not s:
        signs = torch.randint(0, 2, (b, m, width), generator=generator) * 2.0 - 1.0
        return signs.to(vectors.device) / math.sqrt(width)
    vectors = torch.where(torch.isfinite(vectors), vectors, 0.0).double()
    most = min(width // 2, s)
    energy, turned = (found.flip(-1)[..., :most] for found in torch.linalg.eigh(vectors @ vectors.mT))
    lead = vectors.mT @ turned
    lead = lead * lead.gather(1, lead.abs().argmax(dim=1, keepdim=True)).sign()  # the same on any machine
    told = energy > RIDGE * energy[:, :1]
    told = torch.nn.functional.pad(told, (0, width - most))[:, None]
    noise = torch.randn(b, m, width - most, generator=generator).to(vectors)
    lead = lead / lead.norm(dim=1, keepdim=True).clamp_min(TINY)
    if not bool(told[:, :, :most].all()):
        spare = torch.randn(b, m, most, generator=generator).to(noise)
        lead = torch.where(told[:, :, :most], lead, spare / math.sqrt(m))
    basis = torch.cat([lead, noise / math.sqrt(m)], dim=2)
    for _ in range(2):  # orthonormal, each direction to those before; once more against rounding
        factor = torch.linalg.cholesky(basis.mT @ basis)
        basis = torch.linalg.solve_triangular(factor, basis.mT, upper=False).mT
    known = told.sum(dim=2, keepdim=True)
    return torch.where(told, basis, basis * ((m - known) / (width - known)).sqrt())
