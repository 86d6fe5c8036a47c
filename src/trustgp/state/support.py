"""Which functions take which fitted models."""

from __future__ import annotations

from typing import Any

from .model_state import FittedModel


def require_support(model: Any, name: str) -> None:
    """Raise, with the reason, where the public function `name` does not take fitted models of this kind."""
    if not isinstance(model, FittedModel):
        raise TypeError(f"model is a {type(model).__name__}; pass what trustgp.fit or trustgp.load gave.")
    if name in model.UNSUPPORTED:
        raise ValueError(f"trustgp.{name} is not for a {type(model).__name__}: {model.UNSUPPORTED[name]}.")
