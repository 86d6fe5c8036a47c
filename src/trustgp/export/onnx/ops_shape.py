"""Operations that move numbers about or sum them up, in ONNX."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from ..trace.dynamic_batch import ENDLESS
from .writer import Translation, Writer, arguments, dtype_of, shape_of

aten = torch.ops.aten
BROADCASTING = (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor, aten.where.self)


def _axes(n: Any, asked: Any) -> list[int]:
    """Dimensions of the first argument as whole numbers from 0; all of them where none is named."""
    rank = len(shape_of(n.args[0]))
    if asked is None or asked == []:
        return list(range(rank))
    return [axis % rank for axis in (asked if isinstance(asked, (list, tuple)) else [asked])]


def _reshape(w: Writer, n: Any) -> str:
    """A single size that depends on the batch is left to be found."""
    sizes = list(n.args[1])
    if -1 not in sizes and sum(isinstance(size, Node) for size in sizes) == 1:
        sizes = [-1 if isinstance(size, Node) else size for size in sizes]
    return w.op("Reshape", w.tensor(n.args[0]), w.shape(sizes))


def _expand(w: Writer, n: Any) -> str:
    """Nothing is written where every use would repeat it anyway."""
    if all(user.op == "call_function" and user.target in BROADCASTING for user in n.users) and _stays(n):
        return w.tensor(n.args[0])
    return w.op("Expand", w.tensor(n.args[0]), w.shape([1 if size == -1 else size for size in n.args[1]]))


def _stays(n: Any) -> bool:
    """Whether other arguments of each use have the expanded shape, so that the result has it, too."""
    for user in n.users:
        others = [a for a in user.args if isinstance(a, Node) and a is not n]
        if shape_of(user) not in [shape_of(a) for a in others if a.target is not aten.expand.default]:
            return False
    return True


def _unsqueeze(w: Writer, n: Any) -> str:
    return w.op("Unsqueeze", w.tensor(n.args[0]), w.integers([n.args[1] % len(shape_of(n))]))


def _squeeze(w: Writer, n: Any) -> str:
    before, asked = shape_of(n.args[0]), n.args[1] if len(n.args) > 1 else None
    axes = [axis for axis in _axes(n, asked) if before[axis] == 1]
    return w.op("Squeeze", w.tensor(n.args[0]), w.integers(axes)) if axes else w.tensor(n.args[0])


def _permute(w: Writer, n: Any) -> str:
    return w.op("Transpose", w.tensor(n.args[0]), perm=_axes(n, n.args[1]))


def _cat(w: Writer, n: Any) -> str:
    tensors, axis = arguments(n)
    parts = [w.tensor(a, dtype_of(n)) for a in tensors if shape_of(a) != [0]]
    return w.op("Concat", *parts, axis=axis % len(shape_of(n)))


def _slice(w: Writer, n: Any) -> str:
    x, axis, start, end, step = arguments(n)
    ends = [w.shape([0 if start is None else start]), w.shape([ENDLESS if end is None else end])]
    return w.op("Slice", w.tensor(x), *ends, w.integers(_axes(n, axis)), w.integers([step]))


def _flip(w: Writer, n: Any) -> str:
    axes = _axes(n, n.args[1])
    limits = ([value] * len(axes) for value in (-1, -ENDLESS))
    steps = w.integers([-1] * len(axes))
    return w.op("Slice", w.tensor(n.args[0]), *map(w.integers, limits), w.integers(axes), steps)


def _unbind(w: Writer, n: Any) -> tuple[str, ...]:
    x, axis = arguments(n)
    places = [w.constant(i, torch.int64) for i in range(len(n.meta["val"]))]
    return tuple(w.op("Gather", w.tensor(x), place, axis=axis) for place in places)


def _split(w: Writer, n: Any) -> tuple[str, ...]:
    x, sizes, axis = arguments(n)
    found = w.op("Split", w.tensor(x), w.integers(sizes), outputs=len(sizes), axis=axis)
    return (found,) if len(sizes) == 1 else tuple(found)


def _select(w: Writer, n: Any) -> str:
    x, axis, place = n.args
    return w.op("Gather", w.tensor(x), w.constant(place, torch.int64), axis=axis % len(shape_of(x)))


def _index(w: Writer, n: Any) -> str:
    """By one index tensor of whole numbers, at any place."""
    given = [(axis, i) for axis, i in enumerate(n.args[1]) if i is not None]
    if len(given) != 1 or dtype_of(given[0][1]) == torch.bool:
        raise NotImplementedError
    axis, index = given[0]
    return w.op("Gather", w.tensor(n.args[0]), w.tensor(index), axis=axis)


def _gather(kind: str) -> Translation:
    return lambda w, n: w.op(kind, w.tensor(n.args[0]), w.tensor(n.args[2]), axis=n.args[1])


def _embedding(w: Writer, n: Any) -> str:
    return w.op("Gather", w.tensor(n.args[0]), w.tensor(n.args[1]), axis=0)


def _pad(w: Writer, n: Any) -> str:
    """torch counts the sides from the last dimension on, pair by pair; ONNX all starts, then all ends."""
    x, sides, value = arguments(n)
    whole = [*sides, *[0] * (2 * len(shape_of(n)) - len(sides))]
    pads = whole[-2::-2] + whole[::-2]
    return w.op("Pad", w.tensor(x), w.integers(pads), w.constant(value, dtype_of(n)))


def _full(w: Writer, n: Any) -> str:
    return w.op("Expand", w.constant(n.args[1], dtype_of(n)), w.shape(n.args[0]))


def _reduced(kind: str) -> Translation:
    def translate(w: Writer, n: Any) -> str:
        given = {a.name: value for a, value in zip(n.target._schema.arguments, arguments(n), strict=True)}
        axes = w.integers(_axes(n, given.get("dim")))
        return w.op(kind, w.tensor(n.args[0], dtype_of(n)), axes, keepdims=int(given.get("keepdim", False)))

    return translate


def _every(kind: str) -> Translation:
    def translate(w: Writer, n: Any) -> str:
        x, axis, keep = arguments(n)
        truths = w.cast(w.tensor(x), torch.int32)
        return w.cast(w.op(kind, truths, w.integers(_axes(n, axis)), keepdims=int(keep)), torch.bool)

    return translate


def _best(kind: str) -> Translation:
    def translate(w: Writer, n: Any) -> str:
        x, axis, keep = arguments(n)
        if axis is None:
            raise NotImplementedError
        return w.op(kind, w.tensor(x), axis=axis, keepdims=int(keep))

    return translate


def _cumsum(w: Writer, n: Any) -> str:
    return w.op("CumSum", w.tensor(n.args[0], dtype_of(n)), w.constant(n.args[1], torch.int64))


def _repeat(w: Writer, n: Any) -> str:
    name, sizes = w.tensor(n.args[0]), n.args[1]
    if lead := len(sizes) - len(shape_of(n.args[0])):
        name = w.op("Unsqueeze", name, w.integers(range(lead)))
    return w.op("Tile", name, w.shape(sizes))


def _arange(w: Writer, n: Any) -> str:
    if any(isinstance(a, Node) for a in n.args):
        raise NotImplementedError
    return w.constant(n.target(*n.args, dtype=dtype_of(n)))


def _sym_size(w: Writer, n: Any) -> str:
    return w.op("Shape", w.tensor(n.args[0]), start=n.args[1], end=n.args[1] + 1)


SHAPING: dict[Any, Translation] = {
    **dict.fromkeys((aten.reshape.default, aten.view.default), _reshape),
    **dict.fromkeys((aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default), _squeeze),
    **dict.fromkeys((aten.sum.dim_IntList, aten.sum.default), _reduced("ReduceSum")),
    **dict.fromkeys((aten.arange.default, aten.arange.start_step), _arange),
    aten.expand.default: _expand,
    aten.unsqueeze.default: _unsqueeze,
    aten.permute.default: _permute,
    aten.cat.default: _cat,
    aten.slice.Tensor: _slice,
    aten.flip.default: _flip,
    aten.unbind.int: _unbind,
    aten.split_with_sizes.default: _split,
    operator.getitem: lambda w, n: w.values[n.args[0]][n.args[1]],
    operator.mul: lambda w, n: w.op("Mul", w.values[n.args[0]], w.integers([n.args[1]])),
    aten.select.int: _select,
    aten.index.Tensor: _index,
    aten.index_select.default: _gather("Gather"),
    aten.gather.default: _gather("GatherElements"),
    aten.embedding.default: _embedding,
    aten.constant_pad_nd.default: _pad,
    aten.full.default: _full,
    aten.scalar_tensor.default: lambda w, n: w.constant(n.args[0], dtype_of(n)),
    aten.mean.dim: _reduced("ReduceMean"),
    aten.amax.default: _reduced("ReduceMax"),
    aten.amin.default: _reduced("ReduceMin"),
    aten.all.dim: _every("ReduceMin"),
    aten.any.dim: _every("ReduceMax"),
    aten.argmin.default: _best("ArgMin"),
    aten.argmax.default: _best("ArgMax"),
    aten.cumsum.default: _cumsum,
    aten.repeat.default: _repeat,
    aten.sym_size.int: _sym_size,
}
