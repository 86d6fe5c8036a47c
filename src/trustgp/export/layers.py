"""Products, convolutions, pools and normalisations, in ONNX."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from .elementwise import Translation
from .writing import Writer, dtype_of, shape_of

aten = torch.ops.aten


def _product(w: Writer, n: Any) -> str:
    return w.op("MatMul", w.tensor(n.args[0]), w.tensor(n.args[1]))


def _product_with_vector(w: Writer, n: Any) -> str:
    """A v; of a transposed matrix v A, so that it need not be turned."""
    matrix, vector = n.args
    if isinstance(matrix, Node) and matrix.target in (aten.t.default, aten.permute.default):
        return w.op("MatMul", w.tensor(vector), w.tensor(matrix.args[0]))
    return w.op("MatMul", w.tensor(matrix), w.tensor(vector))


def _addmm(w: Writer, n: Any) -> str:
    if n.kwargs.get("alpha", 1) != 1 or n.kwargs.get("beta", 1) != 1:
        raise NotImplementedError
    return w.op("Gemm", w.tensor(n.args[1]), w.tensor(n.args[2]), w.tensor(n.args[0]))


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


def _window(n: Any, dims: int) -> tuple[list[int], list[int], list[int]]:
    """Kernel, stride and padding of a pool."""
    kernel = _each(n.args[1], dims)
    stride = _each(n.args[2], dims) if len(n.args) > 2 and n.args[2] else kernel
    padding = _each(n.args[3], dims) if len(n.args) > 3 else [0] * dims
    return kernel, stride, padding


def _max_pool(w: Writer, n: Any) -> tuple[str, str]:
    """Values, and each one's place in its plane: ONNX counts through all planes."""
    dims = len(shape_of(n.args[0])) - 2
    kernel, stride, padding = _window(n, dims)
    dilation = _each(n.args[4], dims) if len(n.args) > 4 else [1] * dims
    ceil = int(bool(n.args[5])) if len(n.args) > 5 else 0
    used = {user.args[1] for user in n.users}
    attributes = {"strides": stride, "pads": padding * 2, "dilations": dilation, "ceil_mode": ceil}
    x, places = w.tensor(n.args[0]), ""
    if 1 in used:
        values, places = w.op("MaxPool", x, outputs=2, kernel_shape=kernel, **attributes)
        places = w.op("Mod", places, w.constant(math.prod(shape_of(n.args[0])[2:]), torch.int64))
    else:
        values = w.op("MaxPool", x, kernel_shape=kernel, **attributes)
    # onnxruntime passes a NaN over, and what has overflowed would look sound: the plane is then no number
    unknown = w.cast(w.op("IsNaN", x), torch.int32)
    lost = w.cast(w.op("ReduceMax", unknown, w.integers(range(2, 2 + dims)), keepdims=1), torch.bool)
    return w.op("Where", lost, w.constant(math.nan, dtype_of(n.args[0])), values), places


def _average_pool(w: Writer, n: Any) -> str:
    dims = len(shape_of(n.args[0])) - 2
    kernel, stride, padding = _window(n, dims)
    ceil = int(bool(n.args[4])) if len(n.args) > 4 else 0
    count = int(bool(n.args[5])) if len(n.args) > 5 else 1
    if len(n.args) > 6 and n.args[6] is not None:
        raise NotImplementedError
    return w.op(
        "AveragePool",
        w.tensor(n.args[0]),
        kernel_shape=kernel,
        strides=stride,
        pads=padding * 2,
        ceil_mode=ceil,
        count_include_pad=count,
    )


def _scatter_add(w: Writer, n: Any) -> str:
    given = [w.tensor(n.args[i]) for i in (0, 2, 3)]
    return w.op("ScatterElements", *given, axis=n.args[1], reduction="add")


def _standardised(
    w: Writer, x: str, axes: list[int], epsilon: float, dtype: torch.dtype
) -> tuple[str, str, str]:
    """(x - mean) / sqrt(variance + epsilon), the mean, and one over that root."""
    where = w.integers(axes)
    mean = w.op("ReduceMean", x, where, keepdims=1)
    apart = w.op("Sub", x, mean)
    variance = w.op("ReduceMean", w.op("Mul", apart, apart), where, keepdims=1)
    variance = w.op("Add", variance, w.constant(epsilon, dtype))
    # of an infinite variance this is no number, as it should be; 1 / root would be a harmless 0
    inverse = w.op("Div", w.op("Sqrt", variance), variance)
    return w.op("Mul", apart, inverse), mean, inverse


def _with_gain(w: Writer, name: str, weight: str | None, bias: str | None) -> str:
    if weight is not None:
        name = w.op("Mul", name, weight)
    return name if bias is None else w.op("Add", name, bias)


def _layer_norm(w: Writer, n: Any) -> tuple[str, str, str]:
    x, shape, weight, bias, epsilon = n.args
    axes = list(range(len(shape_of(x)) - len(shape), len(shape_of(x))))
    gain, offset = (None if v is None else w.tensor(v) for v in (weight, bias))
    found, mean, inverse = _standardised(w, w.tensor(x), axes, epsilon, dtype_of(x))
    return _with_gain(w, found, gain, offset), mean, inverse


def _group_norm(w: Writer, n: Any) -> tuple[str, str, str]:
    x, weight, bias, _, channels, _, groups, epsilon = n.args
    sizes = shape_of(x)
    lots = w.op("Reshape", w.tensor(x), w.integers([0, groups, -1]))
    found, mean, inverse = _standardised(w, lots, [2], epsilon, dtype_of(x))
    found = w.op("Reshape", found, w.integers([-1, *sizes[1:]]))
    wide = [channels, *[1] * (len(sizes) - 2)]
    gain, offset = (
        None if v is None else w.op("Reshape", w.tensor(v), w.integers(wide)) for v in (weight, bias)
    )
    mean, inverse = (w.op("Squeeze", v, w.integers([2])) for v in (mean, inverse))
    return _with_gain(w, found, gain, offset), mean, inverse


def _batch_norm(w: Writer, n: Any) -> tuple[str, str, str]:
    """With the statistics that it holds."""
    x, weight, bias, mean, variance = n.args[:5]
    training = n.args[5] if n.target is aten.native_batch_norm.default else False
    epsilon = n.args[7] if n.target is aten.native_batch_norm.default else n.args[6]
    if training:
        raise NotImplementedError
    channels, dtype = shape_of(x)[1], dtype_of(x)
    ones, zeros = torch.ones(channels, dtype=dtype), torch.zeros(channels, dtype=dtype)
    given = [w.constant(d) if v is None else w.tensor(v) for v, d in ((weight, ones), (bias, zeros))]
    given += [w.tensor(mean), w.tensor(variance)]
    return w.op("BatchNormalization", w.tensor(x), *given, epsilon=epsilon), "", ""


def _softmax(kind: str) -> Translation:
    return lambda w, n: w.op(kind, w.tensor(n.args[0], dtype_of(n)), axis=n.args[1])


LAYERS: dict[Any, Translation] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.matmul.default: _product,
    aten.mv.default: _product_with_vector,
    aten.addmm.default: _addmm,
    aten.convolution.default: _convolution,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.max_pool3d_with_indices.default: _max_pool,
    aten.avg_pool1d.default: _average_pool,
    aten.avg_pool2d.default: _average_pool,
    aten.avg_pool3d.default: _average_pool,
    aten.scatter_add.default: _scatter_add,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten._softmax.default: _softmax("Softmax"),
    aten._log_softmax.default: _softmax("LogSoftmax"),
}
