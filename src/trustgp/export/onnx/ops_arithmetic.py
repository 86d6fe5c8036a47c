"""Arithmetic in ONNX: on each number for itself, products, convolutions, pools and normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from ...tangents.jacobian.layer_gradients import each_side
from .writer import Translation, Writer, arguments, dtype_of, shape_of

# of operations that have the same name in ONNX, but for its capital
SAME_NAME = "neg abs exp log sqrt reciprocal sin cos tanh sigmoid erf relu floor ceil sign mish"
COMPARISONS = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}


def _apply(kind: str, dtype: Callable[[Any], torch.dtype] = dtype_of) -> Translation:
    """An operation of the same arguments, all converted to one type: that of the result, unless told."""
    return lambda w, n: w.op(kind, *(w.tensor(a, dtype(n)) for a in n.args))


def _compared(n: Any) -> torch.dtype:
    """The type in which torch compares nodes and numbers."""
    one, other = (a.meta["val"] if isinstance(a, Node) else a for a in n.args)
    return torch.result_type(one, other)


def _scaled(w: Writer, n: Any, name: str, factor: float) -> str:
    return name if factor == 1 else w.op("Mul", name, w.constant(factor, dtype_of(n)))


def _add(kind: str, w: Writer, n: Any) -> str:
    """A sum or difference; torch multiplies what is added by alpha."""
    one, other, alpha = arguments(n)
    return w.op(kind, w.tensor(one, dtype_of(n)), _scaled(w, n, w.tensor(other, dtype_of(n)), alpha))


def _logical(kind: str, w: Writer, n: Any) -> str:
    if dtype_of(n) != torch.bool:
        raise NotImplementedError
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
    if low is not None:
        found = w.op("Max", found, w.tensor(low, dtype_of(n)))
    return found if high is None else w.op("Min", found, w.tensor(high, dtype_of(n)))


def _elu(w: Writer, n: Any) -> str:
    x, alpha, scale, inner = arguments(n)
    if inner != 1:
        raise NotImplementedError
    return _scaled(w, n, w.op("Elu", w.tensor(x), alpha=float(alpha)), scale)  # SELU has one


def _softplus(w: Writer, n: Any) -> str:
    x, beta, _ = arguments(n)
    if beta != 1:
        raise NotImplementedError
    return w.op("Softplus", w.tensor(x))


def _product_with_vector(w: Writer, n: Any) -> str:
    """A v; of a transposed matrix v A, so that it need not be turned."""
    matrix, vector = n.args
    if isinstance(matrix, Node) and matrix.target is torch.ops.aten.permute.default:
        return w.op("MatMul", w.tensor(vector), w.tensor(matrix.args[0]))
    return w.op("MatMul", w.tensor(matrix), w.tensor(vector))


def _addmm(w: Writer, n: Any) -> str:
    added, one, other, beta, alpha = arguments(n)
    return w.op("Gemm", *map(w.tensor, (one, other, added)), alpha=float(alpha), beta=float(beta))


def _convolution(w: Writer, n: Any) -> str:
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = n.args
    dims = len(shape_of(weight)) - 2
    attributes: dict[str, Any] = {
        "strides": each_side(stride, dims),
        "pads": each_side(padding, dims) * 2,
        "dilations": each_side(dilation, dims),
        "group": groups,
    }
    if transposed:
        attributes["output_padding"] = each_side(extra, dims)
    given = [w.tensor(x), w.tensor(weight), *([] if bias is None else [w.tensor(bias)])]
    return w.op("ConvTranspose" if transposed else "Conv", *given, **attributes)


def _window(n: Any, kernel: Any, stride: Any, padding: Any, ceil: bool) -> dict[str, Any]:
    """The attributes of a pool."""
    dims = len(shape_of(n.args[0])) - 2
    return {
        "kernel_shape": each_side(kernel, dims),
        "strides": each_side(stride or kernel, dims),
        "pads": each_side(padding, dims) * 2,
        "ceil_mode": int(ceil),
    }


def _max_pool(w: Writer, n: Any) -> tuple[str, str]:
    """Values, and each one's place in its plane: ONNX counts through all planes."""
    given, kernel, stride, padding, dilation, ceil = arguments(n)
    x, places, sides = w.tensor(given), "", shape_of(given)[2:]
    attributes = _window(n, kernel, stride, padding, ceil)
    attributes["dilations"] = each_side(dilation, len(sides))
    if any(user.args[1] == 1 for user in n.users):
        values, places = w.op("MaxPool", x, outputs=2, **attributes)
        places = w.op("Mod", places, w.constant(math.prod(sides), torch.int64))
    else:
        values = w.op("MaxPool", x, **attributes)
    # onnxruntime passes a NaN over, and what has overflowed would look sound: the plane is then no number
    unknown = w.cast(w.op("IsNaN", x), torch.int32)
    planes = w.integers(range(2, 2 + len(sides)))
    lost = w.cast(w.op("ReduceMax", unknown, planes, keepdims=1), torch.bool)
    return w.op("Where", lost, w.constant(math.nan, dtype_of(given)), values), places


def _average_pool(w: Writer, n: Any) -> str:
    x, kernel, stride, padding, ceil, count, *divisor = arguments(n)
    if any(divisor):
        raise NotImplementedError
    return w.op(
        "AveragePool", w.tensor(x), **_window(n, kernel, stride, padding, ceil), count_include_pad=int(count)
    )


def _batch_norm(w: Writer, n: Any) -> tuple[str, str, str]:
    """With the statistics that it holds."""
    x, weight, bias, mean, variance, *training, _, epsilon = n.args
    if any(training):
        raise NotImplementedError
    channels, dtype = shape_of(x)[1], dtype_of(x)
    ones, zeros = torch.ones(channels, dtype=dtype), torch.zeros(channels, dtype=dtype)
    given = [w.constant(d) if v is None else w.tensor(v) for v, d in ((weight, ones), (bias, zeros))]
    given += [w.tensor(mean), w.tensor(variance)]
    return w.op("BatchNormalization", w.tensor(x), *given, epsilon=epsilon), "", ""


def _softmax(kind: str, w: Writer, n: Any) -> str:
    return w.op(kind, w.tensor(n.args[0], dtype_of(n)), axis=n.args[1])


ARITHMETIC: dict[str, Translation] = {
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
    "isnan": lambda w, n: w.op("IsNaN", w.tensor(n.args[0])),
    "rsqrt": lambda w, n: w.op("Reciprocal", w.op("Sqrt", w.tensor(n.args[0]))),
    "gelu": lambda w, n: w.op("Gelu", w.tensor(n.args[0]), approximate=arguments(n)[1]),
    "silu": lambda w, n: w.op("Mul", w.tensor(n.args[0]), w.op("Sigmoid", w.tensor(n.args[0]))),
    "elu": _elu,
    "softplus": _softplus,
    "mm bmm matmul": lambda w, n: w.op("MatMul", w.tensor(n.args[0]), w.tensor(n.args[1])),
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
}
