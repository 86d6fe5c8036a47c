"""Operations of aten in ONNX: elementwise ones, products, pools, and with `moves` all others."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from ...tangents.jacobian.layer_gradients import each_side
from .moves import MOVES
from .writer import Translation, Writer, dtype_of, require_supported, shape_of

aten = torch.ops.aten
# the same name in ONNX, capitalised
SAME_NAME = "neg abs exp log sqrt reciprocal sin cos atan tanh sigmoid erf relu floor ceil sign mish"
COMPARISONS = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}


def _apply(kind: str, dtype: Callable[[Any], torch.dtype] = dtype_of) -> Translation:
    """Translation to an operation of the same arguments, cast to one type, by default that of the result."""
    return lambda w, n, *_: w.op(kind, *(w.tensor(a, dtype(n)) for a in n.args))


def _compared(n: Any) -> torch.dtype:
    """The type in which torch compares nodes and numbers."""
    return torch.result_type(*(a.meta["val"] if isinstance(a, Node) else a for a in n.args))


def _scaled(w: Writer, n: Any, name: str, factor: float) -> str:
    return name if factor == 1 else w.op("Mul", name, w.constant(factor, dtype_of(n)))


def _add(kind: str, w: Writer, n: Any, first: Any, other: Any, alpha: float) -> str:
    """A sum or difference; torch multiplies the second argument by alpha."""
    return w.op(kind, w.tensor(first, dtype_of(n)), _scaled(w, n, w.tensor(other, dtype_of(n)), alpha))


def _logical(kind: str, w: Writer, n: Any, *_: Any) -> str:
    require_supported(dtype_of(n) == torch.bool)
    return _apply(kind)(w, n)


def _power(w: Writer, n: Any, base: Any, exponent: Any) -> str:
    x = w.tensor(base, dtype_of(n))
    if exponent == 0.5:
        return w.op("Sqrt", x)
    if exponent in (2, 3):
        square = w.op("Mul", x, x)
        return square if exponent == 2 else w.op("Mul", square, x)
    return _apply("Pow")(w, n)


def _clamp(w: Writer, n: Any, x: Any, low: Any, high: Any) -> str:
    """Clamp by Max and Min, which propagate NaN and accept a limit of any shape."""
    result = w.tensor(x, dtype_of(n))
    for kind, limit in (("Max", low), ("Min", high)):
        result = result if limit is None else w.op(kind, result, w.tensor(limit, dtype_of(n)))
    return result


def _elu(w: Writer, n: Any, x: Any, alpha: float, scale: float, inner: float) -> str:
    require_supported(inner == 1)
    return _scaled(w, n, w.op("Elu", w.tensor(x), alpha=float(alpha)), scale)  # SELU has a scale


def _log1p_expm1(kind: str, w: Writer, n: Any, given: Any) -> str:
    """log(1 + x) or exp(x) - 1, in double precision: both cancel for a small x."""
    x, one = w.tensor(given, torch.float64), w.constant(1.0, torch.float64)
    result = w.op("Log", w.op("Add", x, one)) if kind == "Log" else w.op("Sub", w.op("Exp", x), one)
    return w.cast(result, dtype_of(n))


def _product(w: Writer, n: Any, *both: Any) -> str:
    """Product A B; in float64 by Einsum if one is transposed: onnxruntime 1.23 fuses and cannot run these."""
    if dtype_of(n) == torch.float64 and any(_is_transposed(factor) for factor in both):
        b = "abcdefgh"[: len(shape_of(n)) - 2]
        return w.op("Einsum", *map(w.tensor, both), equation=f"{b}ij,{b}jk->{b}ik")
    return w.op("MatMul", *map(w.tensor, both))


def _is_transposed(node: Any) -> bool:
    if isinstance(node, Node) and node.target is aten._to_copy.default:
        return _is_transposed(node.args[0])
    return isinstance(node, Node) and node.target is aten.permute.default


def _product_with_vector(w: Writer, n: Any, matrix: Any, vector: Any) -> str:
    """Product A v; v B for a transposed matrix A = B^T, which saves the transposition."""
    if isinstance(matrix, Node) and matrix.target is aten.permute.default:
        return w.op("MatMul", w.tensor(vector), w.tensor(matrix.args[0]))
    return w.op("MatMul", w.tensor(matrix), w.tensor(vector))


def _window(n: Any, stride: Any, padding: Any, **sides: Any) -> dict[str, Any]:
    """Strides and pads of a pool or convolution along each side, and other numbers of each side."""
    dims = len(shape_of(n.args[0])) - 2
    sides = {name: each_side(value, dims) for name, value in {**sides, "strides": stride}.items()}
    return {**sides, "pads": each_side(padding, dims) * 2}


def _convolution(w: Writer, n: Any, *_: Any) -> str:
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = n.args
    sides = {"dilations": dilation, **({"output_padding": extra} if transposed else {})}
    tensors = [w.tensor(a) for a in (x, weight, bias) if a is not None]
    kind = "ConvTranspose" if transposed else "Conv"
    return w.op(kind, *tensors, **_window(n, stride, padding, **sides), group=groups)


def _max_pool(w: Writer, n: Any, inputs: Any, kernel, stride, padding, dilation, ceil) -> tuple[str, str]:
    """Max pool: values, and their indices in their plane, as ONNX counts through all planes."""
    x, indices, sides = w.tensor(inputs), "", shape_of(inputs)[2:]
    window = _window(n, stride or kernel, padding, kernel_shape=kernel, dilations=dilation)
    if any(user.args[1] == 1 for user in n.users):
        values, indices = w.op("MaxPool", x, outputs=2, **window, ceil_mode=int(ceil))
        indices = w.op("Mod", indices, w.constant(math.prod(sides), torch.int64))
    else:
        values = w.op("MaxPool", x, **window, ceil_mode=int(ceil))
    # onnxruntime skips NaN, so that an overflow would look valid: the whole plane becomes NaN
    unknown = w.cast(w.op("IsNaN", x), torch.int32)
    lost = w.cast(w.op("ReduceMax", unknown, w.integers(range(2, 2 + len(sides))), keepdims=1), torch.bool)
    return w.op("Where", lost, w.constant(math.nan, dtype_of(inputs)), values), indices


def _average_pool(w: Writer, n: Any, x: Any, kernel, stride, padding, ceil, count, *divisor) -> str:
    require_supported(not any(divisor))
    window = _window(n, stride or kernel, padding, kernel_shape=kernel)
    return w.op("AveragePool", w.tensor(x), **window, ceil_mode=int(ceil), count_include_pad=int(count))


def _batch_norm(w: Writer, n: Any, x: Any, weight, bias, mean, variance, *others) -> tuple[str, str, str]:
    """Batch normalisation with its stored statistics."""
    *training, _, epsilon = others
    require_supported(not any(training))
    ones = torch.ones(shape_of(x)[1], dtype=dtype_of(x))
    gain = [w.constant(d) if v is None else w.tensor(v) for v, d in ((weight, ones), (bias, 0 * ones))]
    given = [*gain, w.tensor(mean), w.tensor(variance)]
    return w.op("BatchNormalization", w.tensor(x), *given, epsilon=epsilon), "", ""


def _grid_sample(w: Writer, n: Any, x: Any, grid: Any, mode: int, padding: int, aligned: bool) -> str:
    modes, edges = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    how = {"mode": modes[mode], "padding_mode": edges[padding], "align_corners": int(aligned)}
    return w.op("GridSample", w.tensor(x), w.tensor(grid), **how)


OPERATORS: dict[str, Translation] = {
    **{name: _apply(name.capitalize()) for name in SAME_NAME.split()},
    **{f"{name}.Tensor {name}.Scalar": _apply(kind, _compared) for name, kind in COMPARISONS.items()},
    "add.Tensor add.Scalar": partial(_add, "Add"),
    "sub.Tensor sub.Scalar": partial(_add, "Sub"),
    "mul.Tensor mul.Scalar": lambda w, n, *_: _apply("And" if dtype_of(n) == torch.bool else "Mul")(w, n),
    "div.Tensor div.Scalar": _apply("Div"),
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar": _power,
    "ne.Tensor ne.Scalar": lambda w, n, *_: w.op("Not", _apply("Equal", _compared)(w, n)),
    "bitwise_and.Tensor logical_and": partial(_logical, "And"),
    "bitwise_or.Tensor logical_or": partial(_logical, "Or"),
    "bitwise_not logical_not": partial(_logical, "Not"),
    "clamp clamp.Tensor": _clamp,
    "maximum clamp_min": _apply("Max"),
    "minimum clamp_max": _apply("Min"),
    "where.self": lambda w, n, c, *xs: w.op("Where", w.tensor(c), *(w.tensor(x, dtype_of(n)) for x in xs)),
    "sgn": _apply("Sign"),
    "hardswish": _apply("HardSwish"),
    "isnan": lambda w, n, x: w.op("IsNaN", w.tensor(x)),
    "nan_to_num": lambda w, n, x, value, *_: w.op(  # infinities stay: none are made of numbers
        "Where", w.op("IsNaN", w.tensor(x)), w.tensor(value or 0.0, dtype_of(n)), w.tensor(x)
    ),
    "rsqrt": lambda w, n, x: w.op("Reciprocal", w.op("Sqrt", w.tensor(x))),
    "gelu": lambda w, n, x, how: w.op("Gelu", w.tensor(x), approximate=how),
    "silu": lambda w, n, x: w.op("Mul", w.tensor(x), w.op("Sigmoid", w.tensor(x))),
    "elu": _elu,
    "softplus": lambda w, n, x, b, _: _scaled(w, n, w.op("Softplus", _scaled(w, n, w.tensor(x), b)), 1 / b),
    "log1p": partial(_log1p_expm1, "Log"),
    "expm1": partial(_log1p_expm1, "Exp"),
    "mm bmm matmul": _product,
    "mv": _product_with_vector,
    "addmm": lambda w, n, added, left, right, beta, alpha: w.op(
        "Gemm", *map(w.tensor, (left, right, added)), alpha=float(alpha), beta=float(beta)
    ),
    "convolution": _convolution,
    "max_pool2d_with_indices max_pool3d_with_indices": _max_pool,
    "avg_pool1d avg_pool2d avg_pool3d": _average_pool,
    "scatter.src": lambda w, n, x, axis, *given: w.op(
        "ScatterElements", *map(w.tensor, (x, *given)), axis=axis
    ),
    "scatter_add": lambda w, n, x, axis, *given: w.op(
        "ScatterElements", *map(w.tensor, (x, *given)), axis=axis, reduction="add"
    ),
    "native_batch_norm _native_batch_norm_legit_no_training": _batch_norm,
    "_softmax": lambda w, n, x, axis, _: w.op("Softmax", w.tensor(x, dtype_of(n)), axis=axis),
    "_log_softmax": lambda w, n, x, axis, _: w.op("LogSoftmax", w.tensor(x, dtype_of(n)), axis=axis),
    "grid_sampler_2d": _grid_sample,
    **MOVES,
}
