"""Operations of aten in ONNX: indexing, shapes and reductions."""

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node

from ..trace.trace import ENDLESS
from .writer import Translation, Writer, dtype_of, require_supported, shape_of

aten = torch.ops.aten
MAX_FIRST = 64  # size of a short dimension; the batch, of any size, is traced with at least 1,009 rows
BROADCASTING = (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor, aten.where.self)


def _axes(x: Node, dims: Any) -> list[int]:
    """Dimensions of a tensor, counted from 0; all for None."""
    rank = len(shape_of(x))
    if dims is None or dims == []:
        return list(range(rank))
    return [axis % rank for axis in ([dims] if isinstance(dims, int) else dims)]


def _reshape(w: Writer, n: Any, x: Any, sizes: Any) -> str:
    """Reshape; a single size that depends on the batch is inferred."""
    if -1 not in sizes and sum(isinstance(size, Node) for size in sizes) == 1:
        sizes = [-1 if isinstance(size, Node) else size for size in sizes]
    return w.op("Reshape", w.tensor(x), w.shape(sizes))


def _expand(w: Writer, n: Any, x: Any, sizes: Any, *_: Any) -> str:
    """Expand; omitted if every use broadcasts it anyway, to the shape of another argument."""

    def broadcasts(user: Any) -> bool:
        others = [a for a in user.args if isinstance(a, Node) and a is not n]
        shapes = [shape_of(a) for a in others if a.target is not aten.expand.default]
        return user.op == "call_function" and user.target in BROADCASTING and shape_of(user) in shapes

    if all(map(broadcasts, n.users)):
        return w.tensor(x)
    return w.op("Expand", w.tensor(x), w.shape([1 if size == -1 else size for size in sizes]))


def _squeeze(w: Writer, n: Any, x: Any, dims: Any = None) -> str:
    axes = [axis for axis in _axes(x, dims) if shape_of(x)[axis] == 1]
    return w.op("Squeeze", w.tensor(x), w.integers(axes)) if axes else w.tensor(x)


def _slice(w: Writer, n: Any, x: Any, axis: int, start: Any, end: Any, step: int) -> str:
    ends = [w.shape([0 if start is None else start]), w.shape([ENDLESS if end is None else end])]
    return w.op("Slice", w.tensor(x), *ends, w.integers(_axes(x, axis)), w.integers([step]))


def _flip(w: Writer, n: Any, x: Any, dims: Any) -> str:
    axes = _axes(x, dims)
    start, end, step = (w.integers([value] * len(axes)) for value in (-1, -ENDLESS, -1))
    return w.op("Slice", w.tensor(x), start, end, w.integers(axes), step)


def _unbind(w: Writer, n: Any, x: Any, axis: int) -> tuple[str, ...]:
    positions = [w.constant(i, torch.int64) for i in range(len(n.meta["val"]))]
    return tuple(w.op("Gather", w.tensor(x), position, axis=axis) for position in positions)


def _split(w: Writer, n: Any, x: Any, sizes: Any, axis: int) -> tuple[str, ...]:
    if len(sizes) == 1:
        return (w.tensor(x),)
    return tuple(w.op("Split", w.tensor(x), w.integers(sizes), outputs=len(sizes), axis=axis))


def _index(w: Writer, n: Any, x: Any, given: Any) -> str:
    """Gather by integer index tensors of adjacent dimensions, which are flattened into one."""
    indices = [(axis, i) for axis, i in enumerate(given) if i is not None]
    axes = [axis for axis, _ in indices]
    require_supported(axes == list(range(axes[0], axes[0] + len(axes))))
    require_supported(all(dtype_of(i) != torch.bool for _, i in indices))
    values, (place, *others) = w.tensor(x), (w.tensor(i, torch.int64) for _, i in indices)
    for axis, index in zip(axes[1:], others, strict=True):
        size = w.constant(shape_of(x)[axis], torch.int64)
        place = w.op("Add", w.op("Mul", place, size), w.op("Mod", index, size))  # Mod: it may be negative
    if others:
        trailing = shape_of(x)[axes[-1] + 1 :]
        values = w.op("Reshape", values, w.integers([*[0] * axes[0], -1, *trailing]))  # 0: unchanged
    return w.op("Gather", values, place, axis=axes[0])


def _copy(w: Writer, n: Any, x: Any, source: Any, *_: Any) -> str:
    """The second argument, in the type of the first."""
    require_supported(shape_of(x) == shape_of(source))
    return w.tensor(source, dtype_of(x))


def _pad(w: Writer, n: Any, x: Any, sides: Any, value: float) -> str:
    """Pad: torch lists sides in pairs from the last dimension on, ONNX lists all starts, then all ends."""
    whole = [*sides, *[0] * (2 * len(shape_of(n)) - len(sides))]
    return w.op("Pad", w.tensor(x), w.integers(whole[-2::-2] + whole[::-2]), w.constant(value, dtype_of(n)))


def _reduced(kind: str, w: Writer, n: Any, *given: Any, through: torch.dtype | None = None) -> str:
    """Reduction over some dimensions, or all; booleans are reduced as numbers of the type `through`."""
    named = {a.name: value for a, value in zip(n.target._schema.arguments, given, strict=True)}
    axes, keep = w.integers(_axes(given[0], named.get("dim"))), int(named.get("keepdim", False))
    result = w.op(kind, w.tensor(given[0], through or dtype_of(n)), axes, keepdims=keep)
    return result if through is None else w.cast(result, torch.bool)


def _sum(w: Writer, n: Any, x: Any, *given: Any) -> str:
    """Sum; along a short first dimension by a product with ones, up to four times as fast in onnxruntime."""
    first, *others = shape_of(x) or [0]
    lines = _axes(x, given[0] if given else None) == [0] and shape_of(n) == others != []
    if not (lines and first <= MAX_FIRST and dtype_of(n).is_floating_point):
        return _reduced("ReduceSum", w, n, x, *given)
    value = w.tensor(x, dtype_of(n))
    lines = w.op("Reshape", value, w.integers([first, -1]))
    total = w.op("MatMul", w.constant(torch.ones(1, first, dtype=dtype_of(n))), lines)
    return w.op("Reshape", total, w.op("Shape", value, start=1))


def _best(kind: str, w: Writer, n: Any, x: Any, axis: int | None, keep: bool) -> str:
    require_supported(axis is not None)
    return w.op(kind, w.tensor(x), axis=axis, keepdims=int(keep))


def _largest(w: Writer, n: Any, x: Any, axis: int, keep: bool) -> tuple[str, str]:
    """Maximum along a dimension, and its index."""
    values = w.op("ReduceMax", w.tensor(x), w.integers(_axes(x, axis)), keepdims=int(keep))
    return values, w.op("ArgMax", w.tensor(x), axis=axis, keepdims=int(keep))


def _repeat(w: Writer, n: Any, x: Any, sizes: Any) -> str:
    name = w.tensor(x)
    if lead := len(sizes) - len(shape_of(x)):
        name = w.op("Unsqueeze", name, w.integers(range(lead)))
    return w.op("Tile", name, w.shape(sizes))


def _arange(w: Writer, n: Any, *_: Any) -> str:
    """A constant, or a range that depends on the number of rows."""
    if not any(isinstance(a, Node) for a in n.args):
        return w.constant(n.target(*n.args, dtype=dtype_of(n)))
    start, end, step = {1: (0, *n.args, 1), 2: (*n.args, 1), 3: n.args}[len(n.args)]
    ends = [w.op("Reshape", w.shape([size]), w.integers([])) for size in (start, end, step)]
    return w.cast(w.op("Range", *ends), dtype_of(n))


def _gather(kind: str, index: int, axis: int | None, w: Writer, n: Any, *_: Any) -> str:
    """Elements of the first argument; `index` and `axis` are the numbers of arguments, None: dimension 0."""
    place = w.tensor(n.args[index], None if isinstance(n.args[index], Node) else torch.int64)
    along = 0 if axis is None else n.args[axis] % len(shape_of(n.args[0]))
    return w.op(kind, w.tensor(n.args[0]), place, axis=along)


def _index_select(w: Writer, n: Any, x: Any, axis: int, index: Any) -> str:
    """Gather; slices if a constant index is a range or cyclic shift, since Gather copies numbers singly."""
    indices = index.meta["val"]
    if index.op == "get_attr" and type(indices) is torch.Tensor and len(indices) > 1:
        cuts = [0, *((indices.diff() != 1).nonzero().flatten() + 1).tolist(), len(indices)]
        ends = [(int(indices[a]), int(indices[b - 1]) + 1) for a, b in pairwise(cuts)]
        if len(ends) <= 2:
            parts = [w.op("Slice", w.tensor(x), *(w.integers([i]) for i in (*end, axis))) for end in ends]
            return parts[0] if len(parts) == 1 else w.op("Concat", *parts, axis=axis)
    return _gather("Gather", 2, 1, w, n)


MOVES: dict[str, Translation] = {
    "_to_copy": lambda w, n, x, *_: w.tensor(x, dtype_of(n)),
    "reshape view": _reshape,
    "squeeze.dim squeeze.dims squeeze": _squeeze,
    "sum.dim_IntList sum": _sum,
    "arange arange.start_step": _arange,
    "expand": _expand,
    "unsqueeze": lambda w, n, x, axis: w.op("Unsqueeze", w.tensor(x), w.integers([axis])),
    "permute": lambda w, n, x, dims: w.op("Transpose", w.tensor(x), perm=_axes(x, dims)),
    "cat": lambda w, n, xs, axis: w.op(
        "Concat", *(w.tensor(x, dtype_of(n)) for x in xs if shape_of(x) != [0]), axis=axis % len(shape_of(n))
    ),
    "copy": _copy,
    "slice.Tensor": _slice,
    "flip": _flip,
    "unbind.int": _unbind,
    "split_with_sizes": _split,
    "select.int": partial(_gather, "Gather", 2, 1),
    "index_select": _index_select,
    "index.Tensor _unsafe_index.Tensor": _index,
    "gather": partial(_gather, "GatherElements", 2, 1),
    "embedding": partial(_gather, "Gather", 1, None),
    "constant_pad_nd": _pad,
    "full": lambda w, n, sizes, x, *_: w.op("Expand", w.constant(x, dtype_of(n)), w.shape(sizes)),
    "scalar_tensor": lambda w, n, x, *_: w.constant(x, dtype_of(n)),
    "mean.dim": partial(_reduced, "ReduceMean"),
    "amax": partial(_reduced, "ReduceMax"),
    "amin": partial(_reduced, "ReduceMin"),
    "all.dim": partial(_reduced, "ReduceMin", through=torch.int32),
    "any.dim": partial(_reduced, "ReduceMax", through=torch.int32),
    "argmin": partial(_best, "ArgMin"),
    "argmax": partial(_best, "ArgMax"),
    "max.dim": _largest,
    "topk": lambda w, n, x, size, axis, top, order: w.op(
        "TopK", w.tensor(x), w.integers([size]), outputs=2, axis=axis, largest=int(top), sorted=int(order)
    ),
    "cumsum": lambda w, n, x, axis, _: w.op("CumSum", w.tensor(x, dtype_of(n)), w.constant(axis)),
    "repeat": _repeat,
    "sym_size.int": lambda w, n, x, axis: w.op("Shape", w.tensor(x), start=axis, end=axis + 1),
}
