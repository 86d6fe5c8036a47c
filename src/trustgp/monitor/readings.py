"""What does a model say of some rows? The fields a monitor needs, from whatever predicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

NEEDED = ("mean", "variance", "novelty")


class PredictionSource(Protocol):
    """Anything that answers as an `UncertaintyModel` does, for example a session of onnxruntime.

    It takes inputs with the rows as first dimension, and gives an object or a mapping with `mean` and
    `variance` [n] or [n, C], `novelty` [n], and, where it has them, `score` [n] (else the novelty is the
    score), `expert` [n] or [n, kernels], `valid` [n] and `probabilities` [n, K], as tensors or arrays. Where
    it has a mapping `metadata`, "threshold" in it is the default of the monitor's threshold.
    """

    def __call__(self, inputs: Any, /) -> Any:
        """The answer to some rows."""
        ...


@dataclass(frozen=True)
class Reading:
    """The fields of n rows, on the CPU.

    Args:
        mean, std: Shape [n, C].
        novelty, score: Shape [n].
        valid: Shape [n] bool.
        expert: Shape [n, kernels]; None: not told.
        probabilities: Of classes, shape [n, K]; None: numbers are predicted.
    """

    mean: Tensor
    std: Tensor
    novelty: Tensor
    score: Tensor
    valid: Tensor
    expert: Tensor | None
    probabilities: Tensor | None

    @property
    def doubt(self) -> Tensor:
        """How uncertain rows are, float64: std [n, C]; of classes 1 - their largest probability [n, 1]."""
        if self.probabilities is None:
            return self.std.double()
        return 1.0 - self.probabilities.double().amax(dim=1, keepdim=True)


def read_prediction(model: Any, inputs: Any) -> Reading:
    """What a model, or a `PredictionSource`, says of some rows; missing fields are refused by name."""
    said = getattr(model, "predict", model)(inputs)

    def field(name: str) -> Tensor | None:
        value = said.get(name) if isinstance(said, Mapping) else getattr(said, name, None)
        return None if value is None else torch.as_tensor(value).detach().cpu()

    mean, variance, novelty = (field(name) for name in NEEDED)
    if mean is None or variance is None or novelty is None:
        raise TypeError(f"the model gives a {type(said).__name__} without all of {', '.join(NEEDED)}.")
    n = len(novelty)
    score, valid, expert = (field(name) for name in ("score", "valid", "expert"))
    finite = torch.isfinite(mean.reshape(n, -1)).all(dim=1)
    return Reading(
        mean=mean.reshape(n, -1),
        std=variance.reshape(n, -1).sqrt(),
        novelty=novelty,
        score=novelty if score is None else score,
        valid=finite if valid is None else finite & valid.bool(),
        expert=None if expert is None else expert.reshape(n, -1),
        probabilities=field("probabilities"),
    )
