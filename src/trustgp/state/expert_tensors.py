"""Mixtures and witnesses as tables of tensors, and back. A field of all experts, or of all cells, is one
tensor, laid end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..experts.expert import Expert
from ..experts.gate import Gate, Projection
from ..experts.mixture import Mixture
from ..experts.posteriors import GramPosterior, Posterior, PriorPosterior, RootPosterior, SpanPosterior
from ..experts.witness import Cell, PointFeatures, WitnessState
from ..tangents.base import Features, KernelRows, TangentMap
from ..tangents.factors import HalfFactors

INT, REAL = torch.int64, torch.float64
SHARED = ("offset", "spread", "centroids", "length", "ratio", "size", "reach", "floor")  # by all cells
EACH = ("centre", "scale", "kappa", "tau")  # one row for each cell


def mixture_tensors(mixture: Mixture) -> dict[str, Tensor]:
    """The state of a mixture; the network and the settings of the tangents are not in it."""
    width = max((len(near) for near in mixture.neighbours), default=0)
    padded = [[*near, *[-1] * (width - len(near))] for near in mixture.neighbours]
    table = {f"tangents.{name}": value for name, value in mixture.tangents.state().items()}
    table |= {"outputs": mixture.outputs, "bound": mixture.bound}
    table["neighbours"] = torch.tensor(padded, dtype=INT).reshape(len(padded), width)
    gate, projection = {"centroids": mixture.gate.centroids}, mixture.gate.projection
    if projection is not None and mixture.gate.centroids.shape[1]:
        gate |= projection.tensors() | _feature_tensors([projection.features])
    table |= {f"gate.{name}": value for name, value in gate.items()}
    return table | {f"experts.{k}": v for k, v in expert_tensors(mixture.experts).items()}


def read_mixture(reader: Reader, prefix: str, tangents: TangentMap, learnt: int | None) -> Mixture:
    """The mixture whose tensors begin with this prefix, each checked; the map is already restored. Experts
    learn so many combinations of outputs; None: each output that it serves."""
    outputs = reader.take(f"{prefix}outputs", INT, None)
    last = tangents.mix.shape[1] - 1
    there = len(outputs) > 0 and _within(outputs, 0, last)
    reader.require(there, f"{prefix}outputs", f"names outputs beyond 0..{last}")
    bound = reader.take(f"{prefix}bound", REAL)
    reader.require(_within(bound, 0, 1), f"{prefix}bound", f"is {float(bound)}, beyond 0..1")
    gate = _read_gate(reader, f"{prefix}gate.", tangents)
    experts = read_experts(reader, f"{prefix}experts.", tangents, len(outputs) if learnt is None else learnt)
    count, owned = len(experts), any(int(expert.own) for expert in experts)
    reader.require(owned, f"{prefix}experts.own", "leaves no expert a row of its own")
    alike = count == gate.num_experts
    reader.require(alike, f"{prefix}gate.centroids", f"has not one row for each of {count} experts")
    table = reader.take(f"{prefix}neighbours", INT, count, None)
    reader.require(_within(table, -1, count - 1), f"{prefix}neighbours", "names experts that do not exist")
    neighbours = tuple(tuple(j for j in row if j >= 0) for row in table.tolist())
    return Mixture(tangents, gate, experts, outputs, neighbours, bound)


def _within(values: Tensor, low: int, high: int) -> Tensor:
    return (values >= low) & (values <= high)


def _read_gate(reader: Reader, prefix: str, tangents: TangentMap) -> Gate:
    centroids = reader.take(f"{prefix}centroids", REAL, None, None)
    components = centroids.shape[1]
    if components == 0:
        told = len(centroids) == 1
        reader.require(told, f"{prefix}centroids", "has no components to tell the experts apart")
        return Gate(None, centroids)
    offset = reader.take(f"{prefix}offset", REAL, components)
    width = tangents.num_columns(expert=False)
    if width is not None:
        directions = reader.take(f"{prefix}directions", REAL, width, components)
        return Gate(Projection(None, directions, offset), centroids)
    coefficients = reader.take(f"{prefix}coefficients", REAL, None, components)
    features = _read_features(reader, f"{prefix}features.", tangents, len(coefficients))
    return Gate(Projection(features, coefficients, offset), centroids)


def _read_features(reader: Reader, prefix: str, tangents: TangentMap, rows: int) -> Features:
    """Features of so many rows; they must be whole, and as wide as the tangents say."""
    names = reader.matching(prefix)
    if "scales" in names:
        return _read_halves(reader, prefix, tangents, rows)
    for name in names:  # every layer's activations need its signals, and the other way round
        for here, there in (("activations.", "signals."), ("signals.", "activations.")):
            if name.startswith(here) and (partner := there + name.removeprefix(here)) not in names:
                raise reader.fail(prefix + partner, "is missing")
    dtype = tangents.network.dtype
    table = {name: reader.take(prefix + name, dtype, rows, None) for name in names}
    try:
        features = tangents.kind.from_tensors(table)
        known = features.tensors().keys()
    except (KeyError, IndexError, ValueError) as error:
        raise reader.fail(f"{prefix}*", f"cannot be features: {error}") from error
    for unknown in sorted(set(names) - set(known)):
        raise reader.fail(f"{prefix}{unknown}", "is not a feature this kind knows, or one before is missing")
    wide = sum(value.shape[1] * value.element_size() for value in table.values())
    what = f"take {wide} bytes a row, not {tangents.row_bytes()}: some are missing or cut"
    reader.require(wide == tangents.row_bytes(), f"{prefix}*", what)
    return features


def _read_halves(reader: Reader, prefix: str, tangents: TangentMap, rows: int) -> HalfFactors:
    """The same in float16, with a scale for each tensor."""
    scales = reader.take(f"{prefix}scales", REAL, None)
    layers = int(reader.take(f"{prefix}layers", INT))
    halves = tuple(reader.take(f"{prefix}half.{i}", torch.float16, rows, None) for i in range(len(scales)))
    sane = bool((scales > 0).all()) and 0 <= 2 * layers <= len(scales)
    reader.require(sane, f"{prefix}scales", "and 'layers' do not describe factors")
    wide = sum(half.shape[1] for half in halves) * tangents.network.dtype.itemsize
    whole = tangents.num_columns(expert=False) is None and wide == tangents.row_bytes()
    reader.require(whole, f"{prefix}*", "are not as wide as the network's layers: some are missing or cut")
    return HalfFactors(halves, scales, layers)


def _feature_tensors(lots: Sequence[KernelRows | None]) -> dict[str, Tensor]:
    """Features of several lots of rows, laid end to end, as a file holds them; none: no rows are held."""
    held: list[Any] = [lot for lot in lots if lot is not None]
    table = type(held[0]).cat(held).stored() if held else {}
    return {f"features.{name}": value for name, value in table.items()}


def expert_tensors(experts: tuple[Expert, ...]) -> dict[str, Tensor]:
    """The state of some experts."""
    table = _held_tensors(experts)
    table["failed"] = torch.tensor([e.failed for e in experts])
    for name in ("scale", "noise", "kappa", "jitter"):
        table[name] = torch.stack([getattr(e, name) for e in experts])
    solved = [e.posterior for e in experts if not e.failed]
    return table | _posterior_tensors(solved) | _feature_tensors([state.features for state in solved])


def _held_tensors(experts: Sequence[Expert | Cell]) -> dict[str, Tensor]:
    """Which rows each of some experts holds, and how many are its own."""
    return {
        "sizes": torch.tensor([len(e.rows) for e in experts], dtype=INT),
        "own": torch.stack([e.own for e in experts]).cpu(),
        "rows": torch.cat([e.rows.cpu() for e in experts]),
    }


def _posterior_tensors(posteriors: Sequence[Posterior]) -> dict[str, Tensor]:
    """Posteriors of one kind, each tensor of all laid end to end; features are not in it."""
    tables = [state.tensors() for state in posteriors]
    return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}


def read_experts(reader: Reader, prefix: str, tangents: TangentMap, num_outputs: int) -> tuple[Expert, ...]:
    """The experts whose tensors these are, each checked."""
    sizes, own, rows = _read_held(reader, prefix, None, "experts")
    count = len(sizes)
    failed = reader.take(f"{prefix}failed", torch.bool, count)
    reader.require(not bool(failed.all()), f"{prefix}failed", "marks every expert")
    named = ("scale", "noise", "kappa")
    numbers = {name: reader.positive(f"{prefix}{name}", count, num_outputs) for name in named}
    numbers["jitter"] = reader.positive(f"{prefix}jitter", count, zero=True)
    solved = [size for size, gone in zip(sizes, failed.tolist(), strict=True) if not gone]
    if tangents.num_columns(expert=True) is None:
        features = partial(_read_features, reader, f"{prefix}features.", tangents)
        posteriors = _read_row_posteriors(reader, prefix, features, solved, num_outputs)
    else:
        posteriors = _read_spans(reader, prefix, tangents, solved, num_outputs)
    prior = PriorPosterior(numbers["scale"].new_empty(0, num_outputs))
    each = [prior if gone else next(posteriors) for gone in failed.tolist()]
    return _each(Expert, rows, own, each, numbers)


def _each(kind: Any, rows: Any, own: Tensor, posteriors: Any, numbers: dict[str, Tensor]) -> tuple[Any, ...]:
    """Experts or cells, each with its part of everything."""
    parts = enumerate(zip(rows, own, posteriors, strict=True))
    return tuple(kind(*part, **{name: value[i] for name, value in numbers.items()}) for i, part in parts)


def _read_held(
    reader: Reader, prefix: str, count: int | None, what: str
) -> tuple[list[int], Tensor, tuple[Tensor, ...]]:
    """How many rows each of some experts holds, how many are its own [M], and which they are, [m] each."""
    sizes = reader.take(f"{prefix}sizes", INT, count)
    own = reader.take(f"{prefix}own", INT, len(sizes))
    sane = (sizes >= 0) & (own <= sizes) & (own >= 0)
    reader.require(len(sizes) > 0 and sane, f"{prefix}sizes", f"and 'own' do not describe {what}")
    # summed as Python integers, which cannot overflow
    held = reader.take(f"{prefix}rows", INT, sum(sizes.tolist()))
    reader.require(held >= 0, f"{prefix}rows", "names rows below 0")
    return sizes.tolist(), own, held.split(sizes.tolist())


def _read_row_posteriors(
    reader: Reader, prefix: str, read: Callable[[int], KernelRows], sizes: list[int], num_outputs: int
) -> Iterator[GramPosterior | RootPosterior]:
    """Posteriors that hold so many rows each, with factors or with roots; `read` gives features of rows."""
    if "root" in reader.matching(prefix):
        kind, matrices = RootPosterior, _read_roots(reader, prefix, sizes)
    else:
        kind, matrices = GramPosterior, _read_triangles(reader, f"{prefix}factor", sizes)
    weights = reader.take(f"{prefix}weights", REAL, sum(sizes), num_outputs).split(sizes)
    features, places = read(sum(sizes)), torch.arange(sum(sizes)).split(sizes)
    for matrix, weight, place in zip(matrices, weights, places, strict=True):
        yield kind(features.take(place), matrix, weight)


def _read_triangles(reader: Reader, name: str, sizes: list[int]) -> list[Tensor]:
    """Lower Cholesky factors of these sizes, whose triangles are laid end to end, shape [m, m] each."""
    counts = [m * (m + 1) // 2 for m in sizes]
    factors = []
    for m, triangle in zip(sizes, reader.take(name, REAL, sum(counts)).split(counts), strict=True):
        factor = torch.zeros(m, m, dtype=REAL)
        factor[torch.ones(m, m, dtype=torch.bool).tril()] = triangle
        reader.require(factor.diagonal() > 0, name, "is not a positive definite factor")
        factors.append(factor)
    return factors


def _read_roots(reader: Reader, prefix: str, sizes: list[int]) -> list[Tensor]:
    """Roots of so many rows each, laid end to end, shape [m, r] each; float64 or float32, all alike."""
    ranks = reader.take(f"{prefix}ranks", INT, len(sizes)).tolist()
    sane = all(0 <= rank <= m for rank, m in zip(ranks, sizes, strict=True))
    reader.require(sane, f"{prefix}ranks", "lie beyond the number of rows")
    counts = [m * rank for m, rank in zip(sizes, ranks, strict=True)]
    flat = reader.take(f"{prefix}root", None, sum(counts))
    known = flat.dtype in (torch.float64, torch.float32)
    reader.require(known, f"{prefix}root", f"is {flat.dtype}, neither float64 nor float32")
    return [part.view(m, r) for part, m, r in zip(flat.split(counts), sizes, ranks, strict=True)]


def _read_spans(
    reader: Reader, prefix: str, tangents: TangentMap, sizes: list[int], num_outputs: int
) -> Iterator[SpanPosterior]:
    width, full = tangents.num_columns(expert=True), tangents.num_columns(expert=False)
    assert width is not None
    assert full is not None
    ranks = reader.take(f"{prefix}ranks", INT, len(sizes))
    reader.require(_within(ranks, 0, width), f"{prefix}ranks", f"lie beyond 0..{width}")
    per_expert = width if full != width else 0
    columns = reader.take(f"{prefix}columns", INT, per_expert * len(sizes))
    reader.require(_within(columns, 0, full - 1), f"{prefix}columns", "name features that do not exist")
    columns = columns.split(per_expert or 1)
    total = int(ranks.sum())
    flat = reader.take(f"{prefix}shrink", REAL, total)
    reader.require(_within(flat, 0, 1), f"{prefix}shrink", "lies beyond 0..1")
    shrink = flat.split(ranks.tolist())
    basis, dtype = reader.take(f"{prefix}basis", None, width * total), tangents.network.dtype
    known = basis.dtype in (dtype, torch.float16)
    reader.require(known, f"{prefix}basis", f"is {basis.dtype}, not {dtype} or float16")
    bases = basis.split([width * r for r in ranks.tolist()])
    weights = reader.take(f"{prefix}weights", REAL, width * len(sizes), num_outputs).split(width)
    for i, rank in enumerate(ranks.tolist()):
        chosen = columns[i] if per_expert else torch.empty(0, dtype=INT)
        yield SpanPosterior(chosen, bases[i].view(width, rank), shrink[i], weights[i])


def witness_tensors(state: WitnessState) -> dict[str, Tensor]:
    """The state of a witness."""
    posteriors = [cell.posterior for cell in state.cells]
    table = {name: getattr(state, name) for name in SHARED}
    table |= {name: torch.stack([getattr(cell, name) for cell in state.cells]) for name in EACH}
    table |= _held_tensors(state.cells) | _posterior_tensors(posteriors)
    return table | PointFeatures.cat([posterior.features for posterior in posteriors]).stored()


def read_witness(reader: Reader, prefix: str, num_outputs: int, rows: int) -> WitnessState:
    """The witness whose tensors begin with this prefix, each checked; there were so many training rows."""
    centroids = reader.take(f"{prefix}centroids", REAL, None, None)
    count, width = centroids.shape
    reader.require(count > 0 and width > 0, f"{prefix}centroids", "name no cell")
    shared = {
        "offset": reader.take(f"{prefix}offset", REAL, width),
        "spread": reader.positive(f"{prefix}spread", width),
        "centroids": centroids,
        "size": reader.take(f"{prefix}size", INT),
        "floor": reader.positive(f"{prefix}floor", num_outputs),
    }
    shared |= {name: reader.positive(f"{prefix}{name}") for name in ("length", "ratio", "reach")}
    reader.require(shared["size"] >= 1, f"{prefix}size", "must be positive")
    reader.require(shared["reach"] <= 1, f"{prefix}reach", "must lie between 0 and 1")
    sizes, own, held = _read_held(reader, prefix, count, "cells")
    sane = min(sizes) >= 1 and int(own.max()) > 0
    reader.require(sane, f"{prefix}sizes", "and 'own' do not describe cells")
    reader.require(torch.cat(held) < rows, f"{prefix}rows", f"names rows beyond 0..{rows - 1}")
    numbers = {
        "centre": reader.take(f"{prefix}centre", REAL, count, num_outputs),
        "scale": reader.positive(f"{prefix}scale", count, num_outputs),
        "kappa": reader.positive(f"{prefix}kappa", count, num_outputs),
        "tau": reader.positive(f"{prefix}tau", count),
    }

    def features(total: int) -> PointFeatures:
        points = reader.take(f"{prefix}inputs", REAL, total, width)
        return PointFeatures(points, float(shared["length"]))

    posteriors = _read_row_posteriors(reader, prefix, features, sizes, num_outputs)
    return WitnessState(**shared, cells=_each(Cell, held, own, posteriors, numbers))
