"""The interface of likelihoods, and thresholds of the novelty score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..experts.mixture import LatentPrediction
from ..experts.whole import WholePosterior
from ..math.quantiles import check_share, held_out_quantile, needed_rows
from ..tangents.base import output_mixes
from ..tangents.outputs import total_variance
from ..tangents.sketch import OutputSketchMap, SketchMap
from .prediction import Prediction

FALSE_ALARM = 0.01  # default probability that an in-distribution row is called novel
COMMON = ("novelty", "expert", "valid", "_score", "_threshold", "_reference")  # fields; see `common_fields`
PREFIX = "novelty."  # of the names of tensors in a file
Mixes = list[tuple[Tensor, Tensor]]  # of each kernel: weights of the outputs, and the outputs it serves
Calibrations = tuple[Any, ...]  # of a likelihood: frozen dataclasses of float64 tensors, saved with the model


@dataclass(frozen=True)
class Shape:
    """The sizes on which calibrations depend."""

    outputs: int  # C, of the network
    experts: tuple[int, ...]  # of each kernel


class Likelihood(ABC):
    """An observation model. A new one is one file, and one line in `KINDS`."""

    default_outputs: ClassVar[str] = "shared"  # default kernel over the outputs of exact experts
    class_numbers: ClassVar[bool] = False  # whether a target is the number of a class
    contrast: ClassVar[bool] = False  # whether only differences of outputs matter; see `output_mixes`
    uses_witness: ClassVar[bool] = True  # whether a witness is fitted
    common_prior: ClassVar[bool] = False  # whether all experts share one scale and noise ratio
    uses_hidden: ClassVar[bool] = False  # whether inputs of the last layer of training rows are kept
    uses_stated: ClassVar[bool] = True  # whether a network may state the variance of its outputs
    needs_held_out: ClassVar[bool] = False  # whether rows are held out where no validation rows are given
    calibrated: ClassVar[bool] = True  # whether the variance is calibrated
    conformal_refusal: ClassVar[str] = ""  # why there are no conformal intervals or sets; empty: there are
    joint_refusal: ClassVar[str] = "classes have `covariance` between the leading logits of each row"
    whole_kind: ClassVar[type[WholePosterior] | None] = None  # the posterior of all rows; None: it has no use
    titles: ClassVar[tuple[str, ...]]  # titles of the calibrations in `trustgp inspect`

    @property
    def leaves_out(self) -> bool:
        """Whether left-out training rows calibrate the variance."""
        return self.calibrated and not self.needs_held_out

    def settings(self) -> dict:
        """Plain values: the arguments of the constructor."""
        return {}

    def mixes(self, outputs: str, num_outputs: int, generator: torch.Generator) -> Mixes:
        """Weights of the outputs in each kernel; see `output_mixes`."""
        return output_mixes(outputs, num_outputs, generator, contrast=self.contrast)

    def output_map(self, tangents: SketchMap) -> OutputSketchMap:
        """Sketches for the posterior of all rows: by default those of each output."""
        return OutputSketchMap(tangents)

    def combined(self, results: Sequence[Any]) -> Any:
        """Output of several networks, from the output of each: by default their mean and total variance."""
        return total_variance(results)

    @abstractmethod
    def check(self, num_outputs: int, targets: Tensor, *, name: str) -> None:
        """Raise unless the targets [n, K] suit a network with C outputs."""

    def warn(self, num_outputs: int, targets: Tensor) -> None:  # noqa: B027 - optional
        """Warn of suspicious training targets, once, before the fit."""

    def output_warning(self, outputs: Tensor, targets: Tensor) -> str:
        """A warning about outputs [n, C] of training rows with targets [n, K]; empty: none."""
        return ""

    def pruning_targets(self, outputs: Callable[[], Tensor], targets: Tensor) -> Tensor:
        """Targets t [n, C] such that f - t is the gradient of the loss in f; used to rank parameters."""
        return targets

    @abstractmethod
    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Newton step -H^-1 R, with gradient R and curvature H of the loss, float64, shape [n, C]."""

    def output_combination(self, mix: Tensor, generator: torch.Generator) -> Tensor | None:
        """Combinations of the outputs that the experts of a kernel learn [C, B]; None: each output."""
        return None

    @abstractmethod
    def calibration_rows(self, outputs: Tensor, raw: LatentPrediction, targets: Tensor) -> Any:
        """Held-out rows for `calibrate`; the `cat` of their class joins several parts."""

    @abstractmethod
    def calibrate(
        self, rows: Any, shape: Shape, targets: Tensor | None, *, seen: bool = False, far: Any = None
    ) -> Calibrations:
        """Calibrations fitted to `rows` from `calibration_rows`; None: the defaults. `targets` are those of
        the training rows, where available; `seen`: the network was trained on `rows`; `far`: rows of
        left-out clusters."""

    @abstractmethod
    def recalibrate(self, rows: Any, shape: Shape, calibrations: Calibrations) -> Calibrations:
        """Calibrations fitted to held-out rows, starting from those of the training rows."""

    def fitted_to_left_out(self, calibrations: Any) -> bool:
        """Whether the calibrations were fitted to left-out training rows only."""
        return False

    def calibration_warning(self, rows: Any, calibrations: Any) -> str:
        """A warning about the calibrations on the rows they were fitted to; empty: none."""
        return ""

    def held_out_losses(self, rows: Any, calibrations: Any) -> tuple[float, float]:
        """Mean negative log likelihood of held-out rows, under the calibrations fitted to them and those
        fitted to left-out training rows; zeros where a likelihood has only one kind."""
        return 0.0, 0.0

    def measures(self, raw: LatentPrediction, outputs: Tensor) -> Tensor:
        """Novelty measures of rows with outputs [n] or [n, C], float64 [n, K]: by default the mean novelty
        over the outputs, [n, 1]."""
        return raw.novelty.mean(dim=1, keepdim=True)

    def score(self, measures: Tensor, calibrations: Any) -> Tensor:
        """The novelty score, float64, shape [n]."""
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
        """The prediction for the user, from the network's outputs [n] or [n, C], the experts' moments, a mask
        of valid rows (None: those with finite outputs), and scores of held-out rows."""

    def later(
        self,
        outputs: Tensor,
        latent: Callable[[], LatentPrediction],
        calibrations: Any,
        common: dict[str, Any],
    ) -> dict[str, Callable[[], Prediction]]:
        """Functions that compute lazy fields of a prediction, by field name; `common` are its `COMMON`
        fields."""
        return {}

    @abstractmethod
    def read_calibrations(self, reader: Reader, prefix: str, shape: Shape) -> Calibrations:
        """Calibrations from a file, each tensor checked."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """Precision of variances: at least float32, as they underflow in half precision."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def common_fields(
    outputs: Tensor,
    raw: LatentPrediction,
    score: Tensor | None,
    valid: Tensor | None,
    reference: ReferenceScores | None,
) -> dict[str, Any]:
    """Fields of every prediction, by name; where `score` is None the novelty takes its place."""
    if valid is None:
        valid = torch.isfinite(outputs).reshape(outputs.shape[0], -1).all(dim=1)
    # all outputs of one kernel have the same novelty
    novelty = raw.novelty[:, 0] if raw.expert.shape[1] == 1 else raw.novelty.mean(dim=1)
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
    false_alarm: Tensor  # upper bound of the probability that an in-distribution row exceeds it, a scalar

    @classmethod
    def fit(cls, scores: Tensor, false_alarm: float) -> NoveltyThreshold:
        """The threshold for held-out scores [k]; see `held_out_quantile`."""
        check_share("false_alarm", false_alarm, 0.01)
        needed = needed_rows(1.0 - false_alarm)
        if len(scores) < needed:
            raise ValueError(
                f"a threshold for false_alarm={false_alarm} takes at least {needed} held-out rows, and there "
                f"are {len(scores)}; fit with `validation=`, pass held-out rows to model.threshold(rows), or "
                "allow more false alarms."
            )
        if not bool(torch.isfinite(scores).all()):
            raise ValueError("held-out rows have no finite score; drop those whose `valid` is False.")
        threshold = held_out_quantile(scores.double().cpu(), 1.0 - false_alarm)
        return cls(threshold, torch.tensor(false_alarm, dtype=torch.float64))

    @classmethod
    def default(cls, scores: Tensor) -> NoveltyThreshold | None:
        """Threshold for 1 % of false alarms or, with k < 99 held-out rows, their largest score, for
        1 / (k + 1). None without held-out rows."""
        return cls.fit(scores, max(FALSE_ALARM, 1.0 / (len(scores) + 1))) if len(scores) else None


@dataclass(frozen=True)
class ReferenceScores:
    """Scores of held-out rows, and the threshold above which a row is novel."""

    scores: Tensor  # of held-out rows, ascending, float64 [k]
    threshold: float | None  # None: there is none

    @classmethod
    def of(cls, scores: Tensor, limit: NoveltyThreshold | None) -> ReferenceScores:
        """References from held-out scores [k] and a fitted threshold; None: the default threshold."""
        limit = limit or NoveltyThreshold.default(scores)
        return cls(scores.double().cpu().sort().values, None if limit is None else float(limit.threshold))

    def share_below(self, score: Tensor) -> Tensor:
        """Share of the held-out scores that lie below each score [n]; 1 for NaN."""
        if not len(self.scores):
            raise ValueError(
                "there are no held-out rows to compare with; pass `validation=` or `groups=` to fit, or "
                "`validation=` to compress."
            )
        below = torch.searchsorted(self.scores.to(score.device), score.double().contiguous())
        return torch.where(score.isnan(), 1.0, below.double() / len(self.scores))


def novelty_tensors(scores: Tensor, limit: NoveltyThreshold | None) -> dict[str, Tensor]:
    """Held-out scores and the fitted threshold, by tensor name in a file."""
    table = {f"{PREFIX}scores": scores} if len(scores) else {}
    if limit is not None:
        table |= {f"{PREFIX}threshold": limit.threshold, f"{PREFIX}false_alarm": limit.false_alarm}
    return table


def read_novelty(reader: Reader) -> tuple[Tensor, NoveltyThreshold | None]:
    """The held-out scores, empty where there are none, and the fitted threshold, if any."""
    names, scores = reader.matching(PREFIX), torch.zeros(0, dtype=torch.float64)
    if "scores" in names:
        scores = reader.positive(f"{PREFIX}scores", None, zero=True)
    if not {"threshold", "false_alarm"} & set(names):
        return scores, None
    threshold = reader.positive(f"{PREFIX}threshold", zero=True)
    false_alarm = reader.take(f"{PREFIX}false_alarm", torch.float64)
    reader.require(0 < float(false_alarm) < 1, f"{PREFIX}false_alarm", "must lie between 0 and 1")
    return scores, NoveltyThreshold(threshold, false_alarm)
