"""The operations of aten in ONNX: on each number for itself, products, pools; and those that move numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from ...tangents.jacobian.layer_gradients import each_side
from ..trace.trace import ENDLESS
from .writer import Translation, Writer, arguments, dtype_of, shape_of

aten = torch.ops.aten
BROADCASTING = (aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor, aten.where.self)
# of operations that have the same name in ONNX, but for its capital
SAME_NAME = "neg abs exp log sqrt reciprocal sin cos atan tanh sigmoid erf relu floor ceil sign mish"
COMPARISONS = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}


def _only(holds: bool) -> None:
    """ONNX has the operation with some arguments only."""
    if not holds:
        raise NotImplementedError


def _apply(kind: str, dtype: Callable[[Any], torch.dtype] = dtype_of) -> Translation:
    """An operation of the same arguments, all converted to one type: that of the result, unless told."""
    return lambda w, n: w.op(kind, *(w.tensor(a, dtype(n)) for a in n.args))


def _plain(kind: str, *places: int) -> Translation:
    """An operation of the arguments at these places, each as it is; without any, of the first."""
    return lambda w, n: w.op(kind, *(w.tensor(n.args[i]) for i in places or (0,)))


def _compared(n: Any) -> torch.dtype:
    """The type in which torch compares nodes and numbers."""
    return torch.result_type(*(a.meta["val"] if isinstance(a, Node) else a for a in n.args))


def _scaled(w: Writer, n: Any, name: str, factor: float) -> str:
    return name if factor == 1 else w.op("Mul", name, w.constant(factor, dtype_of(n)))


def _add(kind: str, w: Writer, n: Any) -> str:
    """A sum or difference; torch multiplies what is added by alpha."""
    one, other, alpha = arguments(n)
    return w.op(kind, w.tensor(one, dtype_of(n)), _scaled(w, n, w.tensor(other, dtype_of(n)), alpha))


def _logical(kind: str, w: Writer, n: Any) -> str:
    _only(dtype_of(n) == torch.bool)
    return _apply(kind)(w, n)


def _power(w: Writer, n: Any) -> str:
    exponent = n.args[1]
    if exponent == 0.5:
        return w.op("Sqrt", w.tensor(n.args[0], dtype_of(n)))
    if isinstance(exponent, Node) or exponent not in (1, 2, 3):
        return _apply("Pow")(w, n)
    x = found = w.tensor(n.args[0], dtype_of(n))
    for _ in range(int(exponent) - 1):
        found = w.op("Mul", found, x)
    return found


def _clamp(w: Writer, n: Any) -> str:
    """By Max and Min, which hand a NaN on and take a limit of any shape."""
    x, low, high = arguments(n)
    found = w.tensor(x, dtype_of(n))
    for kind, limit in (("Max", low), ("Min", high)):
        found = found if limit is None else w.op(kind, found, w.tensor(limit, dtype_of(n)))
    return found


def _elu(w: Writer, n: Any) -> str:
    x, alpha, scale, inner = arguments(n)
    _only(inner == 1)
    return _scaled(w, n, w.op("Elu", w.tensor(x), alpha=float(alpha)), scale)  # SELU has one


def _softplus(w: Writer, n: Any) -> str:
    x, beta, _ = arguments(n)
    return _scaled(w, n, w.op("Softplus", _scaled(w, n, w.tensor(x), beta)), 1 / beta)


def _beside_one(kind: str, w: Writer, n: Any) -> str:
    """log(1 + x) or exp(x) - 1, in double precision: digits of a small x are lost beside the 1."""
    x, one = w.tensor(n.args[0], torch.float64), w.constant(1.0, torch.float64)
    found = w.op("Log", w.op("Add", x, one)) if kind == "Log" else w.op("Sub", w.op("Exp", x), one)
    return w.cast(found, dtype_of(n))


def _product_with_vector(w: Writer, n: Any) -> str:
    """A v; of a transposed matrix v A, so that it need not be turned."""
    matrix, vector = n.args
    if isinstance(matrix, Node) and matrix.target is aten.permute.default:
        return w.op("MatMul", w.tensor(vector), w.tensor(matrix.args[0]))
    return w.op("MatMul", w.tensor(matrix), w.tensor(vector))


def _addmm(w: Writer, n: Any) -> str:
    added, one, other, beta, alpha = arguments(n)
    return w.op("Gemm", *map(w.tensor, (one, other, added)), alpha=float(alpha), beta=float(beta))


def _window(n: Any, stride: Any, padding: Any, **sides: Any) -> dict[str, Any]:
    """How the window of a pool or convolution moves, of each side; and what else has a number for each."""
    dims = len(shape_of(n.args[0])) - 2
    sides = {name: each_side(value, dims) for name, value in {**sides, "strides": stride}.items()}
    return {**sides, "pads": each_side(padding, dims) * 2}


def _convolution(w: Writer, n: Any) -> str:
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = n.args
    sides = {"dilations": dilation, **({"output_padding": extra} if transposed else {})}
    given = [w.tensor(each) for each in (x, weight, bias) if each is not None]
    kind = "ConvTranspose" if transposed else "Conv"
    return w.op(kind, *given, **_window(n, stride, padding, **sides), group=groups)


def _max_pool(w: Writer, n: Any) -> tuple[str, str]:
    """Values, and each one's place in its plane: ONNX counts through all planes."""
    given, kernel, stride, padding, dilation, ceil = arguments(n)
    x, places, sides = w.tensor(given), "", shape_of(given)[2:]
    window = _window(n, stride or kernel, padding, kernel_shape=kernel, dilations=dilation)
    if any(user.args[1] == 1 for user in n.users):
        values, places = w.op("MaxPool", x, outputs=2, **window, ceil_mode=int(ceil))
        places = w.op("Mod", places, w.constant(math.prod(sides), torch.int64))
    else:
        values = w.op("MaxPool", x, **window, ceil_mode=int(ceil))
    # onnxruntime passes a NaN over, and what has overflowed would look sound: the plane is then no number
    unknown = w.cast(w.op("IsNaN", x), torch.int32)
    planes = w.integers(range(2, 2 + len(sides)))
    lost = w.cast(w.op("ReduceMax", unknown, planes, keepdims=1), torch.bool)
    return w.op("Where", lost, w.constant(math.nan, dtype_of(given)), values), places


def _average_pool(w: Writer, n: Any) -> str:
    x, kernel, stride, padding, ceil, count, *divisor = arguments(n)
    _only(not any(divisor))
    window = _window(n, stride or kernel, padding, kernel_shape=kernel)
    return w.op("AveragePool", w.tensor(x), **window, ceil_mode=int(ceil), count_include_pad=int(count))


def _batch_norm(w: Writer, n: Any) -> tuple[str, str, str]:
    """With the statistics that it holds."""
    x, weight, bias, mean, variance, *training, _, epsilon = n.args
    _only(not any(training))
    ones = torch.ones(shape_of(x)[1], dtype=dtype_of(x))
    gain = [w.constant(d) if v is None else w.tensor(v) for v, d in ((weight, ones), (bias, 0 * ones))]
    given = [*gain, w.tensor(mean), w.tensor(variance)]
    return w.op("BatchNormalization", w.tensor(x), *given, epsilon=epsilon), "", ""


def _softmax(kind: str, w: Writer, n: Any) -> str:
    return w.op(kind, w.tensor(n.args[0], dtype_of(n)), axis=n.args[1])


def _axes(n: Any, asked: Any) -> list[int]:
    """Dimensions of the first argument as whole numbers from 0; all of them where none is named."""
    rank = len(shape_of(n.args[0]))
    if asked is None or asked == []:
        return list(range(rank))
    return [axis % rank for axis in ([asked] if isinstance(asked, int) else asked)]


def _reshape(w: Writer, n: Any) -> str:
    """A single size that depends on the batch is left to be found."""
    sizes = list(n.args[1])
    if -1 not in sizes and sum(isinstance(size, Node) for size in sizes) == 1:
        sizes = [-1 if isinstance(size, Node) else size for size in sizes]
    return w.op("Reshape", w.tensor(n.args[0]), w.shape(sizes))


def _expand(w: Writer, n: Any) -> str:
    """Nothing is written where every use would repeat it anyway, and has another argument of its shape."""

    def repeats(user: Any) -> bool:
        others = [a for a in user.args if isinstance(a, Node) and a is not n]
        shapes = [shape_of(a) for a in others if a.target is not aten.expand.default]
        return user.op == "call_function" and user.target in BROADCASTING and shape_of(user) in shapes

    if all(map(repeats, n.users)):
        return w.tensor(n.args[0])
    return w.op("Expand", w.tensor(n.args[0]), w.shape([1 if size == -1 else size for size in n.args[1]]))


def _squeeze(w: Writer, n: Any) -> str:
    before, asked = shape_of(n.args[0]), n.args[1] if len(n.args) > 1 else None
    axes = [axis for axis in _axes(n, asked) if before[axis] == 1]
    return w.op("Squeeze", w.tensor(n.args[0]), w.integers(axes)) if axes else w.tensor(n.args[0])


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


def _index(w: Writer, n: Any) -> str:
    """By one index tensor of whole numbers, at any place."""
    given = [(axis, i) for axis, i in enumerate(n.args[1]) if i is not None]
    _only(len(given) == 1 and dtype_of(given[0][1]) != torch.bool)
    axis, index = given[0]
    return w.op("Gather", w.tensor(n.args[0]), w.tensor(index), axis=axis)


def _pad(w: Writer, n: Any) -> str:
    """torch counts the sides from the last dimension on, pair by pair; ONNX all starts, then all ends."""
    x, sides, value = arguments(n)
    whole = [*sides, *[0] * (2 * len(shape_of(n)) - len(sides))]
    pads = whole[-2::-2] + whole[::-2]
    return w.op("Pad", w.tensor(x), w.integers(pads), w.constant(value, dtype_of(n)))


def _reduced(kind: str, w: Writer, n: Any, through: torch.dtype | None = None) -> str:
    """Over some dimensions, or all; truths as numbers of the type `through`."""
    given = {a.name: value for a, value in zip(n.target._schema.arguments, arguments(n), strict=True)}
    axes, keep = w.integers(_axes(n, given.get("dim"))), int(given.get("keepdim", False))
    found = w.op(kind, w.tensor(n.args[0], through or dtype_of(n)), axes, keepdims=keep)
    return found if through is None else w.cast(found, torch.bool)


def _best(kind: str, w: Writer, n: Any) -> str:
    x, axis, keep = arguments(n)
    _only(axis is not None)
    return w.op(kind, w.tensor(x), axis=axis, keepdims=int(keep))


def _topk(w: Writer, n: Any) -> tuple[str, str]:
    x, count, axis, largest, ordered = arguments(n)
    given = w.tensor(x), w.integers([count])
    return w.op("TopK", *given, outputs=2, axis=axis, largest=int(largest), sorted=int(ordered))


def _repeat(w: Writer, n: Any) -> str:
    name, sizes = w.tensor(n.args[0]), n.args[1]
    if lead := len(sizes) - len(shape_of(n.args[0])):
        name = w.op("Unsqueeze", name, w.integers(range(lead)))
    return w.op("Tile", name, w.shape(sizes))


def _arange(w: Writer, n: Any) -> str:
    _only(not any(isinstance(a, Node) for a in n.args))
    return w.constant(n.target(*n.args, dtype=dtype_of(n)))


def _gather(kind: str, index: int, axis: int | None, w: Writer, n: Any) -> str:
    """Places in the first argument; index and dimension are the arguments of these numbers, or 0."""
    place = w.tensor(n.args[index], None if isinstance(n.args[index], Node) else torch.int64)
    along = 0 if axis is None else n.args[axis] % len(shape_of(n.args[0]))
    return w.op(kind, w.tensor(n.args[0]), place, axis=along)


OPERATORS: dict[str, Translation] = {
    **{name: _apply(name.capitalize()) for name in SAME_NAME.split()},
    **{f"{name}.Tensor {name}.Scalar": _apply(kind, _compared) for name, kind in COMPARISONS.items()},
    "add.Tensor add.Scalar": partial(_add, "Add"),
    "sub.Tensor sub.Scalar": partial(_add, "Sub"),
    "mul.Tensor mul.Scalar": lambda w, n: _apply("And" if dtype_of(n) == torch.bool else "Mul")(w, n),
    "div.Tensor div.Scalar": _apply("Div"),
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar": _power,
    "ne.Tensor ne.Scalar": lambda w, n: w.op("Not", _apply("Equal", _compared)(w, n)),
    "bitwise_and.Tensor logical_and": partial(_logical, "And"),
    "bitwise_or.Tensor logical_or": partial(_logical, "Or"),
    "bitwise_not logical_not": partial(_logical, "Not"),
    "clamp clamp.Tensor": _clamp,
    "maximum clamp_min": _apply("Max"),
    "minimum clamp_max": _apply("Min"),
    "where.self": lambda w, n: w.op(
        "Where", w.tensor(n.args[0]), *(w.tensor(a, dtype_of(n)) for a in n.args[1:])
    ),
    "sgn": _apply("Sign"),
    "hardswish": _apply("HardSwish"),
    "isnan": _plain("IsNaN"),
    "nan_to_num": lambda w, n: w.op(  # infinities stay: none are made of numbers
        "Where", _plain("IsNaN")(w, n), w.tensor(arguments(n)[1] or 0.0, dtype_of(n)), w.tensor(n.args[0])
    ),
    "rsqrt": lambda w, n: w.op("Reciprocal", _plain("Sqrt")(w, n)),
    "gelu": lambda w, n: w.op("Gelu", w.tensor(n.args[0]), approximate=arguments(n)[1]),
    "silu": lambda w, n: w.op("Mul", w.tensor(n.args[0]), _plain("Sigmoid")(w, n)),
    "elu": _elu,
    "softplus": _softplus,
    "log1p": partial(_beside_one, "Log"),
    "expm1": partial(_beside_one, "Exp"),
    "mm bmm matmul": _plain("MatMul", 0, 1),
    "mv": _product_with_vector,
    "addmm": _addmm,
    "convolution": _convolution,
    "max_pool2d_with_indices max_pool3d_with_indices": _max_pool,
    "avg_pool1d avg_pool2d avg_pool3d": _average_pool,
    "scatter_add": lambda w, n: w.op(
        "ScatterElements", *(w.tensor(n.args[i]) for i in (0, 2, 3)), axis=n.args[1], reduction="add"
    ),
    "native_batch_norm _native_batch_norm_legit_no_training": _batch_norm,
    "_softmax": partial(_softmax, "Softmax"),
    "_log_softmax": partial(_softmax, "LogSoftmax"),
    "_to_copy": lambda w, n: w.tensor(n.args[0], dtype_of(n)),
    "reshape view": _reshape,
    "squeeze.dim squeeze.dims squeeze": _squeeze,
    "sum.dim_IntList sum": partial(_reduced, "ReduceSum"),
    "arange arange.start_step": _arange,
    "expand": _expand,
    "unsqueeze": lambda w, n: w.op(
        "Unsqueeze", w.tensor(n.args[0]), w.integers([n.args[1] % len(shape_of(n))])
    ),
    "permute": lambda w, n: w.op("Transpose", w.tensor(n.args[0]), perm=_axes(n, n.args[1])),
    "cat": _cat,
    "slice.Tensor": _slice,
    "flip": _flip,
    "unbind.int": _unbind,
    "split_with_sizes": _split,
    "select.int index_select": partial(_gather, "Gather", 2, 1),
    "index.Tensor": _index,
    "gather": partial(_gather, "GatherElements", 2, 1),
    "embedding": partial(_gather, "Gather", 1, None),
    "constant_pad_nd": _pad,
    "full": lambda w, n: w.op("Expand", w.constant(n.args[1], dtype_of(n)), w.shape(n.args[0])),
    "scalar_tensor": lambda w, n: w.constant(n.args[0], dtype_of(n)),
    "mean.dim": partial(_reduced, "ReduceMean"),
    "amax": partial(_reduced, "ReduceMax"),
    "amin": partial(_reduced, "ReduceMin"),
    "all.dim": partial(_reduced, "ReduceMin", through=torch.int32),
    "any.dim": partial(_reduced, "ReduceMax", through=torch.int32),
    "argmin": partial(_best, "ArgMin"),
    "argmax": partial(_best, "ArgMax"),
    "topk": _topk,
    "cumsum": lambda w, n: w.op(
        "CumSum", w.tensor(n.args[0], dtype_of(n)), w.constant(n.args[1], torch.int64)
    ),
    "repeat": _repeat,
    "sym_size.int": lambda w, n: w.op("Shape", w.tensor(n.args[0]), start=n.args[1], end=n.args[1] + 1),
}
