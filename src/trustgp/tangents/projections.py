"""Projections of layer inputs and signals: leading directions, completed with random ones."""

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

SAMPLED = 64  # rows, and vectors of a layer, from which its leading directions are computed
MIN_SAMPLED, SAMPLE_FRACTION = 16, 8  # at least 16 rows, else at most one in 8: each needs a whole pass
SAMPLED_MIXES = 4
TINY = torch.finfo(torch.float64).tiny
RIDGE = 1e-10  # of the largest energy: directions with less are rounding errors
SAMPLE_BYTES = 256 * 2**20  # working memory of the sampled rows

Projections = Mapping[tuple[str, str], Tensor]
"""Projections P [m, k] by parameter name and side: "left" (its first dimension) or "right"."""


class Sampler(Collector):
    """Keeps a sample of the vectors at each side of each weight, and no gradients."""

    def __init__(self) -> None:
        self.vectors: dict[tuple[str, str], list[Tensor]] = defaultdict(list)

    def room(self, size: int) -> int:
        return 0

    def thin(self, name: str, side: str, values: Tensor, axis: int, groups: int) -> Tensor:
        parted = values.unflatten(axis, (groups, -1))
        axis = axis + 1 if axis >= 0 else -1
        vectors = parted.movedim(axis, -1).flatten(0, -2)
        self.vectors[name, side].append(vectors[evenly(len(vectors), SAMPLED).to(vectors.device)])
        return parted.narrow(axis, 0, 1).flatten(axis - 1, axis)


def find_projections(gradients: Gradients, sample: Inputs, widest: int, seed: int) -> Projections:
    """Projections for each side of a channel-mixing weight that is wider than its projection."""
    plan, network = gradients.plan(sample), gradients.network
    rows = min(SAMPLED, SAMPLE_BYTES // plan.row_bytes, max(MIN_SAMPLED, count(sample) // SAMPLE_FRACTION))
    few = take(sample, torch.arange(max(2, rows)) % count(sample))
    mix = gradients.mix[evenly(len(gradients.mix), SAMPLED_MIXES)].to(network.device, network.dtype)
    sampler, generator = Sampler(), torch.Generator().manual_seed(seed)
    with suppress(LayoutError), torch.inference_mode(False):
        layerwise(network, plan, mix, few, sampler)
    lots: dict[tuple, list[tuple[tuple[str, str], Tensor]]] = defaultdict(list)  # by shape
    for name, value in network.parameters.items():
        sides = {side: sampler.vectors.get((name, side)) for side in ("left", "right")}
        width = widest if value.ndim == 2 else widest // 2
        for place, (side, vectors) in enumerate(sides.items() if any(sides.values()) else ()):
            # a side without vectors is that of an embedding's rows
            chosen = value.new_empty(0, value.shape[place]) if vectors is None else torch.cat(vectors)
            chosen = chosen[evenly(len(chosen), SAMPLED).to(chosen.device)]
            if chosen.shape[1] > width:
                lots[chosen.shape, width].append(((name, side), chosen))
    projections = {}
    for (_, width), lot in lots.items():
        keys, vectors = zip(*lot, strict=True)
        by = projections_from(torch.stack(vectors), width, generator).to(network.dtype)
        projections.update(zip(keys, by.unbind(), strict=True))
    return projections


def projections_from(vectors: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """Projections P [b, m, k] from some vectors [b, s, m], with m > k; random signs if s = 0."""
    b, s, m = vectors.shape
    if not s:
        signs = torch.randint(0, 2, (b, m, width), generator=generator).float() * 2 - 1
        return signs.to(vectors.device) / math.sqrt(width)
    vectors = torch.where(torch.isfinite(vectors), vectors, 0.0).double()
    rank = min(width // 2, s)
    energy, rotation = (part.flip(-1)[..., :rank] for part in torch.linalg.eigh(vectors @ vectors.mT))
    lead = vectors.mT @ rotation
    lead = lead * lead.gather(1, lead.abs().argmax(dim=1, keepdim=True)).sign()  # the same on any machine
    significant = torch.nn.functional.pad(energy > RIDGE * energy[:, :1], (0, width - rank))[:, None]
    noise = torch.randn(b, m, width - rank, generator=generator, dtype=torch.float32).to(vectors)
    lead = lead / lead.norm(dim=1, keepdim=True).clamp_min(TINY)
    if not bool(significant[:, :, :rank].all()):
        spare = torch.randn(b, m, rank, generator=generator, dtype=torch.float32).to(noise)
        lead = torch.where(significant[:, :, :rank], lead, spare / math.sqrt(m))
    basis = torch.cat([lead, noise / math.sqrt(m)], dim=2)
    for _ in range(2):  # Gram-Schmidt by Cholesky, twice against rounding
        factor = torch.linalg.cholesky(basis.mT @ basis)
        basis = torch.linalg.solve_triangular(factor, basis.mT, upper=False).mT
    r = significant.sum(dim=2, keepdim=True)
    return torch.where(significant, basis, basis * ((m - r) / (width - r)).sqrt())
