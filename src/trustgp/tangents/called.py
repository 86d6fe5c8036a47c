"""Predictors that can only be called: a function, an ONNX session, an estimator with `predict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.trees import Inputs
from ..data.user_warnings import warn_user

SESSION_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}


class Call:
    """Calls a predictor with rows [n, d]; a deep copy is the same object."""

    def __init__(self, predictor: Any) -> None:
        self.predictor = predictor

    def __call__(self, rows: Tensor) -> Tensor:
        predictor, array = self.predictor, rows.detach().cpu().numpy()
        if hasattr(predictor, "get_inputs"):  # a session of onnxruntime
            given = predictor.get_inputs()[0]
            array = array.astype(SESSION_TYPES.get(given.type, array.dtype), copy=False)
            result = predictor.run(None, {given.name: array})[0]
        elif hasattr(predictor, "predict"):
            result = predictor.predict(array)
        else:
            result = predictor(rows)
        return torch.as_tensor(result if isinstance(result, Tensor) else np.asarray(result)).to(rows.device)

    def __deepcopy__(self, memo: dict) -> Call:
        return self

    def __repr__(self) -> str:
        return getattr(self.predictor, "__name__", type(self.predictor).__name__)


class CalledPredictor(nn.Module):
    """Predictor plus a linear map of the inputs with zero weights. The gradients are the inputs, so that each
    expert is a linear regression of the predictor's errors on the inputs of its rows."""

    def __init__(self, call: Call, row: Tensor) -> None:
        super().__init__()
        self.call, self.given, first = call, row.dtype, call(row).reshape(1, -1)
        self.outputs = first.shape[1]
        # of float32 rows estimators of scikit-learn make float64 predictions
        dtype = torch.promote_types(row.dtype, first.dtype)
        self.linear = nn.Linear(row.shape[1], self.outputs, dtype=dtype)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.eval()

    def forward(self, rows: Tensor) -> Tensor:
        """The predictor's own outputs, [n, C]."""
        with torch.no_grad(), torch._C._DisableFuncTorch():  # in forward mode arrays cannot be made otherwise
            predicted = self.call(rows.to(self.given))
        return predicted.reshape(len(rows), -1) + self.linear(rows.to(self.linear.weight.dtype))

    def extra_repr(self) -> str:
        return f"{self.call!r}, which can only be called: no gradients"


def is_called(network: Any) -> bool:
    """Whether `network` is not a module but can be called: directly, by `predict`, or as an ONNX session."""
    kind = isinstance(network, (nn.Module, type, list, tuple))
    return not kind and (callable(network) or hasattr(network, "predict") or hasattr(network, "get_inputs"))


def called_predictor(predictor: Any, row: Inputs | None) -> CalledPredictor:
    """Wrap a predictor of rows such as `row`; one call finds the number of its outputs."""
    if not isinstance(row, Tensor) or row.ndim != 2 or not row.is_floating_point():
        raise TypeError(
            f"network is {Call(predictor)!r}, which can only be called; then inputs must be one tensor or "
            "array of real numbers, [n, d]. Otherwise pass a torch.nn.Module."
        )
    return CalledPredictor(Call(predictor), row[:1])


def blank_row(kinds: Sequence[str]) -> Tensor | None:
    """Row of zeros for the single kind, such as "float32[3]", that a file names; None if it names several."""
    dtype, _, size = "".join(kinds).rstrip("]").partition("[")
    return (
        torch.zeros(1, int(size), dtype=getattr(torch, dtype)) if len(kinds) == 1 and size.isdigit() else None
    )


def warn_called(network: nn.Module, *, held_out: bool) -> None:
    """Warn if a predictor that can only be called has no held-out rows, which alone show its errors."""
    if isinstance(network, CalledPredictor) and not held_out:
        warn_user(
            "the predictor can only be called, so its errors on new rows do not follow from its training "
            "rows; pass validation=, rows that it was not trained on."
        )
