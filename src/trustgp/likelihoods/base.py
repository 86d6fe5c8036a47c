"""What every likelihood offers, all that depends on what the targets are; and when a row is called novel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..experts.mixture import LatentPrediction
from ..math.calibration import check_share, held_out_quantile, needed_rows
from ..tangents.base import output_mixes
from .prediction import Prediction

FALSE_ALARM = 0.01  # with which probability a familiar row is called novel, where nothing else is asked for
PREFIX = "novelty."  # of what a file holds of scores and threshold
Mixes = list[tuple[Tensor, Tensor]]
"""How outputs enter each kernel, and which of them its experts serve."""
Calibrations = tuple[Any, ...]
"""What a likelihood learns from held-out rows: frozen dataclasses of float64 tensors, which a file holds."""


@dataclass(frozen=True)
class Shape:
    """The sizes on which calibrations depend."""

    outputs: int  # C, of the network
    experts: tuple[int, ...]  # of each kernel


class Likelihood(ABC):
    """What the targets are. A new one is one file, and one line in `KINDS`."""

    default_outputs: ClassVar[str] = "shared"  # how outputs enter the kernel of exact experts by default
    contrast: ClassVar[bool] = False  # whether only differences of outputs count; see `output_mixes`
    uses_witness: ClassVar[bool] = True  # whether a witness, which knows inputs and targets only, has a say
    common_prior: ClassVar[bool] = False  # whether all experts share one scale and noise ratio
    needs_held_out: ClassVar[bool] = False  # whether rows are split off where no validation rows are given
    calibrated: ClassVar[bool] = True  # whether left-out rows decide how large the error bar is
    titles: ClassVar[tuple[str, ...]]  # of the calibrations, for `trustgp inspect`

    @property
    def leaves_out(self) -> bool:
        """Whether training rows that are left out calibrate the error bar."""
        return self.calibrated and not self.needs_held_out

    def settings(self) -> dict:
        """Plain values: the arguments that make this object again."""
        return {}

    def mixes(self, outputs: str, num_outputs: int, generator: torch.Generator) -> Mixes:
        """How the outputs enter the kernel; see `output_mixes`."""
        return output_mixes(outputs, num_outputs, generator, contrast=self.contrast)

    @abstractmethod
    def check(self, num_outputs: int, targets: Tensor, *, name: str) -> None:
        """Raise unless the targets [n, K] suit a network with C outputs."""

    def warn(self, num_outputs: int, targets: Tensor) -> None:  # noqa: B027 - as a rule there is nothing
        """Warn of what is odd about the training targets, once, before the work."""

    def output_warning(self, outputs: Tensor, targets: Tensor) -> str:
        """Which mistake the outputs [n, C] of training rows with targets [n, K] look like; empty: none."""
        return ""

    def pruning_targets(self, outputs: Callable[[], Tensor], targets: Tensor) -> Tensor:
        """t such that f - t is the gradient of the loss in f, shape [n, C]: for ranking parameters."""
        return targets

    @abstractmethod
    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-H^-1 R, float64, shape [n, C]."""

    def output_combination(self, mix: Tensor, generator: torch.Generator) -> Tensor | None:
        """Combinations of the outputs that the experts of a kernel learn [C, B]; None: each output."""
        return None

    @abstractmethod
    def calibration_rows(self, outputs: Tensor, raw: LatentPrediction, targets: Tensor) -> Any:
        """Rows with known targets, as `calibrate` wants them; parts are joined by their class's `cat`."""

    @abstractmethod
    def calibrate(
        self, rows: Any, shape: Shape, targets: Tensor | None, *, seen: bool = False, far: Any = None
    ) -> Calibrations:
        """What can be learnt from held-out rows, as `calibration_rows` gave them; None: the defaults. Targets
        are those of the training rows, if they are known; `seen`: the network was trained on `rows`; `far`
        are rows of clusters that were left out."""

    @abstractmethod
    def recalibrate(self, rows: Any, shape: Shape, calibrations: Calibrations) -> Calibrations:
        """What held-out rows teach anew; what only training rows can tell is taken from `calibrations`."""

    def fitted_to_left_out(self, calibrations: Any) -> bool:
        """Whether all of it was learnt from training rows that were left out."""
        return False

    def calibration_warning(self, rows: Any, calibrations: Any) -> str:
        """What speaks against these calibrations on the rows they were fitted to; empty: nothing."""
        return ""

    def measures(self, raw: LatentPrediction) -> Tensor:
        """What tells how foreign a row is, float64, [n, K]: novelty, the mean over the outputs, [n, 1]."""
        return raw.novelty.mean(dim=1, keepdim=True)

    def score(self, measures: Tensor, calibrations: Any) -> Tensor:
        """How foreign a row is, as one number, float64, shape [n]."""
        return measures[:, 0]

    @abstractmethod
    def prediction(
        self,
        outputs: Tensor,
        raw: LatentPrediction,
        calibrations: Any,
        valid: Tensor | None = None,
        reference: ReferenceScores | None = None,
    ) -> Prediction:
        """The answer to the user: outputs [n] or [n, C] of the network, and what the experts say of them;
        which rows are valid (None: those with finite outputs), and the scores of familiar rows."""

    @abstractmethod
    def read_calibrations(self, reader: Reader, prefix: str, shape: Shape) -> Calibrations:
        """The calibrations from a file, each tensor checked."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32: the variances of a half-precision network lie below what its numbers can hold."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def common_fields(
    outputs: Tensor,
    raw: LatentPrediction,
    score: Tensor | None,
    valid: Tensor | None,
    reference: ReferenceScores | None,
) -> dict[str, Any]:
    """What every prediction says, by name; the score is the novelty where it is None."""
    if valid is None:
        valid = torch.isfinite(outputs).reshape(outputs.shape[0], -1).all(dim=1)
    novelty = raw.novelty.mean(dim=1)
    return {
        "novelty": novelty.to(wide(outputs.dtype)),
        "expert": raw.expert.squeeze(1) if raw.expert.shape[1] == 1 else raw.expert,
        "valid": valid,
        "_score": novelty if score is None else score,
        "_threshold": None if reference is None else reference.threshold,
        "_reference": reference,
    }


@dataclass(frozen=True)
class NoveltyThreshold:
    """A row whose score lies above the threshold is novel."""

    threshold: Tensor  # of the score, a scalar
    false_alarm: Tensor  # with which probability a familiar row lies above it, at most, a scalar

    @classmethod
    def fit(cls, scores: Tensor, false_alarm: float) -> NoveltyThreshold:
        """The threshold for held-out scores [k]; see `held_out_quantile`."""
        check_share("false_alarm", false_alarm, 0.01)
        needed = needed_rows(1.0 - false_alarm)
        if len(scores) < needed:
            raise ValueError(
                f"a threshold for false_alarm={false_alarm} takes at least {needed} held-out rows, and there "
                f"are {len(scores)}; fit with `validation=`, pass familiar rows to model.threshold(rows), or "
                "allow more false alarms."
            )
        if not bool(torch.isfinite(scores).all()):
            raise ValueError("held-out rows have no finite score; drop those whose `valid` is False.")
        threshold = held_out_quantile(scores.double().cpu(), 1.0 - false_alarm)
        return cls(threshold, torch.tensor(false_alarm, dtype=torch.float64))

    @classmethod
    def usual(cls, scores: Tensor) -> NoveltyThreshold | None:
        """That for 1 % of false alarms; of k < 99 held-out rows the largest score, which promises
        1 / (k + 1). None without held-out rows."""
        return cls.fit(scores, max(FALSE_ALARM, 1.0 / (len(scores) + 1))) if len(scores) else None


@dataclass(frozen=True)
class ReferenceScores:
    """Scores of rows that are known to be familiar, and above which a row is novel."""

    scores: Tensor  # of held-out rows, ascending, float64 [k]
    threshold: float | None  # None: there is none

    @classmethod
    def of(cls, scores: Tensor, limit: NoveltyThreshold | None) -> ReferenceScores:
        """Held-out scores [k], and the threshold that was asked for; None: the usual one."""
        limit = limit or NoveltyThreshold.usual(scores)
        return cls(scores.double().cpu().sort().values, None if limit is None else float(limit.threshold))

    def share_below(self, score: Tensor) -> Tensor:
        """The share of these scores that lie below each of other ones [n]; 1 for what is no number."""
        if not len(self.scores):
            raise ValueError(
                "there are no held-out rows to compare with; fit with `validation=` or `groups=`, or give "
                "`validation=` to what made the model smaller."
            )
        below = torch.searchsorted(self.scores.to(score.device), score.double().contiguous())
        return torch.where(score.isnan(), 1.0, below.double() / len(self.scores))


def novelty_tensors(scores: Tensor, limit: NoveltyThreshold | None) -> dict[str, Tensor]:
    """What a file holds of them."""
    table = {f"{PREFIX}scores": scores} if len(scores) else {}
    if limit is not None:
        table |= {f"{PREFIX}threshold": limit.threshold, f"{PREFIX}false_alarm": limit.false_alarm}
    return table


def read_novelty(reader: Reader) -> tuple[Tensor, NoveltyThreshold | None]:
    """The held-out scores, empty where there are none, and the threshold if one was fitted."""
    names, scores = reader.matching(PREFIX), torch.zeros(0, dtype=torch.float64)
    if "scores" in names:
        scores = reader.positive(f"{PREFIX}scores", None, zero=True)
    if not {"threshold", "false_alarm"} & set(names):
        return scores, None
    threshold = reader.positive(f"{PREFIX}threshold", zero=True)
    false_alarm = reader.take(f"{PREFIX}false_alarm", torch.float64)
    reader.require(0 < float(false_alarm) < 1, f"{PREFIX}false_alarm", "must lie between 0 and 1")
    return scores, NoveltyThreshold(threshold, false_alarm)
