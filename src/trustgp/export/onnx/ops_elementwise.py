"""Operations on each number for itself, in ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from .writer import Translation, Writer, arguments, dtype_of

aten = torch.ops.aten
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


def _differ(w: Writer, n: Any) -> str:
    return w.op("Not", _apply("Equal", _compared)(w, n))


def _add(kind: str) -> Translation:
    """A sum or difference; torch multiplies what is added by alpha."""

    def translate(w: Writer, n: Any) -> str:
        one, other, alpha = arguments(n)
        second = w.tensor(other, dtype_of(n))
        if alpha != 1:
            second = w.op("Mul", second, w.constant(alpha, dtype_of(n)))
        return w.op(kind, w.tensor(one, dtype_of(n)), second)

    return translate


def _logical(kind: str) -> Translation:
    def translate(w: Writer, n: Any) -> str:
        if dtype_of(n) != torch.bool:
            raise NotImplementedError
        return _apply(kind)(w, n)

    return translate


def _multiply(w: Writer, n: Any) -> str:
    return _apply("And" if dtype_of(n) == torch.bool else "Mul")(w, n)


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


def _where(w: Writer, n: Any) -> str:
    return w.op("Where", w.tensor(n.args[0]), *(w.tensor(a, dtype_of(n)) for a in n.args[1:]))


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
    found = w.op("Elu", w.tensor(x), alpha=float(alpha))
    return found if scale == 1 else w.op("Mul", found, w.constant(scale, dtype_of(n)))  # SELU has one


def _softplus(w: Writer, n: Any) -> str:
    x, beta, _ = arguments(n)
    if beta != 1:
        raise NotImplementedError
    return w.op("Softplus", w.tensor(x))


def _gelu(w: Writer, n: Any) -> str:
    x, approximate = arguments(n)
    return w.op("Gelu", w.tensor(x), approximate=approximate)


def _silu(w: Writer, n: Any) -> str:
    x = w.tensor(n.args[0])
    return w.op("Mul", x, w.op("Sigmoid", x))


def _rsqrt(w: Writer, n: Any) -> str:
    return w.op("Reciprocal", w.op("Sqrt", w.tensor(n.args[0])))


ELEMENTWISE: dict[Any, Translation] = {
    **{getattr(aten, name).default: _apply(name.capitalize()) for name in SAME_NAME.split()},
    **{
        getattr(getattr(aten, name), form): _apply(kind, _compared)
        for name, kind in COMPARISONS.items()
        for form in ("Tensor", "Scalar")
    },
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), _add("Add")),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), _add("Sub")),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _multiply),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), _apply("Div")),
    **dict.fromkeys((aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar), _power),
    **dict.fromkeys(
        (aten.ne.Tensor, aten.ne.Scalar), lambda w, n: w.op("Not", _apply("Equal", _compared)(w, n))
    ),
    **dict.fromkeys((aten.bitwise_and.Tensor, aten.logical_and.default), _logical("And")),
    **dict.fromkeys((aten.bitwise_or.Tensor, aten.logical_or.default), _logical("Or")),
    **dict.fromkeys((aten.bitwise_not.default, aten.logical_not.default), _logical("Not")),
    **dict.fromkeys((aten.clamp.default, aten.clamp.Tensor), _clamp),
    **dict.fromkeys((aten.maximum.default, aten.clamp_min.default), _apply("Max")),
    **dict.fromkeys((aten.minimum.default, aten.clamp_max.default), _apply("Min")),
    aten.where.self: _where,
    aten.sgn.default: _apply("Sign"),
    aten.hardswish.default: _apply("HardSwish"),
    aten.isnan.default: lambda w, n: w.op("IsNaN", w.tensor(n.args[0])),
    aten.rsqrt.default: _rsqrt,
    aten.gelu.default: _gelu,
    aten.silu.default: _silu,
    aten.elu.default: _elu,
    aten.softplus.default: _softplus,
    aten._to_copy.default: lambda w, n: w.tensor(n.args[0], dtype_of(n)),
    torch.ops.prims.convert_element_type.default: lambda w, n: w.tensor(n.args[0], n.args[1]),
}
