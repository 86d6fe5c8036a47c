"""Mixtures as tables of tensors, and back. A field of all experts is one tensor, laid end to end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .experts import Expert
from .gating import Gate, GramProjection, SpanProjection
from .mixture import Mixture
from .posteriors import GramPosterior, PriorPosterior, RootPosterior, SpanPosterior
from .safefile import Reader
from .tangents.base import Features, TangentMap
from .tangents.half import HalfFactors

INT, REAL = torch.int64, torch.float64


def mixture_tensors(mixture: Mixture) -> dict[str, Tensor]:
    """The state of a mixture; the network and the settings of the tangents are not in it."""
    width = max((len(near) for near in mixture.neighbours), default=0)
    padded = [[*near, *[-1] * (width - len(near))] for near in mixture.neighbours]
    table = {f"tangents.{name}": value for name, value in mixture.tangents.state().items()}
    table |= {"outputs": mixture.outputs, "bound": mixture.bound}
    table["neighbours"] = torch.tensor(padded, dtype=INT).reshape(len(padded), width)
    table |= {f"gate.{name}": value for name, value in _gate_tensors(mixture.gate).items()}
    return table | {f"experts.{k}": v for k, v in expert_tensors(mixture.experts).items()}


def read_mixture(reader: Reader, prefix: str, tangents: TangentMap, learnt: int | None) -> Mixture:
    """The mixture whose tensors these are, each checked.

    Args:
        reader: Holds the tensors.
        prefix: Of their names.
        tangents: The map, already restored.
        learnt: How many combinations of outputs its experts learn; None: each output that it serves.
    """
    outputs = reader.take(f"{prefix}outputs", INT, None)
    num_outputs = tangents.mix.shape[1]
    if len(outputs) == 0 or int(outputs.min()) < 0 or int(outputs.max()) >= num_outputs:
        raise reader.fail(f"{prefix}outputs", f"names outputs beyond 0..{num_outputs - 1}")
    bound = reader.take(f"{prefix}bound", REAL)
    if not 0.0 <= float(bound) <= 1.0:
        raise reader.fail(f"{prefix}bound", f"is {float(bound)}, beyond 0..1")
    gate = _read_gate(reader, f"{prefix}gate.", tangents)
    experts = read_experts(reader, f"{prefix}experts.", tangents, len(outputs) if learnt is None else learnt)
    if not any(int(expert.own) for expert in experts):
        raise reader.fail(f"{prefix}experts.own", "leaves no expert a row of its own")
    if len(experts) != gate.num_experts:
        raise reader.fail(f"{prefix}gate.centroids", f"has not one row for each of {len(experts)} experts")
    table = reader.take(f"{prefix}neighbours", INT, len(experts), None)
    if table.numel() and (int(table.min()) < -1 or int(table.max()) >= len(experts)):
        raise reader.fail(f"{prefix}neighbours", "names experts that do not exist")
    neighbours = tuple(tuple(j for j in row if j >= 0) for row in table.tolist())
    return Mixture(tangents, gate, experts, outputs, neighbours, bound)


def _gate_tensors(gate: Gate) -> dict[str, Tensor]:
    table = {"centroids": gate.centroids}
    projection = gate.projection if gate.centroids.shape[1] else None
    if isinstance(projection, GramProjection):
        table |= {"coefficients": projection.coefficients, "offset": projection.offset}
        table |= _feature_tensors([projection.features])
    elif isinstance(projection, SpanProjection):
        table |= {"directions": projection.directions, "offset": projection.offset}
    return table


def _read_gate(reader: Reader, prefix: str, tangents: TangentMap) -> Gate:
    centroids = reader.take(f"{prefix}centroids", REAL, None, None)
    components = centroids.shape[1]
    if components == 0:
        if len(centroids) != 1:
            raise reader.fail(f"{prefix}centroids", "has no components to tell the experts apart")
        return Gate(None, centroids)
    offset = reader.take(f"{prefix}offset", REAL, components)
    width = tangents.width(expert=False)
    if width is not None:
        directions = reader.take(f"{prefix}directions", REAL, width, components)
        return Gate(SpanProjection(directions, offset), centroids)
    coefficients = reader.take(f"{prefix}coefficients", REAL, None, components)
    features = _read_features(reader, f"{prefix}features.", tangents, len(coefficients))
    return Gate(GramProjection(features, coefficients, offset), centroids)


def _read_features(reader: Reader, prefix: str, tangents: TangentMap, rows: int) -> Features:
    """Features of so many rows; they must be whole, and as wide as the tangents say."""
    names = reader.matching(prefix)
    if "scales" in names:
        return _read_halves(reader, prefix, tangents, rows)
    _check_pairs(reader, prefix, names)
    dtype = tangents.network.dtype
    table = {name: reader.take(prefix + name, dtype, rows, None) for name in names}
    try:
        features = tangents.kind.from_tensors(table)
        known = features.tensors().keys()
    except (KeyError, IndexError, ValueError) as error:
        raise reader.fail(f"{prefix}*", f"cannot be features: {error}") from error
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise reader.fail(
            f"{prefix}{unknown[0]}", "is not a feature this kind knows, or one before is missing"
        )
    wide = sum(value.shape[1] * value.element_size() for value in table.values())
    if wide != tangents.row_bytes():
        raise reader.fail(
            f"{prefix}*", f"take {wide} bytes a row, not {tangents.row_bytes()}: some are missing or cut"
        )
    return features


def _read_halves(reader: Reader, prefix: str, tangents: TangentMap, rows: int) -> HalfFactors:
    """The same in float16, with a scale for each tensor."""
    scales = reader.take(f"{prefix}scales", REAL, None)
    layers = int(reader.take(f"{prefix}layers", INT))
    halves = tuple(reader.take(f"{prefix}half.{i}", torch.float16, rows, None) for i in range(len(scales)))
    if not bool((scales > 0).all()) or not 0 <= 2 * layers <= len(scales):
        raise reader.fail(f"{prefix}scales", "and 'layers' do not describe factors")
    wide = sum(half.shape[1] for half in halves) * tangents.network.dtype.itemsize
    if tangents.width(expert=False) is not None or wide != tangents.row_bytes():
        raise reader.fail(f"{prefix}*", "are not as wide as the network's layers: some are missing or cut")
    return HalfFactors(halves, scales, layers)


def _feature_tensors(lots: Sequence[Features]) -> dict[str, Tensor]:
    """Features of several lots of rows, laid end to end, as a file holds them."""
    first = lots[0]
    if isinstance(first, HalfFactors):
        joined = HalfFactors.cat([lot for lot in lots if isinstance(lot, HalfFactors)])
        table = {f"half.{i}": half for i, half in enumerate(joined.halves)}
        table |= {"scales": joined.scales, "layers": torch.tensor(joined.layers)}
    else:
        tables = [lot.tensors() for lot in lots]
        table = {name: torch.cat([one[name] for one in tables]) for name in tables[0]}
    return {f"features.{name}": value for name, value in table.items()}


def _check_pairs(reader: Reader, prefix: str, names: list[str]) -> None:
    """Every layer's activations need its signals, and the other way round."""
    for name in names:
        for here, there in (("activations.", "signals."), ("signals.", "activations.")):
            if name.startswith(here) and (partner := there + name.removeprefix(here)) not in names:
                raise reader.fail(prefix + partner, "is missing")


def expert_tensors(experts: tuple[Expert, ...]) -> dict[str, Tensor]:
    """The state of some experts."""
    table = {
        "sizes": torch.tensor([len(e.rows) for e in experts], dtype=INT),
        "own": torch.stack([e.own for e in experts]).cpu(),
        "failed": torch.tensor([e.failed for e in experts]),
        "rows": torch.cat([e.rows.cpu() for e in experts]),
    }
    for name in ("scale", "noise", "kappa", "jitter"):
        table[name] = torch.stack([getattr(e, name) for e in experts])
    solved = [e.posterior for e in experts if not e.failed]
    grams = [p for p in solved if isinstance(p, GramPosterior)]
    roots = [p for p in solved if isinstance(p, RootPosterior)]
    spans = [p for p in solved if isinstance(p, SpanPosterior)]
    return table | (
        _gram_tensors(grams) if grams else _root_tensors(roots) if roots else _span_tensors(spans)
    )


def _gram_tensors(posteriors: list[GramPosterior]) -> dict[str, Tensor]:
    triangles = [p.factor[torch.ones_like(p.factor, dtype=torch.bool).tril()] for p in posteriors]
    weights = torch.cat([p.weights for p in posteriors])
    return {
        "factor": torch.cat(triangles),
        "weights": weights,
        **_feature_tensors([p.features for p in posteriors]),
    }


def _root_tensors(posteriors: list[RootPosterior]) -> dict[str, Tensor]:
    return {
        "ranks": torch.tensor([p.root.shape[1] for p in posteriors], dtype=INT),
        "root": torch.cat([p.root.flatten() for p in posteriors]),
        "weights": torch.cat([p.weights for p in posteriors]),
        **_feature_tensors([p.features for p in posteriors]),
    }


def _span_tensors(posteriors: list[SpanPosterior]) -> dict[str, Tensor]:
    return {
        "ranks": torch.tensor([len(p.shrink) for p in posteriors], dtype=INT),
        "columns": torch.cat([p.columns.cpu() for p in posteriors]),
        "basis": torch.cat([p.basis.flatten() for p in posteriors]),
        "shrink": torch.cat([p.shrink for p in posteriors]),
        "weights": torch.cat([p.weights for p in posteriors]),
    }


def read_experts(reader: Reader, prefix: str, tangents: TangentMap, num_outputs: int) -> tuple[Expert, ...]:
    """The experts whose tensors these are, each checked."""
    sizes = reader.take(f"{prefix}sizes", INT, None)
    count = len(sizes)
    own = reader.take(f"{prefix}own", INT, count)
    failed = reader.take(f"{prefix}failed", torch.bool, count)
    if count == 0 or int(sizes.min()) < 0 or bool((own > sizes).any()) or bool((own < 0).any()):
        raise reader.fail(f"{prefix}sizes", "and 'own' do not describe experts")
    if bool(failed.all()):
        raise reader.fail(f"{prefix}failed", "marks every expert")
    # summed as Python integers, which cannot overflow
    held = reader.take(f"{prefix}rows", INT, sum(sizes.tolist()))
    if bool((held < 0).any()):
        raise reader.fail(f"{prefix}rows", "names rows below 0")
    rows = held.split(sizes.tolist())
    numbers = {n: reader.take(f"{prefix}{n}", REAL, count, num_outputs) for n in ("scale", "noise", "kappa")}
    for name, value in numbers.items():
        if not bool((value > 0).all()):
            raise reader.fail(f"{prefix}{name}", "must be positive")
    jitter = reader.take(f"{prefix}jitter", REAL, count)
    if not bool((jitter >= 0).all()):
        raise reader.fail(f"{prefix}jitter", "must not be negative")
    solved = sizes[~failed].tolist()
    explicit = tangents.width(expert=True) is not None
    read = _read_spans if explicit else _read_grams
    posteriors = iter(read(reader, prefix, tangents, solved, num_outputs))
    return tuple(
        Expert(
            rows=rows[i],
            own=own[i],
            posterior=PriorPosterior(numbers["scale"].new_empty(0, num_outputs))
            if failed[i]
            else next(posteriors),
            **{name: value[i] for name, value in numbers.items()},
            jitter=jitter[i],
        )
        for i in range(count)
    )


def _read_grams(reader: Reader, prefix: str, tangents: TangentMap, sizes: list[int], num_outputs: int):
    total = sum(sizes)
    rooted = "root" in reader.matching(prefix)
    state = RootPosterior if rooted else GramPosterior
    matrices = (
        read_roots(reader, prefix, sizes) if rooted else read_triangles(reader, f"{prefix}factor", sizes)
    )
    weights = reader.take(f"{prefix}weights", REAL, total, num_outputs).split(sizes)
    features = _read_features(reader, f"{prefix}features.", tangents, total)
    places = torch.arange(total).split(sizes)
    for matrix, weight, place in zip(matrices, weights, places, strict=True):
        yield state(features.take(place), matrix, weight)


def read_triangles(reader: Reader, name: str, sizes: list[int]) -> list[Tensor]:
    """Lower Cholesky factors of these sizes, whose triangles are laid end to end, shape [m, m] each."""
    counts = [m * (m + 1) // 2 for m in sizes]
    factors = []
    for m, triangle in zip(sizes, reader.take(name, REAL, sum(counts)).split(counts), strict=True):
        factor = torch.zeros(m, m, dtype=REAL)
        factor[torch.ones(m, m, dtype=torch.bool).tril()] = triangle
        if not bool((factor.diagonal() > 0).all()):
            raise reader.fail(name, "is not a positive definite factor")
        factors.append(factor)
    return factors


def read_roots(reader: Reader, prefix: str, sizes: list[int]) -> list[Tensor]:
    """Roots of so many rows each, laid end to end, shape [m, r] each; float64 or float32, all alike."""
    ranks = reader.take(f"{prefix}ranks", INT, len(sizes)).tolist()
    if any(not 0 <= rank <= m for rank, m in zip(ranks, sizes, strict=True)):
        raise reader.fail(f"{prefix}ranks", "lie beyond the number of rows")
    counts = [m * rank for m, rank in zip(sizes, ranks, strict=True)]
    flat = reader.take(f"{prefix}root", None, sum(counts))
    if flat.dtype not in (torch.float64, torch.float32):
        raise reader.fail(f"{prefix}root", f"is {flat.dtype}, neither float64 nor float32")
    parts = flat.split(counts)
    return [part.view(m, rank) for part, m, rank in zip(parts, sizes, ranks, strict=True)]


def _read_spans(reader: Reader, prefix: str, tangents: TangentMap, sizes: list[int], num_outputs: int):
    width = tangents.width(expert=True)
    full = tangents.width(expert=False)
    assert width is not None
    assert full is not None
    ranks = reader.take(f"{prefix}ranks", INT, len(sizes))
    if len(ranks) and (int(ranks.min()) < 0 or int(ranks.max()) > width):
        raise reader.fail(f"{prefix}ranks", f"lie beyond 0..{width}")
    per_expert = width if full != width else 0
    columns = reader.take(f"{prefix}columns", INT, per_expert * len(sizes)).split(per_expert or 1)
    if per_expert and (int(min(c.min() for c in columns)) < 0 or int(max(c.max() for c in columns)) >= full):
        raise reader.fail(f"{prefix}columns", "name features that do not exist")
    total = int(ranks.sum())
    flat = reader.take(f"{prefix}shrink", REAL, total)
    if not bool(((flat >= 0) & (flat <= 1)).all()):
        raise reader.fail(f"{prefix}shrink", "lies beyond 0..1")
    shrink = flat.split(ranks.tolist())
    basis = reader.take(f"{prefix}basis", None, width * total)
    if basis.dtype not in (tangents.network.dtype, torch.float16):
        raise reader.fail(f"{prefix}basis", f"is {basis.dtype}, not {tangents.network.dtype} or float16")
    bases = basis.split([width * r for r in ranks.tolist()])
    weights = reader.take(f"{prefix}weights", REAL, width * len(sizes), num_outputs).split(width)
    for i, rank in enumerate(ranks.tolist()):
        chosen = columns[i] if per_expert else torch.empty(0, dtype=INT)
        yield SpanPosterior(chosen, bases[i].view(width, rank), shrink[i], weights[i])
