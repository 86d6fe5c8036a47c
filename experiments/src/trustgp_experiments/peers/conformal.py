r"""Intervals that cover a new target with a given probability, whatever the network is: conformal prediction.

Split conformal puts the same width around every output: the quantile of the validation rows' absolute
errors. CQR (Romano et al. 2019) trains quantiles by the pinball loss, and moves them by that of
:math:`\max(q_{lo} - y, y - q_{hi})`. Both are valid for rows exchangeable with the validation rows. They
have no density, so there is no likelihood to score.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs
from trustgp.math.quantiles import held_out_quantile, needed_rows
from trustgp.tangents.network import as_matrix

from ..training.train import errors, run_network, valid_rows
from .bundle import Bundle

LEVEL = 0.95


@dataclass(frozen=True)
class IntervalPrediction:
    """A prediction with names as in `trustgp.Prediction`, for an interval at one level and nothing else.

    `variance`, `log_prob` and `crps` are None: check for None before you use them.
    """

    mean: Tensor  # the network's output                   [n] or [n, C]
    lower: Tensor  # ends of the interval, likewise
    upper: Tensor
    valid: Tensor  # False: the interval is everything     [n]

    variance = log_prob = crps = None

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def std(self) -> Tensor:
        """Half the interval's width, as a size of the error bar; not a standard deviation."""
        return 0.5 * (self.upper - self.lower)

    def interval(self, level: float = LEVEL) -> tuple[Tensor, Tensor]:
        if level != LEVEL:
            raise ValueError(f"level={level}; these intervals were made for {LEVEL} alone.")
        return self.lower, self.upper


@dataclass(frozen=True)
class SplitConformal:
    """A network and one width for each output. Made by `fit`."""

    network: nn.Module
    half: Tensor  # [C]

    @classmethod
    def fit(cls, network: nn.Module, validation: Any) -> Self:
        rows = read_rows(validation, name="validation")
        return cls(network, quantile_of(errors(run_network(network, rows.inputs), rows).abs()))

    def predict(self, inputs: Inputs) -> IntervalPrediction:
        mean = run_network(self.network, inputs)
        half = self.half.to(mean).expand(as_matrix(mean).shape).reshape(mean.shape)
        return _answer(inputs, mean, mean - half, mean + half)


@dataclass(frozen=True)
class QuantileConformal:
    """A network, another for lower and upper quantiles, and the shift of these. Made by `fit`."""

    network: nn.Module
    quantiles: nn.Module  # gives [n, 2C], lower ends first
    shift: Tensor  # [C]

    @classmethod
    def fit(cls, bundle: Bundle) -> Self:
        """Train quantiles by the bundle's recipe; their shift is a quantile of their validation errors."""
        loss = partial(pinball, level=LEVEL)
        (quantiles,) = bundle.trained_like(seeds=[100 * bundle.seed], outputs=2 * bundle.outputs, loss=loss)
        rows = read_rows(bundle.validation, name="validation")
        errors(run_network(bundle.network, rows.inputs), rows)  # refuses targets that do not fit
        ends = run_network(quantiles, rows.inputs).double()
        if not bool(torch.isfinite(ends).all()):
            raise ValueError("the network of quantiles has diverged: its outputs are not finite.")
        lower, upper = _ordered(ends)
        targets = rows.targets.to(ends)
        return cls(bundle.network, quantiles, quantile_of(torch.maximum(lower - targets, targets - upper)))

    def predict(self, inputs: Inputs) -> IntervalPrediction:
        """Prediction of the network's own output, with shifted quantiles that may be asymmetric around it."""
        mean = run_network(self.network, inputs)
        lower, upper = _ordered(run_network(self.quantiles, inputs))
        middle, half = 0.5 * (lower + upper), 0.5 * (upper - lower) + self.shift.to(lower)
        half = half.clamp_min(0.0)  # quantiles that are far too wide may be moved past each other
        lower, upper = ((middle + way * half).reshape(mean.shape) for way in (-1.0, 1.0))
        return _answer(inputs, mean, lower, upper)


def pinball(outputs: Tensor, targets: Tensor, *, level: float) -> Tensor:
    """Scalar loss of the ends [b, 2C] of an interval that contains a target [b, C] at rate `level`."""
    outside = 0.5 * (1.0 - level)
    below, above = (targets - end for end in outputs.chunk(2, dim=1))
    low = torch.maximum(outside * below, (outside - 1.0) * below)
    high = torch.maximum((1.0 - outside) * above, -outside * above)
    return (low + high).mean()


def quantile_of(scores: Tensor) -> Tensor:
    """Bound [C] of a new row's score at probability `LEVEL`, from scores [n, C]; needs enough rows."""
    if len(scores) < (least := needed_rows(LEVEL)):
        raise ValueError(f"{len(scores)} validation rows; an interval of {LEVEL:.0%} needs at least {least}.")
    return held_out_quantile(scores, LEVEL)


def _ordered(ends: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper ends, sorted: quantiles that were learnt separately may cross."""
    lower, upper = torch.stack(ends.chunk(2, dim=1)).sort(dim=0).values
    return lower, upper


def _answer(inputs: Inputs, mean: Tensor, lower: Tensor, upper: Tensor) -> IntervalPrediction:
    valid = valid_rows(inputs, mean)
    shaped = valid.reshape((-1,) + (1,) * (mean.ndim - 1))
    lower, upper = torch.where(shaped, lower, -torch.inf), torch.where(shaped, upper, torch.inf)
    return IntervalPrediction(mean, lower, upper, valid)
