"""A witness as a table of tensors, and back; a field of all cells is one tensor, laid end to end."""

from __future__ import annotations

import torch
from torch import Tensor

from .safefile import Reader
from .witness import Cell, WitnessState

INT, REAL = torch.int64, torch.float64
EACH = ("centre", "scale", "kappa")  # one row for each cell, shape [M, C]


def witness_tensors(state: WitnessState) -> dict[str, Tensor]:
    """The state of a witness."""
    cells = state.cells
    shared = ("offset", "spread", "centroids", "length", "ratio", "size", "reach", "floor")
    table = {name: getattr(state, name) for name in shared}
    table |= {name: torch.stack([getattr(cell, name) for cell in cells]) for name in EACH}
    table["sizes"] = torch.tensor([len(cell.rows) for cell in cells], dtype=INT)
    table["own"] = torch.stack([cell.own for cell in cells]).cpu()
    table["tau"] = torch.stack([cell.tau for cell in cells])
    table |= {
        name: torch.cat([getattr(cell, name) for cell in cells]) for name in ("rows", "inputs", "weights")
    }
    triangles = [cell.factor[torch.ones_like(cell.factor, dtype=torch.bool).tril()] for cell in cells]
    return table | {"factor": torch.cat(triangles)}


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
        "spread": _positive(reader, f"{prefix}spread", width),
        "centroids": centroids,
        "length": _positive(reader, f"{prefix}length"),
        "ratio": _positive(reader, f"{prefix}ratio"),
        "size": reader.take(f"{prefix}size", INT),
        "reach": _positive(reader, f"{prefix}reach"),
        "floor": _positive(reader, f"{prefix}floor", num_outputs),
    }
    if int(shared["size"]) < 1:
        raise reader.fail(f"{prefix}size", "must be positive")
    if float(shared["reach"]) > 1:
        raise reader.fail(f"{prefix}reach", "must lie between 0 and 1")
    return WitnessState(**shared, cells=_read_cells(reader, prefix, count, width, num_outputs, rows))


def _read_cells(
    reader: Reader, prefix: str, count: int, width: int, num_outputs: int, rows: int
) -> tuple[Cell, ...]:
    sizes = reader.take(f"{prefix}sizes", INT, count)
    own = reader.take(f"{prefix}own", INT, count)
    if int(sizes.min()) < 1 or bool((own > sizes).any()) or bool((own < 0).any()) or int(own.max()) == 0:
        raise reader.fail(f"{prefix}sizes", "and 'own' do not describe cells")
    lengths = sizes.tolist()
    total = sum(lengths)  # as Python integers, which cannot overflow
    held = reader.take(f"{prefix}rows", INT, total)
    if int(held.min()) < 0 or int(held.max()) >= rows:
        raise reader.fail(f"{prefix}rows", f"names rows beyond 0..{rows - 1}")
    numbers = {
        "centre": reader.take(f"{prefix}centre", REAL, count, num_outputs),
        "scale": _positive(reader, f"{prefix}scale", count, num_outputs),
        "kappa": _positive(reader, f"{prefix}kappa", count, num_outputs),
    }
    tau = _positive(reader, f"{prefix}tau", count)
    split = {
        "rows": held.split(lengths),
        "inputs": reader.take(f"{prefix}inputs", REAL, total, width).split(lengths),
        "weights": reader.take(f"{prefix}weights", REAL, total, num_outputs).split(lengths),
    }
    triangles = [m * (m + 1) // 2 for m in lengths]
    flat = reader.take(f"{prefix}factor", REAL, sum(triangles)).split(triangles)
    cells = []
    for i, m in enumerate(lengths):
        factor = torch.zeros(m, m, dtype=REAL)
        factor[torch.ones(m, m, dtype=torch.bool).tril()] = flat[i]
        if not bool((factor.diagonal() > 0).all()):
            raise reader.fail(f"{prefix}factor", "is not a positive definite factor")
        parts = {name: value[i] for name, value in split.items()}
        each = {name: value[i] for name, value in numbers.items()}
        cells.append(Cell(own=own[i], factor=factor, tau=tau[i], **parts, **each))
    return tuple(cells)


def _positive(reader: Reader, name: str, *shape: int) -> Tensor:
    value = reader.take(name, REAL, *shape)
    if not bool((value > 0).all()):
        raise reader.fail(name, "must be positive")
    return value
