"""Mixtures and witnesses as tables of tensors, and back. Each field of the experts is one tensor, which
concatenates or stacks their values."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..data.trees import Inputs
from ..experts.expert import Expert
from ..experts.gate import Gate, Projection
from ..experts.hidden import HiddenRows
from ..experts.mixture import Mixture
from ..experts.posteriors import GramPosterior, PriorPosterior, SpanPosterior
from ..experts.witness import MAX_SCALED_INPUT, MIN_RATIO, WitnessState
from ..likelihoods import Likelihood
from ..tangents.base import Features, KernelRows, TangentMap
from ..tangents.sketch import OutputSketchMap, SketchMap

INT, REAL = torch.int64, torch.float64
MAX_MIXTURE_TENSORS = 14  # largest number, without those of tangents, features and posteriors


def mixture_tensors(mixture: Mixture) -> dict[str, Tensor]:
    """Tensors of a mixture, by name, without the network and the settings of the tangents."""
    width = max((len(numbers) for numbers in mixture.neighbours), default=0)
    padded = [[*numbers, *[-1] * (width - len(numbers))] for numbers in mixture.neighbours]
    table = {f"tangents.{name}": value for name, value in mixture.tangents.state().items()}
    table |= {"outputs": mixture.outputs, "bound": mixture.bound}
    table["neighbours"] = torch.tensor(padded, dtype=INT).reshape(len(padded), width)
    gate, projection = {"centroids": mixture.gate.centroids}, mixture.gate.projection
    if projection is not None and mixture.gate.centroids.shape[1]:
        gate |= projection.tensors() | _feature_tensors([projection.features])
    table |= {f"gate.{name}": value for name, value in gate.items()}
    if mixture.whole is not None:
        whole = mixture.whole
        table["whole.basis"] = whole.basis
        table["whole.numbers"] = torch.cat([whole.values, whole.units, whole.typical[None]])
    if mixture.hidden is not None:
        table |= {f"hidden.{f.name}": getattr(mixture.hidden, f.name) for f in fields(mixture.hidden)}
    return table | {f"experts.{k}": v for k, v in expert_tensors(mixture.experts).items()}


def read_mixture(
    reader: Reader, prefix: str, tangents: TangentMap, likelihood: Likelihood, learnt: int | None
) -> Mixture:
    """The mixture whose tensor names begin with `prefix`, each tensor checked; `tangents` is restored before.
    `learnt` is the number of output combinations that experts learn; None: each output that it serves."""
    outputs = _read_range(reader, f"{prefix}outputs", INT, 0, tangents.mix.shape[1] - 1, None)
    reader.require(len(outputs) > 0, f"{prefix}outputs", "names no output")
    bound = _read_range(reader, f"{prefix}bound", REAL, 0, 1)
    gate = _read_gate(reader, f"{prefix}gate.", tangents)
    experts = read_experts(reader, f"{prefix}experts.", tangents, len(outputs) if learnt is None else learnt)
    count, owned = len(experts), any(int(expert.own) for expert in experts)
    reader.require(owned, f"{prefix}experts.own", "leaves no expert a row of its own")
    reader.require(count == gate.num_experts, f"{prefix}gate.centroids", "has not one row for each expert")
    table = _read_range(reader, f"{prefix}neighbours", INT, -1, count - 1, count, None)
    neighbours = tuple(tuple(j for j in row if j >= 0) for row in table.tolist())
    whole = None
    if isinstance(tangents, SketchMap) and likelihood.whole_kind and reader.matching(f"{prefix}whole."):
        tangents = likelihood.output_map(tangents)
        whole = likelihood.whole_kind(*_read_whole(reader, f"{prefix}whole.", tangents))
    kept = reader.matching(f"{prefix}hidden.")
    hidden = _read_hidden(reader, f"{prefix}hidden.", tangents) if kept else None
    return Mixture(tangents, gate, experts, outputs, neighbours, bound, whole, hidden)


def _read_hidden(reader: Reader, prefix: str, tangents: TangentMap) -> HiddenRows:
    weight = tangents.network.head_weight
    points = reader.take(f"{prefix}points", torch.float32, None, None)
    wide, sides = points.shape[1], [] if weight is None else weight.shape[:2]
    suits = any(wide % side == 0 for side in sides)  # a multiple for a grouped convolution
    reader.require(suits, f"{prefix}points", "belong to no layer of the network")
    labels = reader.take(f"{prefix}labels", INT, len(points))
    reader.require(0 not in points.shape and torch.isfinite(points), f"{prefix}points", "must be finite rows")
    reader.require(labels >= 0, f"{prefix}labels", "must be class numbers")
    return HiddenRows(points, labels)


def _read_whole(reader: Reader, prefix: str, tangents: OutputSketchMap) -> tuple[Tensor, ...]:
    """Fields of a `WholePosterior`, in their order."""
    dim, outputs = tangents.sketch.dim, tangents.num_outputs
    basis = reader.take(f"{prefix}basis", None, dim, dim)
    numbers = reader.positive(f"{prefix}numbers", dim + outputs + 1, zero=True)
    reader.require(bool(numbers[[dim - 1, -1]].all()), f"{prefix}numbers", "must be positive at its ends")
    return basis, numbers[:dim], numbers[dim:-1], numbers[-1]


def most_tensors(tangents: TangentMap, row: Inputs) -> int:
    """Largest number of tensors from `mixture_tensors`; those of the features are counted for one `row`."""
    wide = [tangents.num_columns(expert=expert) for expert in (True, False)]
    features = len(tangents(row).tensors()) if None in wide else 0
    posterior = 2 if wide[0] is None else 5  # see `GramPosterior` and `SpanPosterior`
    whole = 2 * isinstance(tangents, SketchMap)
    return MAX_MIXTURE_TENSORS + posterior + whole + len(tangents.state()) + wide.count(None) * features


def _read_range(
    reader: Reader, name: str, dtype: torch.dtype, low: int, high: int, *shape: int | None
) -> Tensor:
    value = reader.take(name, dtype, *shape)
    reader.require((value >= low) & (value <= high), name, f"lies beyond {low}..{high}")
    return value


def _read_gate(reader: Reader, prefix: str, tangents: TangentMap) -> Gate:
    centroids = reader.take(f"{prefix}centroids", REAL, None, None)
    components = centroids.shape[1]
    if components == 0:
        reader.require(len(centroids) == 1, f"{prefix}centroids", "has no components to distinguish experts")
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
    """Features of `rows` rows; raise unless they are complete, and as wide as the tangents require."""
    names = reader.matching(prefix)
    for name in names:  # every layer's activations need its signals, and the other way round
        for here, there in (("activations.", "signals."), ("signals.", "activations.")):
            if name.startswith(here) and (partner := there + name.removeprefix(here)) not in names:
                raise reader.fail(prefix + partner, "is missing")
    dtype = tangents.network.dtype
    table = {name: reader.take(prefix + name, dtype, rows, None) for name in names}
    try:
        features = tangents.kind.from_tensors(table)
        allowed = features.tensors().keys()
    except (KeyError, IndexError, ValueError) as error:
        raise reader.fail(f"{prefix}*", f"cannot be features: {error}") from error
    for unknown in sorted(set(names) - set(allowed)):
        raise reader.fail(f"{prefix}{unknown}", "is not a feature this kind knows, or one before is missing")
    wide = sum(value.shape[1] * value.element_size() for value in table.values())
    what = f"take {wide} bytes a row, not {tangents.row_bytes()}: some are missing or cut"
    reader.require(wide == tangents.row_bytes(), f"{prefix}*", what)
    return features


def _feature_tensors(lots: Sequence[KernelRows | None]) -> dict[str, Tensor]:
    """Features of several sets of rows, concatenated, by tensor name; empty where no rows are stored."""
    stored: list[Any] = [lot for lot in lots if lot is not None]
    table = type(stored[0]).cat(stored).tensors() if stored else {}
    return {f"features.{name}": value for name, value in table.items()}


def expert_tensors(experts: tuple[Expert, ...]) -> dict[str, Tensor]:
    """Tensors of the experts, by name."""
    solved = [e.posterior for e in experts if not e.failed]
    tables = [posterior.tensors() for posterior in solved]
    return {
        "sizes": torch.tensor([len(e.rows) for e in experts], dtype=INT),
        "own": torch.stack([e.own for e in experts]).cpu(),
        "rows": torch.cat([e.rows.cpu() for e in experts]),
        "failed": torch.tensor([e.failed for e in experts]),
        **{k: torch.stack([getattr(e, k) for e in experts]) for k in ("scale", "noise", "kappa", "jitter")},
        **{name: torch.cat([table[name] for table in tables]) for name in tables[0]},
        **_feature_tensors([posterior.features for posterior in solved]),
    }


def read_experts(reader: Reader, prefix: str, tangents: TangentMap, num_outputs: int) -> tuple[Expert, ...]:
    """The experts whose tensor names begin with `prefix`, each tensor checked."""
    sizes, own, rows = _read_held(reader, prefix, None, "experts")
    count = len(sizes)
    failed = reader.take(f"{prefix}failed", torch.bool, count)
    reader.require(not bool(failed.all()), f"{prefix}failed", "marks every expert")
    numbers = {k: reader.positive(f"{prefix}{k}", count, num_outputs) for k in ("scale", "noise", "kappa")}
    numbers["jitter"] = reader.positive(f"{prefix}jitter", count, zero=True)
    solved = [size for size, gone in zip(sizes, failed.tolist(), strict=True) if not gone]
    read = _read_row_posteriors if tangents.num_columns(expert=True) is None else _read_spans
    posteriors = read(reader, prefix, tangents, solved, num_outputs)
    prior = PriorPosterior(numbers["scale"].new_empty(0, num_outputs))
    each = [prior if gone else next(posteriors) for gone in failed.tolist()]
    parts = enumerate(zip(rows, own, each, strict=True))
    return tuple(Expert(*part, **{name: value[i] for name, value in numbers.items()}) for i, part in parts)


def _read_held(
    reader: Reader, prefix: str, count: int | None, what: str
) -> tuple[list[int], Tensor, tuple[Tensor, ...]]:
    """Number of rows of each expert or cell, number of its own rows [M], and its row numbers, [m] each."""
    sizes = reader.take(f"{prefix}sizes", INT, count)
    own = reader.take(f"{prefix}own", INT, len(sizes))
    sane = (sizes >= 0) & (own <= sizes) & (own >= 0)
    reader.require(len(sizes) > 0 and sane, f"{prefix}sizes", f"and 'own' do not describe {what}")
    # summed as Python integers, which cannot overflow
    numbers = reader.take(f"{prefix}rows", INT, sum(sizes.tolist()))
    reader.require(numbers >= 0, f"{prefix}rows", "names rows below 0")
    return sizes.tolist(), own, numbers.split(sizes.tolist())


def _read_row_posteriors(
    reader: Reader, prefix: str, tangents: TangentMap, sizes: list[int], num_outputs: int
) -> Iterator[GramPosterior]:
    """Posteriors that hold `sizes` rows each; a file concatenates the triangles of Cholesky factors."""
    counts, total = [m * (m + 1) // 2 for m in sizes], sum(sizes)
    triangles = reader.take(f"{prefix}factor", REAL, sum(counts)).split(counts)
    weights = reader.take(f"{prefix}weights", REAL, total, num_outputs).split(sizes)
    features = _read_features(reader, f"{prefix}features.", tangents, total)
    positions = torch.arange(total).split(sizes)
    for m, triangle, weight, position in zip(sizes, triangles, weights, positions, strict=True):
        factor = torch.zeros(m, m, dtype=REAL)
        factor[torch.ones(m, m, dtype=torch.bool).tril()] = triangle
        reader.require(factor.diagonal() > 0, f"{prefix}factor", "is not a positive definite factor")
        yield GramPosterior(features.take(position), factor, weight)


def _read_spans(
    reader: Reader, prefix: str, tangents: TangentMap, sizes: list[int], num_outputs: int
) -> Iterator[SpanPosterior]:
    width, full = tangents.num_columns(expert=True), tangents.num_columns(expert=False)
    assert width is not None
    assert full is not None
    ranks = _read_range(reader, f"{prefix}ranks", INT, 0, width, len(sizes)).tolist()
    total, per_expert = sum(ranks), width if full != width else 0
    columns = _read_range(reader, f"{prefix}columns", INT, 0, full - 1, per_expert * len(sizes))
    columns = columns.split(per_expert or 1)
    shrink = _read_range(reader, f"{prefix}shrink", REAL, 0, 1, total).split(ranks)
    basis = reader.take(f"{prefix}basis", tangents.network.dtype, width * total)
    bases = basis.split([width * rank for rank in ranks])
    weights = reader.take(f"{prefix}weights", REAL, width * len(sizes), num_outputs).split(width)
    for i, rank in enumerate(ranks):
        chosen = columns[i] if per_expert else torch.empty(0, dtype=INT)
        yield SpanPosterior(chosen, bases[i].view(width, rank), shrink[i], weights[i])


def witness_tensors(state: WitnessState) -> dict[str, Tensor]:
    """Tensors of a witness, by name."""
    return {field.name: getattr(state, field.name) for field in fields(state)}


def read_witness(reader: Reader, prefix: str, num_outputs: int, rows: int) -> WitnessState:
    """The witness whose tensor names begin with `prefix`, each tensor checked; `rows`: training rows."""
    centroids = reader.take(f"{prefix}centroids", REAL, None, None)
    count, width = centroids.shape
    reader.require(count > 0 and width > 0, f"{prefix}centroids", "name no cell")
    shapes = {"spread": (width,), "floor": (num_outputs,), "level": (count, num_outputs)}
    shapes |= dict.fromkeys(("length", "ratio", "reach"), ())
    tensors = {name: reader.positive(prefix + name, *shape) for name, shape in shapes.items()}
    tensors["offset"] = reader.take(f"{prefix}offset", REAL, width)
    tensors["centre"] = reader.take(f"{prefix}centre", REAL, count, num_outputs)
    reader.require(tensors["ratio"] >= MIN_RATIO, f"{prefix}ratio", f"is below {MIN_RATIO}")
    reader.require(tensors["reach"] <= 1, f"{prefix}reach", "must lie between 0 and 1")
    tensors["neighbours"] = reader.take(f"{prefix}neighbours", INT)
    reader.require(tensors["neighbours"] >= 1, f"{prefix}neighbours", "must be positive")
    if "size" in reader.matching(prefix):  # files of version 2 repeat the setting `rows`
        reader.take(f"{prefix}size", INT)
    sizes, own, cells = _read_held(reader, prefix, count, "cells")
    reader.require(own >= 1, f"{prefix}own", "leaves a cell without a row of its own")
    own_rows = torch.cat([cell[:k] for cell, k in zip(cells, own.tolist(), strict=True)])
    reader.require(len(own_rows.unique()) == len(own_rows), f"{prefix}rows", "gives a row to two cells")
    numbers = torch.cat(cells)
    reader.require(numbers < rows, f"{prefix}rows", f"names rows beyond 0..{rows - 1}")
    for name, columns in (("points", width), ("targets", num_outputs), ("errors", num_outputs)):
        tensors[name] = value = reader.take(prefix + name, None, len(numbers), columns)
        allowed = value.dtype in (torch.float64, torch.float32)
        reader.require(allowed, prefix + name, f"is {value.dtype}, neither float64 nor float32")
    reader.require(tensors["errors"] >= 0, f"{prefix}errors", "must not be negative")
    bounded = tensors["points"].abs() <= MAX_SCALED_INPUT
    reader.require(bounded, f"{prefix}points", f"lie beyond {MAX_SCALED_INPUT:g}")
    tensors |= {"rows": numbers, "own": own}
    return WitnessState(centroids=centroids, sizes=torch.tensor(sizes), **tensors)
