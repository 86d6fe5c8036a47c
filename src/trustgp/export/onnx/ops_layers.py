"""Products, convolutions, pools and normalisations, in ONNX."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from .writer import Translation, Writer, arguments, dtype_of, shape_of

aten = torch.ops.aten


def _product(w: Writer, n: Any) -> str:
    return w.op("MatMul", w.tensor(n.args[0]), w.tensor(n.args[1]))


def _product_with_vector(w: Writer, n: Any) -> str:
    """A v; of a transposed matrix v A, so that it need not be turned."""
    matrix, vector = n.args
    if isinstance(matrix, Node) and matrix.target is aten.permute.default:
        return w.op("MatMul", w.tensor(vector), w.tensor(matrix.args[0]))
    return w.op("MatMul", w.tensor(matrix), w.tensor(vector))


def _addmm(w: Writer, n: Any) -> str:
    added, one, other, beta, alpha = arguments(n)
    return w.op("Gemm", *map(w.tensor, (one, other, added)), alpha=float(alpha), beta=float(beta))


def _convolution(w: Writer, n: Any) -> str:
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = n.args
    dims = len(shape_of(weight)) - 2
    attributes: dict[str, Any] = {
        "strides": _each(stride, dims),
        "pads": _each(padding, dims) * 2,
        "dilations": _each(dilation, dims),
        "group": groups,
    }
    if transposed:
        attributes["output_padding"] = _each(extra, dims)
    given = [w.tensor(x), w.tensor(weight), *([] if bias is None else [w.tensor(bias)])]
    return w.op("ConvTranspose" if transposed else "Conv", *given, **attributes)


def _each(value: Any, dims: int) -> list[int]:
    return list(value) if len(value) == dims else list(value) * dims


def _window(n: Any, kernel: Any, stride: Any, padding: Any, ceil: bool) -> dict[str, Any]:
    """The attributes of a pool."""
    dims = len(shape_of(n.args[0])) - 2
    return {
        "kernel_shape": _each(kernel, dims),
        "strides": _each(stride or kernel, dims),
        "pads": _each(padding, dims) * 2,
        "ceil_mode": int(ceil),
    }


def _max_pool(w: Writer, n: Any) -> tuple[str, str]:
    """Values, and each one's place in its plane: ONNX counts through all planes."""
    given, kernel, stride, padding, dilation, ceil = arguments(n)
    x, places, sides = w.tensor(given), "", shape_of(given)[2:]
    attributes = _window(n, kernel, stride, padding, ceil)
    attributes["dilations"] = _each(dilation, len(sides))
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


def _scatter_add(w: Writer, n: Any) -> str:
    given = [w.tensor(n.args[i]) for i in (0, 2, 3)]
    return w.op("ScatterElements", *given, axis=n.args[1], reduction="add")


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


def _softmax(kind: str) -> Translation:
    return lambda w, n: w.op(kind, w.tensor(n.args[0], dtype_of(n)), axis=n.args[1])


LAYERS: dict[Any, Translation] = {
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.matmul.default), _product),
    aten.mv.default: _product_with_vector,
    aten.addmm.default: _addmm,
    aten.convolution.default: _convolution,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.max_pool3d_with_indices.default: _max_pool,
    aten.avg_pool1d.default: _average_pool,
    aten.avg_pool2d.default: _average_pool,
    aten.avg_pool3d.default: _average_pool,
    aten.scatter_add.default: _scatter_add,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten._softmax.default: _softmax("Softmax"),
    aten._log_softmax.default: _softmax("LogSoftmax"),
}
