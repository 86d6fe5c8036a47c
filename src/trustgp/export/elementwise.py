"""Operations on each number for itself, in ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from .writing import Writer, common, dtype_of

aten = torch.ops.aten
Translation = Callable[[Writer, Any], Any]


def _simple(kind: str) -> Translation:
    return lambda w, n: w.op(kind, w.tensor(n.args[0], dtype_of(n)))


def _binary(kind: str) -> Translation:
    def translate(w: Writer, n: Any) -> str:
        kinds, (a, b) = dtype_of(n), n.args[:2]
        second = w.tensor(b, kinds)
        if n.kwargs.get("alpha", 1) != 1:
            second = w.op("Mul", second, w.constant(n.kwargs["alpha"], kinds))
        if n.kwargs.get("rounding_mode"):
            raise NotImplementedError
        return w.op(kind, w.tensor(a, kinds), second)

    return translate


def _compare(kind: str, *, negated: bool = False) -> Translation:
    def translate(w: Writer, n: Any) -> str:
        kinds = common(*n.args[:2])
        found = w.op(kind, w.tensor(n.args[0], kinds), w.tensor(n.args[1], kinds))
        return w.op("Not", found) if negated else found

    return translate


def _logical(kind: str) -> Translation:
    def translate(w: Writer, n: Any) -> str:
        if dtype_of(n) != torch.bool:
            raise NotImplementedError
        return w.op(kind, *(w.tensor(a, torch.bool) for a in n.args))

    return translate


def _multiply(w: Writer, n: Any) -> str:
    if dtype_of(n) == torch.bool:
        return w.op("And", *(w.tensor(a, torch.bool) for a in n.args))
    return _binary("Mul")(w, n)


def _reversed(w: Writer, n: Any) -> str:
    kinds = dtype_of(n)
    return w.op("Sub", w.tensor(n.args[1], kinds), w.tensor(n.args[0], kinds))


def _power(w: Writer, n: Any) -> str:
    base, exponent, kinds = n.args[0], n.args[1], dtype_of(n)
    if not isinstance(exponent, Node) and exponent in (0.5, 1, 2, 3):
        x = w.tensor(base, kinds)
        if exponent == 0.5:
            return w.op("Sqrt", x)
        found = x
        for _ in range(int(exponent) - 1):
            found = w.op("Mul", found, x)
        return found
    return w.op("Pow", w.tensor(base, kinds), w.tensor(exponent, kinds))


def _where(w: Writer, n: Any) -> str:
    kinds = dtype_of(n)
    return w.op("Where", w.tensor(n.args[0]), w.tensor(n.args[1], kinds), w.tensor(n.args[2], kinds))


def _fill(w: Writer, n: Any) -> str:
    kinds = dtype_of(n)
    return w.op("Where", w.tensor(n.args[1]), w.tensor(n.args[2], kinds), w.tensor(n.args[0], kinds))


def _clamp(w: Writer, n: Any) -> str:
    """By Max and Min, which hand a NaN on and take a limit of any shape."""
    low = n.args[1] if len(n.args) > 1 else n.kwargs.get("min")
    high = n.args[2] if len(n.args) > 2 else n.kwargs.get("max")
    return _limited(w, n, low, high)


def _limited(w: Writer, n: Any, low: Any, high: Any) -> str:
    kinds = dtype_of(n)
    found = w.tensor(n.args[0], kinds)
    if low is not None:
        found = w.op("Max", found, w.tensor(low, kinds))
    return found if high is None else w.op("Min", found, w.tensor(high, kinds))


def _scaled(w: Writer, n: Any, name: str, factor: float) -> str:
    return w.op("Mul", name, w.constant(factor, dtype_of(n)))


def _gelu(w: Writer, n: Any) -> str:
    return w.op("Gelu", w.tensor(n.args[0]), approximate=n.kwargs.get("approximate", "none"))


def _silu(w: Writer, n: Any) -> str:
    x = w.tensor(n.args[0])
    return w.op("Mul", x, w.op("Sigmoid", x))


def _leaky(w: Writer, n: Any) -> str:
    x, slope = w.tensor(n.args[0]), n.args[1] if len(n.args) > 1 else 0.01
    return w.op("LeakyRelu", x, alpha=float(slope))


def _elu(w: Writer, n: Any) -> str:
    if len(n.args) > 2:  # SELU has a scale: alpha, scale, input_scale
        alpha, scale = float(n.args[1]), float(n.args[2])
        return _scaled(w, n, w.op("Elu", w.tensor(n.args[0]), alpha=alpha), scale)
    return w.op("Elu", w.tensor(n.args[0]), alpha=float(n.args[1]) if len(n.args) > 1 else 1.0)


def _softplus(w: Writer, n: Any) -> str:
    if len(n.args) > 1:
        raise NotImplementedError
    return w.op("Softplus", w.tensor(n.args[0]))


def _rsqrt(w: Writer, n: Any) -> str:
    return w.op("Reciprocal", w.op("Sqrt", w.tensor(n.args[0])))


def _to_copy(w: Writer, n: Any) -> str:
    return w.tensor(n.args[0], dtype_of(n))


def _convert(w: Writer, n: Any) -> str:
    return w.tensor(n.args[0], n.args[1])


ELEMENTWISE: dict[Any, Translation] = {
    aten.add.Tensor: _binary("Add"),
    aten.add.Scalar: _binary("Add"),
    aten.sub.Tensor: _binary("Sub"),
    aten.sub.Scalar: _binary("Sub"),
    aten.mul.Tensor: _multiply,
    aten.mul.Scalar: _multiply,
    aten.div.Tensor: _binary("Div"),
    aten.div.Scalar: _binary("Div"),
    aten.maximum.default: _binary("Max"),
    aten.minimum.default: _binary("Min"),
    aten.rsub.Scalar: _reversed,
    aten.rsub.Tensor: _reversed,
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: _power,
    aten.pow.Scalar: _power,
    **{
        getattr(getattr(aten, name), kind): _compare(target, negated=negated)
        for name, target, negated in (
            ("eq", "Equal", False),
            ("ne", "Equal", True),
            ("lt", "Less", False),
            ("le", "LessOrEqual", False),
            ("gt", "Greater", False),
            ("ge", "GreaterOrEqual", False),
        )
        for kind in ("Tensor", "Scalar")
    },
    aten.bitwise_and.Tensor: _logical("And"),
    aten.bitwise_or.Tensor: _logical("Or"),
    aten.logical_and.default: _logical("And"),
    aten.logical_or.default: _logical("Or"),
    aten.bitwise_not.default: _logical("Not"),
    aten.logical_not.default: _logical("Not"),
    aten.where.self: _where,
    aten.masked_fill.Scalar: _fill,
    aten.masked_fill.Tensor: _fill,
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.hardtanh.default: _clamp,
    aten.clamp_min.default: lambda w, n: _limited(w, n, n.args[1], None),
    aten.clamp_max.default: lambda w, n: _limited(w, n, None, n.args[1]),
    aten.neg.default: _simple("Neg"),
    aten.abs.default: _simple("Abs"),
    aten.exp.default: _simple("Exp"),
    aten.log.default: _simple("Log"),
    aten.sqrt.default: _simple("Sqrt"),
    aten.reciprocal.default: _simple("Reciprocal"),
    aten.sin.default: _simple("Sin"),
    aten.cos.default: _simple("Cos"),
    aten.tanh.default: _simple("Tanh"),
    aten.sigmoid.default: _simple("Sigmoid"),
    aten.erf.default: _simple("Erf"),
    aten.relu.default: _simple("Relu"),
    aten.floor.default: _simple("Floor"),
    aten.ceil.default: _simple("Ceil"),
    aten.sign.default: _simple("Sign"),
    aten.hardswish.default: _simple("HardSwish"),
    aten.hardsigmoid.default: lambda w, n: w.op("HardSigmoid", w.tensor(n.args[0]), alpha=1 / 6, beta=0.5),
    aten.mish.default: _simple("Mish"),
    aten.isnan.default: lambda w, n: w.op("IsNaN", w.tensor(n.args[0])),
    aten.rsqrt.default: _rsqrt,
    aten.gelu.default: _gelu,
    aten.silu.default: _silu,
    aten.leaky_relu.default: _leaky,
    aten.elu.default: _elu,
    aten.softplus.default: _softplus,
    aten._to_copy.default: _to_copy,
    torch.ops.prims.convert_element_type.default: _convert,
}
