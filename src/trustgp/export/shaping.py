"""Operations that move numbers about or sum them up, in ONNX."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from .elementwise import Translation
from .writing import Writer, dtype_of, shape_of

aten = torch.ops.aten
ENDLESS = 2**63 - 1


def _axis(n: Any, place: int = 1, default: int = 0) -> int:
    axis = n.args[place] if len(n.args) > place else n.kwargs.get("dim", default)
    return int(axis)


def _reshape(w: Writer, n: Any) -> str:
    return w.reshape(w.tensor(n.args[0]), n.args[1])


def _expand(w: Writer, n: Any) -> str:
    """Nothing is written where every use would repeat it anyway."""
    if all(user.op == "call_function" and user.target in BROADCASTING for user in n.users) and _stays(n):
        return w.tensor(n.args[0])
    before, sizes = shape_of(n.args[0]), list(n.args[1])
    lead = len(sizes) - len(before)
    asked = [1 if size == -1 else size for size in sizes]
    del lead, before
    return w.op("Expand", w.tensor(n.args[0]), w.shape(asked))


def _stays(n: Any) -> bool:
    """Whether other arguments of each use have the expanded shape, so that the result has it, too."""
    for user in n.users:
        others = [a for a in user.args if isinstance(a, Node) and a is not n]
        own = shape_of(user)
        shapes = [shape_of(a) for a in others if a.target is not aten.expand.default]
        if own not in shapes:
            return False
    return True


BROADCASTING = (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor, aten.where.self)


def _unsqueeze(w: Writer, n: Any) -> str:
    return w.op("Unsqueeze", w.tensor(n.args[0]), w.integers([_axis(n) % len(shape_of(n))]))


def _squeeze(w: Writer, n: Any) -> str:
    before = shape_of(n.args[0])
    asked = n.args[1] if len(n.args) > 1 else list(range(len(before)))
    axes = [a % len(before) for a in (asked if isinstance(asked, (list, tuple)) else [asked])]
    axes = [a for a in axes if before[a] == 1]
    return w.op("Squeeze", w.tensor(n.args[0]), w.integers(axes)) if axes else w.tensor(n.args[0])


def _permuted(w: Writer, n: Any, order: list[int]) -> str:
    return w.op("Transpose", w.tensor(n.args[0]), perm=order)


def _permute(w: Writer, n: Any) -> str:
    return _permuted(w, n, [a % len(shape_of(n)) for a in n.args[1]])


def _transpose(w: Writer, n: Any) -> str:
    order = list(range(len(shape_of(n))))
    if len(order) < 2:
        return w.tensor(n.args[0])
    i, j = (n.args[1], n.args[2]) if len(n.args) > 2 else (0, 1)
    order[i], order[j] = order[j], order[i]
    return _permuted(w, n, order)


def _cat(w: Writer, n: Any) -> str:
    axis = _axis(n) % len(shape_of(n))
    parts = [a for a in n.args[0] if shape_of(a) != [0]]
    return w.op("Concat", *(w.tensor(a, dtype_of(n)) for a in parts), axis=axis)


def _stack(w: Writer, n: Any) -> str:
    axis = _axis(n) % len(shape_of(n))
    names = [w.tensor(a, dtype_of(n)) for a in n.args[0]]
    return w.op("Concat", *(w.op("Unsqueeze", name, w.integers([axis])) for name in names), axis=axis)


def _slice(w: Writer, n: Any) -> str:
    rank = len(shape_of(n))
    axis, start, end, step = (list(n.args[1:]) + [0, None, None, 1][len(n.args) - 1 :])[:4]
    start, end = (0 if start is None else start), (ENDLESS if end is None else end)
    ends = [w.shape([value]) for value in (start, end)]
    return w.op("Slice", w.tensor(n.args[0]), *ends, w.integers([axis % rank]), w.integers([step]))


def _select(w: Writer, n: Any) -> str:
    axis = n.args[1] % len(shape_of(n.args[0]))
    return w.op("Gather", w.tensor(n.args[0]), w.constant(n.args[2], torch.int64), axis=axis)


def _unbind(w: Writer, n: Any) -> tuple[str, ...]:
    axis = _axis(n)
    size = shape_of(n.args[0])[axis]
    return tuple(
        w.op("Gather", w.tensor(n.args[0]), w.constant(i, torch.int64), axis=axis) for i in range(size)
    )


def _split(w: Writer, n: Any) -> tuple[str, ...]:
    axis = _axis(n, 2)
    sizes = [list(v.shape)[axis] for v in n.meta["val"]]
    found = w.op("Split", w.tensor(n.args[0]), w.integers(sizes), outputs=len(sizes), axis=axis)
    return (found,) if len(sizes) == 1 else tuple(found)


def _getitem(w: Writer, n: Any) -> Any:
    return w.values[n.args[0]][n.args[1]]


def _index(w: Writer, n: Any) -> str:
    """By one index tensor of whole numbers, at any place."""
    given = [(axis, i) for axis, i in enumerate(n.args[1]) if i is not None]
    if len(given) != 1 or dtype_of(given[0][1]) == torch.bool:
        raise NotImplementedError
    axis, index = given[0]
    return w.op("Gather", w.tensor(n.args[0]), w.tensor(index), axis=axis)


def _index_select(w: Writer, n: Any) -> str:
    return w.op("Gather", w.tensor(n.args[0]), w.tensor(n.args[2]), axis=n.args[1])


def _gather(w: Writer, n: Any) -> str:
    return w.op("GatherElements", w.tensor(n.args[0]), w.tensor(n.args[2]), axis=n.args[1])


def _embedding(w: Writer, n: Any) -> str:
    return w.op("Gather", w.tensor(n.args[0]), w.tensor(n.args[1]), axis=0)


def _pad(w: Writer, n: Any) -> str:
    rank, sides = len(shape_of(n)), list(n.args[1])
    pairs = [(sides[2 * i], sides[2 * i + 1]) for i in range(len(sides) // 2)][::-1]
    pairs = [(0, 0)] * (rank - len(pairs)) + pairs
    pads = [a for a, _ in pairs] + [b for _, b in pairs]
    value = n.args[2] if len(n.args) > 2 else 0
    return w.op("Pad", w.tensor(n.args[0]), w.integers(pads), w.constant(value, dtype_of(n)))


def _flip(w: Writer, n: Any) -> str:
    axes = [a % len(shape_of(n)) for a in n.args[1]]
    many = len(axes)
    ends = (w.integers([-1] * many), w.integers([-ENDLESS] * many), w.integers(axes), w.integers([-1] * many))
    return w.op("Slice", w.tensor(n.args[0]), *ends)


def _filled(w: Writer, n: Any, sizes: Any, value: float) -> str:
    return w.op("Expand", w.constant(value, dtype_of(n)), w.shape(sizes))


def _like(value: float | None) -> Translation:
    def translate(w: Writer, n: Any) -> str:
        fill = n.args[1] if value is None else value
        shape = [w.rows if s == w.rows else s for s in shape_of(n)]
        if any(s % w.rows == 0 and s for s in shape):
            return w.op("Expand", w.constant(fill, dtype_of(n)), w.op("Shape", w.tensor(n.args[0])))
        return w.constant(torch.full(shape, fill, dtype=dtype_of(n)))

    return translate


def _reduced(kind: str) -> Translation:
    def translate(w: Writer, n: Any) -> str:
        axes = n.args[1] if len(n.args) > 1 else n.kwargs.get("dim")
        keep = n.args[2] if len(n.args) > 2 else n.kwargs.get("keepdim", False)
        rank = len(shape_of(n.args[0]))
        axes = list(range(rank)) if axes is None or axes == [] else axes
        axes = [a % rank for a in (axes if isinstance(axes, (list, tuple)) else [axes])]
        name = w.tensor(n.args[0], dtype_of(n))
        return w.op(kind, name, w.integers(axes), keepdims=int(bool(keep)))

    return translate


def _every(w: Writer, n: Any, kind: str) -> str:
    axes = [n.args[1]] if len(n.args) > 1 else list(range(len(shape_of(n.args[0]))))
    keep = int(bool(n.args[2])) if len(n.args) > 2 else 0
    found = w.op(kind, w.cast(w.tensor(n.args[0]), torch.int32), w.integers(axes), keepdims=keep)
    return w.cast(found, torch.bool)


def _best(kind: str) -> Translation:
    def translate(w: Writer, n: Any) -> str:
        keep = n.args[2] if len(n.args) > 2 else False
        return w.op(kind, w.tensor(n.args[0]), axis=n.args[1], keepdims=int(bool(keep)))

    return translate


def _cumsum(w: Writer, n: Any) -> str:
    return w.op("CumSum", w.tensor(n.args[0], dtype_of(n)), w.constant(n.args[1], torch.int64))


def _repeat(w: Writer, n: Any) -> str:
    sizes, before = n.args[1], shape_of(n.args[0])
    name = w.tensor(n.args[0])
    if len(sizes) > len(before):
        name = w.op("Unsqueeze", name, w.integers(range(len(sizes) - len(before))))
    return w.op("Tile", name, w.shape(sizes))


def _arange(w: Writer, n: Any) -> str:
    if any(isinstance(a, Node) for a in n.args):
        raise NotImplementedError
    return w.constant(n.target(*n.args, dtype=dtype_of(n)))


def _sym_size(w: Writer, n: Any) -> str:
    return w.op("Shape", w.tensor(n.args[0]), start=n.args[1], end=n.args[1] + 1)


def _times(w: Writer, n: Any) -> str:
    return w.op("Mul", w.values[n.args[0]], w.integers([n.args[1]]))


SHAPING: dict[Any, Translation] = {
    aten.reshape.default: _reshape,
    aten.view.default: _reshape,
    aten.expand.default: _expand,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.squeeze.default: _squeeze,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _transpose,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.unbind.int: _unbind,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    operator.getitem: _getitem,
    operator.mul: _times,
    aten.index.Tensor: _index,
    aten.index_select.default: _index_select,
    aten.gather.default: _gather,
    aten.embedding.default: _embedding,
    aten.constant_pad_nd.default: _pad,
    aten.flip.default: _flip,
    aten.full.default: lambda w, n: _filled(w, n, n.args[0], n.args[1]),
    aten.zeros.default: lambda w, n: _filled(w, n, n.args[0], 0),
    aten.ones.default: lambda w, n: _filled(w, n, n.args[0], 1),
    aten.scalar_tensor.default: lambda w, n: w.constant(n.args[0], dtype_of(n)),
    aten.new_zeros.default: lambda w, n: _filled(w, n, n.args[1], 0),
    aten.new_ones.default: lambda w, n: _filled(w, n, n.args[1], 1),
    aten.new_full.default: lambda w, n: _filled(w, n, n.args[1], n.args[2]),
    aten.zeros_like.default: _like(0),
    aten.ones_like.default: _like(1),
    aten.full_like.default: _like(None),
    aten.sum.dim_IntList: _reduced("ReduceSum"),
    aten.sum.default: _reduced("ReduceSum"),
    aten.mean.dim: _reduced("ReduceMean"),
    aten.amax.default: _reduced("ReduceMax"),
    aten.amin.default: _reduced("ReduceMin"),
    aten.all.dim: lambda w, n: _every(w, n, "ReduceMin"),
    aten.any.dim: lambda w, n: _every(w, n, "ReduceMax"),
    aten.argmin.default: _best("ArgMin"),
    aten.argmax.default: _best("ArgMax"),
    aten.cumsum.default: _cumsum,
    aten.repeat.default: _repeat,
    aten.arange.default: _arange,
    aten.arange.start_step: _arange,
    aten.sym_size.int: _sym_size,
}
