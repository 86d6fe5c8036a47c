"""A witness as a table of tensors, and back; a field of all cells is one tensor, laid end to end."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..experts.witness import Cell, PointFeatures, WitnessState
from .expert_tensors import (
    INT,
    REAL,
    held_tensors,
    posterior_tensors,
    read_held,
    read_positive,
    read_row_posteriors,
)

SHARED = ("offset", "spread", "centroids", "length", "ratio", "size", "reach", "floor")
EACH = ("centre", "scale", "kappa", "tau")  # one row for each cell


def witness_tensors(state: WitnessState) -> dict[str, Tensor]:
    """The state of a witness."""
    posteriors = [cell.posterior for cell in state.cells]
    table = {name: getattr(state, name) for name in SHARED}
    table |= {name: torch.stack([getattr(cell, name) for cell in state.cells]) for name in EACH}
    table |= held_tensors(state.cells) | posterior_tensors(posteriors)
    return table | PointFeatures.cat([posterior.features for posterior in posteriors]).stored()


def read_witness(reader: Reader, prefix: str, num_outputs: int, rows: int) -> WitnessState:
    """The witness whose tensors these are, each checked.

    Args:
        reader: Holds the tensors.
        prefix: Of their names.
        num_outputs: C.
        rows: How many training rows there were.
    """
    centroids = reader.take(f"{prefix}centroids", REAL, None, None)
    count, width = centroids.shape
    if count == 0 or width == 0:
        raise reader.fail(f"{prefix}centroids", "name no cell")
    shared = {
        "offset": reader.take(f"{prefix}offset", REAL, width),
        "spread": read_positive(reader, f"{prefix}spread", width),
        "centroids": centroids,
        "length": read_positive(reader, f"{prefix}length"),
        "ratio": read_positive(reader, f"{prefix}ratio"),
        "size": reader.take(f"{prefix}size", INT),
        "reach": read_positive(reader, f"{prefix}reach"),
        "floor": read_positive(reader, f"{prefix}floor", num_outputs),
    }
    if int(shared["size"]) < 1:
        raise reader.fail(f"{prefix}size", "must be positive")
    if float(shared["reach"]) > 1:
        raise reader.fail(f"{prefix}reach", "must lie between 0 and 1")
    cells = _read_cells(reader, prefix, centroids, float(shared["length"]), num_outputs, rows)
    return WitnessState(**shared, cells=cells)


def _read_cells(
    reader: Reader, prefix: str, centroids: Tensor, length: float, num_outputs: int, rows: int
) -> tuple[Cell, ...]:
    count, width = centroids.shape
    sizes, own, held = read_held(reader, prefix, count, "cells")
    if min(sizes) < 1 or int(own.max()) == 0:
        raise reader.fail(f"{prefix}sizes", "and 'own' do not describe cells")
    if max(int(one.max()) for one in held) >= rows:
        raise reader.fail(f"{prefix}rows", f"names rows beyond 0..{rows - 1}")
    numbers = {
        "centre": reader.take(f"{prefix}centre", REAL, count, num_outputs),
        "scale": read_positive(reader, f"{prefix}scale", count, num_outputs),
        "kappa": read_positive(reader, f"{prefix}kappa", count, num_outputs),
        "tau": read_positive(reader, f"{prefix}tau", count),
    }

    def features(total: int) -> PointFeatures:
        return PointFeatures(reader.take(f"{prefix}inputs", REAL, total, width), length)

    posteriors = read_row_posteriors(reader, prefix, features, sizes, num_outputs)
    return tuple(
        Cell(held[i], own[i], posterior, **{name: value[i] for name, value in numbers.items()})
        for i, posterior in enumerate(posteriors)
    )
