"""Smaller experts, gates and witnesses, from those that are there: no training rows are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from .experts import SELECTION_NOISE, Expert
from .gating import Gate, GramProjection
from .math.compression import narrowed, projected, strongest_root, telling_rows
from .math.evidence import factorise
from .posteriors import GramPosterior, RootPosterior, SpanPosterior
from .tangents.base import Features
from .tangents.factors import FactorFeatures
from .tangents.half import HalfFactors, half_scales
from .witness import Cell, RootCell, WitnessState

PROBED = 8  # rows of the kernel that are made to see whether it can be read off the factor
SAME = 1e-9  # of the kernel's mean diagonal


@dataclass(frozen=True)
class Sizes:
    """What is left of a model; None: all.

    Args:
        rows: Rows of an expert, at most.
        rank: Directions of an expert, at most.
        half: Whether features and bases are kept in float16, roots in float32.
        gate: Rows of a gate, at most.
        witness: Directions of a cell of the witness, at most; 0: the witness is left out.
    """

    rows: int | None = None
    rank: int | None = None
    half: bool = False
    gate: int | None = None
    witness: int | None = None

    def __str__(self) -> str:
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        words = [f"{name}={value}" for name, value in said.items() if name != "half" and value is not None]
        return ", ".join([*words, *(["float16"] if self.half else [])]) or "as it is"


def smaller_experts(experts: Sequence[Expert], sizes: Sizes) -> tuple[Expert, ...]:
    """The experts of one kernel with fewer rows, fewer directions, shorter numbers."""
    lots = [e.posterior.features for e in experts if isinstance(e.posterior, GramPosterior)]
    pack = _packer(lots) if sizes.half else _unpacked
    found = tuple(_smaller(expert, sizes, pack) for expert in experts)
    if not sizes.half:
        return found
    roots = [(e, e.posterior) for e in found if isinstance(e.posterior, RootPosterior)]
    narrow = {id(e): narrowed(p.root, p.features.gram(p.features)) for e, p in roots}
    if any(root is None for root in narrow.values()):  # all alike, as a file holds them
        return found
    return tuple(
        replace(e, posterior=replace(e.posterior, root=narrow[id(e)])) if id(e) in narrow else e
        for e in found
    )


def _smaller(expert: Expert, sizes: Sizes, pack: Callable[[Features], Features]) -> Expert:
    posterior = expert.posterior
    if isinstance(posterior, SpanPosterior):
        return replace(expert, posterior=_fewer_directions(posterior, sizes))
    if isinstance(posterior, GramPosterior):
        return _fewer_rows(expert, posterior, sizes, pack)
    return expert


def _fewer_directions(posterior: SpanPosterior, sizes: Sizes) -> SpanPosterior:
    """The directions of which most is known; the others count as not known at all, so the variance grows."""
    most = min(limit for limit in (sizes.rows, sizes.rank, len(posterior.shrink)) if limit is not None)
    kept = posterior.shrink.argsort(stable=True)[:most].sort().values
    basis = posterior.basis[:, kept]
    return replace(posterior, basis=basis.half() if sizes.half else basis, shrink=posterior.shrink[kept])


def _fewer_rows(
    expert: Expert, posterior: GramPosterior, sizes: Sizes, pack: Callable[[Features], Features]
) -> Expert:
    """The rows that tell most, for the variance; all of them, through those, for the mean."""
    noisy = posterior.factor @ posterior.factor.T  # K + N
    gram = _kernel(posterior.features, noisy)
    chosen = _chosen(gram, sizes.rows)
    features = pack(posterior.features.take(chosen))
    rounded = features.gram(features) if sizes.half else gram[chosen][:, chosen]
    noise = noisy[chosen][:, chosen] - gram[chosen][:, chosen]
    if sizes.half:  # what rounding has moved a row by counts as noise
        apart = features.gram(posterior.features)
        here = apart[torch.arange(len(chosen), device=chosen.device), chosen]
        moved = gram.diagonal()[chosen] + rounded.diagonal() - 2.0 * here
        noise.diagonal().add_(moved.clamp_min(0.0))
    else:
        apart = gram[chosen]
    factor, _ = factorise(rounded + noise, 0.0)
    if len(chosen) == len(gram):
        weights = torch.cholesky_solve(noisy @ posterior.weights, factor)
    else:
        weights = projected(apart.T, rounded, gram @ posterior.weights)
    smaller = GramPosterior(features, factor, weights)
    if sizes.rank is not None:
        smaller = RootPosterior(features, strongest_root(factor, rounded, sizes.rank), weights)
    kept = chosen.to(expert.rows.device)
    return replace(expert, rows=expert.rows[kept], own=(kept < expert.own).sum().cpu(), posterior=smaller)


def _kernel(features: Features, noisy: Tensor) -> Tensor:
    """K of an expert's rows, shape [m, m]: K + N less N where that is diagonal, else made again."""
    diag, some = features.diag(), torch.arange(min(PROBED, len(noisy)), device=noisy.device)
    gram = noisy.clone()
    gram.diagonal().copy_(diag)
    probe = features.take(some).gram(features)
    if bool(((probe - gram[some]).abs() <= SAME * diag.mean()).all()):
        return gram
    return features.gram(features)


def _chosen(gram: Tensor, most: int | None) -> Tensor:
    """At most so many rows, those that tell most given those before, in ascending order: own rows first."""
    if most is None or most >= len(gram):
        return torch.arange(len(gram), device=gram.device)
    noise = SELECTION_NOISE * float(gram.diagonal().mean())
    return telling_rows(gram, most, noise).sort().values


def smaller_gate(gate: Gate, sizes: Sizes) -> Gate:
    r"""The gate from fewer rows of its subset S: the components of S are fitted by least squares.

    .. math:: \min_{A', o'} | K_{SS'} A' - 1 o'^\top - Z |^2, \qquad Z = K_{SS} A - 1 o^\top

    Explicit features are contracted already: such a gate stays as it is.
    """
    projection = gate.projection
    if not isinstance(projection, GramProjection):
        return gate
    features = projection.features
    pack = _packer([features]) if sizes.half else _unpacked
    gram = features.gram(features)
    chosen = _chosen(gram, sizes.gate)
    if len(chosen) == len(gram):
        return replace(gate, projection=replace(projection, features=pack(features)))
    kept = pack(features.take(chosen))
    places, cross = gram @ projection.coefficients, features.gram(kept)
    middle, level = places.mean(dim=0), cross.mean(dim=0)
    # centred: the offset is free
    coefficients = projected(cross - level, kept.gram(kept), places - middle)
    offset = projection.offset - middle + level @ coefficients
    return replace(gate, projection=GramProjection(kept, coefficients, offset))


def smaller_witness(
    witness: WitnessState, sizes: Sizes, known: dict[int | None, list[Tensor]] | None = None
) -> WitnessState | None:
    """The witness with fewer directions in each cell; its mean stays what it is.

    Args:
        witness: As it was fitted.
        sizes: What is left of it.
        known: Roots by their number of directions, where several are wanted of one witness; they are added.
    """
    if sizes.witness == 0:
        return None
    if sizes.witness is None and not sizes.half:
        return witness
    whole = [cell for cell in witness.cells if isinstance(cell, Cell)]
    known = {} if known is None else known
    grams = [_cell_kernel(cell) for cell in whole]
    if sizes.witness not in known:
        known[sizes.witness] = [
            _cell_root(c, gram, sizes.witness) for c, gram in zip(whole, grams, strict=True)
        ]
    roots = known[sizes.witness]
    if sizes.half:
        narrow = [narrowed(root, gram) for root, gram in zip(roots, grams, strict=True)]
        sound = [root for root in narrow if root is not None]
        roots = sound if len(sound) == len(roots) else roots  # all alike
    cells = tuple(
        RootCell(root=root, **{f.name: getattr(cell, f.name) for f in fields(Cell) if f.name != "factor"})
        for cell, root in zip(whole, roots, strict=True)
    )
    return replace(witness, cells=cells)


def _cell_kernel(cell: Cell) -> Tensor:
    gram = cell.factor @ cell.factor.T
    gram.diagonal().fill_(1.0)  # a stationary kernel's; what stood there besides is tau
    return gram


def _cell_root(cell: Cell, gram: Tensor, most: int | None) -> Tensor:
    if most is not None and most < len(gram):
        return strongest_root(cell.factor, gram, most)
    return cell.whitening().T


def _unpacked(features: Features) -> Features:
    return features


def _packer(lots: Sequence[Features]) -> Callable[[Features], Features]:
    """Rounds features to float16, with scales that serve all of these."""
    factors = [lot for lot in lots if isinstance(lot, FactorFeatures)]
    if not factors:
        return _unpacked
    scales = half_scales(factors)

    def pack(features: Features) -> Features:
        return HalfFactors.pack(features, scales) if isinstance(features, FactorFeatures) else features

    return pack
