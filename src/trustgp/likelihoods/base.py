"""What every likelihood offers: all that depends on what the targets are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..experts.mixture import LatentPrediction
from .prediction import Prediction

Calibrations = tuple[Any, ...]
"""What a likelihood learns from held-out rows: frozen dataclasses of float64 tensors, which a file holds."""


@dataclass(frozen=True)
class Shape:
    """The sizes on which calibrations depend.

    Args:
        outputs: C, of the network.
        experts: Of each kernel.
    """

    outputs: int
    experts: tuple[int, ...]


class Likelihood(Protocol):
    """What the targets are. A new one is one file, and one line in `KINDS`."""

    default_outputs: ClassVar[str]  # how outputs enter the kernel where the user does not say
    uses_witness: ClassVar[
        bool
    ]  # whether a witness, which knows inputs and targets only, has anything to say
    common_prior: ClassVar[bool]  # whether all experts share one scale and noise ratio
    needs_held_out: ClassVar[bool]  # whether rows are split off where no validation rows are given
    titles: ClassVar[tuple[str, ...]]  # of the calibrations, for `trustgp inspect`

    def settings(self) -> dict:
        """Plain values: the arguments that make this object again."""
        ...

    def mixes(
        self, outputs: str, num_outputs: int, generator: torch.Generator
    ) -> list[tuple[Tensor, Tensor]]:
        """How the outputs enter the kernel; see `output_mixes`."""
        ...

    def check(self, num_outputs: int, targets: Tensor, *, name: str) -> None:
        """Raise unless the targets [n, K] suit a network with C outputs."""
        ...

    def warn(self, num_outputs: int, targets: Tensor) -> None:
        """Warn of what is odd about the training targets, once, before the work."""
        ...

    def pruning_targets(self, outputs: Callable[[], Tensor], targets: Tensor) -> Tensor:
        """t such that f - t is the gradient of the loss in f, shape [n, C]: for ranking parameters."""
        ...

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-H^-1 R, float64, shape [n, C]."""
        ...

    def output_combination(self, mix: Tensor, generator: torch.Generator) -> Tensor | None:
        """Combinations of the outputs that the experts of a kernel learn [C, B]; None: each output."""
        ...

    def calibration_rows(self, outputs: Tensor, raw: LatentPrediction, targets: Tensor) -> Any:
        """Rows with known targets, as `calibrate` wants them; parts are joined by their class's `cat`."""
        ...

    def calibrate(
        self, rows: Any, shape: Shape, targets: Tensor | None, *, seen: bool = False
    ) -> Calibrations:
        """What can be learnt from held-out rows; None: the defaults.

        Args:
            rows: What `held_out` gave.
            shape: Of the model.
            targets: Of the training rows; None: they are not known.
            seen: Whether the network was trained on the held-out rows.
        """
        ...

    def recalibrate(self, rows: Any, shape: Shape, calibrations: Calibrations) -> Calibrations:
        """What held-out rows teach anew; what only training rows can tell is taken from `calibrations`."""
        ...

    def calibration_warning(self, rows: Any, calibrations: Calibrations) -> str:
        """What speaks against these calibrations on the rows they were fitted to; empty: nothing."""
        ...

    def score(self, raw: LatentPrediction) -> Tensor:
        """How foreign a row is, as one number, float64, shape [n]."""
        ...

    def prediction(self, outputs: Tensor, raw: LatentPrediction, calibrations: Calibrations) -> Prediction:
        """The answer to the user."""
        ...

    def read_calibrations(self, reader: Reader, prefix: str, shape: Shape) -> Calibrations:
        """The calibrations from a file, each tensor checked."""
        ...


def wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32: the variances of a half-precision network lie below what its numbers can hold."""
    return torch.promote_types(dtype, torch.float32)
