"""A witness as a table of tensors, and back; a field of all cells is one tensor, laid end to end."""

from __future__ import annotations

import torch
from torch import Tensor

from .safefile import Reader
from .state import read_roots, read_triangles
from .witness import Cell, RootCell, WitnessState

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
    roots = [cell.root for cell in cells if isinstance(cell, RootCell)]
    if roots:
        table["ranks"] = torch.tensor([root.shape[1] for root in roots], dtype=INT)
        return table | {"root": torch.cat([root.flatten() for root in roots])}
    factors = [cell.factor for cell in cells if isinstance(cell, Cell)]
    triangles = [factor[torch.ones_like(factor, dtype=torch.bool).tril()] for factor in factors]
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
) -> tuple[Cell, ...] | tuple[RootCell, ...]:
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
    said = [
        {"own": own[i], "tau": tau[i]} | {name: value[i] for name, value in (split | numbers).items()}
        for i in range(count)
    ]
    if "root" in reader.matching(prefix):
        roots = read_roots(reader, prefix, lengths)
        return tuple(RootCell(root=root, **one) for root, one in zip(roots, said, strict=True))
    factors = read_triangles(reader, f"{prefix}factor", lengths)
    return tuple(Cell(factor=factor, **one) for factor, one in zip(factors, said, strict=True))


def _positive(reader: Reader, name: str, *shape: int) -> Tensor:
    value = reader.take(name, REAL, *shape)
    if not bool((value > 0).all()):
        raise reader.fail(name, "must be positive")
    return value
