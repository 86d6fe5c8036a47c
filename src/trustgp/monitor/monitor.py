"""Verdicts on a model's predictions, frame by frame."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..data.torch_modes import cpu_default
from ..metrics.score_report import plain
from ..model import UncertaintyModel
from .readings import FrameError, FrameReader, PredictionSource, find_limits, given_limit

STATUSES: tuple[str, ...] = ("ok", "uncertain", "novel", "invalid input")
OK, UNCERTAIN, NOVEL, INVALID = STATUSES


@dataclass
class FrameHistory:
    """Counts of the frames since the last reset."""

    frames: int = 0
    last: str = ""  # status
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    episodes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))  # runs of one status
    largest_score: float | None = None

    def add(self, status: str, score: float | None) -> None:
        """Add one frame; the score of an invalid frame is None."""
        if score is not None:
            self.largest_score = score if self.largest_score is None else max(self.largest_score, score)
        self.frames += 1
        self.counts[status] += 1
        self.episodes[status] += status != self.last
        self.last = status


@dataclass(frozen=True)
class Verdict:
    """Verdict on one frame; for an invalid frame only `status`, `frame` and `reason` are set.

    Examples:
        >>> verdict = trustgp.Monitor(model)(inputs[0])
        >>> fall_back = verdict.status != "ok"
    """

    status: str  # "ok", "uncertain", "novel" or "invalid input"
    frame: int  # its number since the last reset, from 0
    mean: Tensor | None = None  # the network's own output, shape [C]
    std: Tensor | None = None  # its standard deviation, shape [C]
    novelty: float | None = None  # in [0, 1]
    score: float | None = None  # number compared with the threshold; in regression the novelty
    expert: tuple[int, ...] | None = None  # index of the expert that predicted, one for each kernel
    reason: str = ""  # why the frame is invalid; empty: it is valid
    quiet: int | None = None  # quiet frames in a row, of `patience` that end the alarm; None: no alarm

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; NaN and infinite numbers are None."""
        return plain(self, infinite=lambda _: None)


class Latch:
    """An alarm that starts at once, and ends after `patience` quiet frames in a row."""

    def __init__(self, patience: int) -> None:
        self._patience, self._left = patience, 0  # quiet frames that end it, and those still missing

    def __call__(self, *, above: bool, quiet: bool) -> bool:
        """Whether the alarm is on after a frame above the enter level, or below the leave level (quiet)."""
        if above or (self._left and not quiet):
            self._left = self._patience
        elif self._left:
            self._left -= 1
        return self._left > 0

    @property
    def quiet(self) -> int | None:
        """Number of quiet frames in a row, of `patience` that end the alarm; None if it is off."""
        return self._patience - self._left if self._left else None


class Monitor:
    """Judges a model's predictions frame by frame: ok, uncertain, novel or invalid input.

    Call it with one frame: a tensor or array [d] or [1, d], or a tuple or dict of such, as the network takes
    them. It never raises for a sensor's fault (NaN, infinities, wrong types, and, after the first valid
    frame, a missing key or a wrong shape): the status is "invalid input". A first frame with a wrong shape or
    a missing key is a mistake in the program, and raises a ValueError. Time and memory of a call do not
    depend on the number of calls. Not thread-safe.

    A frame is *novel* when its score is above the threshold, else *uncertain* when a standard deviation is
    above its limit. Either lasts until `patience` valid frames in a row are below `leave` times the level.

    Args:
        model: An `UncertaintyModel`, a `DetectionModel`, an opened file of either, or any other
            `PredictionSource`.
        threshold: Threshold of the novelty score. None: the model's own (`model.threshold`), or that of the
            held-out rows of the fit, for `false_alarm`.
        std: The largest acceptable standard deviation, in the units of the outputs: a number, or one for
            each output. None: the limit that the share `false_alarm` of the held-out rows exceeds, if the
            model still has them (after a fit, not after loading) or `rows` are given; else no limit.
        confidence: For classes, instead of `std`: the smallest acceptable probability of the likeliest class;
            for several labels, of the likelier value of each label.
        rows: Familiar rows, as the model takes them, from which the other limits are computed.
        false_alarm: The share of familiar frames that may cause either alarm.
        leave: Leave level over enter level, in (0, 1].
        patience: Number of quiet frames in a row before an alarm ends.

    `threshold` is the novelty score above which a frame is novel, `limit` the std [C] (for classes:
    1 - probability [1]) above which it is uncertain; None: no limit.

    Examples:
        >>> monitor = trustgp.Monitor(model)
        >>> monitor(inputs[0] * float("nan")).status
        'invalid input'
    """

    @cpu_default()
    def __init__(
        self,
        model: UncertaintyModel | PredictionSource | Any,
        threshold: float | None = None,
        *,
        std: Any = None,
        confidence: float | None = None,
        rows: Any = None,
        false_alarm: float = 0.01,
        leave: float = 0.8,
        patience: int = 5,
    ) -> None:
        if patience < 1:
            raise ValueError(f"patience={patience}; it must be at least 1.")
        if not 0.0 < leave <= 1.0:
            raise ValueError(f"leave={leave}; it must lie above 0, and at most at 1 (no hysteresis).")
        model = getattr(model, "watch", lambda: model)()  # for a detector
        self.model, self.leave, self.patience = model, float(leave), int(patience)
        limit = given_limit(std, confidence)
        self.threshold, self.limit = find_limits(model, threshold, limit, rows, false_alarm)
        self._read = FrameReader(model)
        self.reset()

    def reset(self) -> None:
        """Forget all frames: no alarm, no statistics. The form of the frames is kept."""
        self._novel, self._uncertain = Latch(self.patience), Latch(self.patience)
        self._history = FrameHistory()

    @cpu_default()
    def __call__(self, frame: Any) -> Verdict:
        """The verdict on one frame."""
        try:
            reading = self._read(frame, self.limit)
        except FrameError as error:
            return self._invalid(str(error))
        if not bool(reading.valid[0]):
            return self._invalid("the network's output or its error bar is not finite for this input")
        score, std, uncertainty = float(reading.score[0]), reading.std[0], reading.uncertainty[0]
        limit = torch.inf if self.limit is None else self.limit
        above, quiet = not bool((uncertainty <= limit).all()), bool((uncertainty <= self.leave * limit).all())
        uncertain = self.limit is not None and self._uncertain(above=above, quiet=quiet)
        # NaN counts as above every level
        novel = self._novel(above=not score <= self.threshold, quiet=score <= self.leave * self.threshold)
        status = NOVEL if novel else UNCERTAIN if uncertain else OK
        expert = None if reading.expert is None else tuple(reading.expert[0].tolist())
        quiet = (self._novel if status == NOVEL else self._uncertain).quiet
        fields = {"mean": reading.mean[0], "std": std, "novelty": float(reading.novelty[0]), "score": score}
        return self._verdict(status, **fields, expert=expert, quiet=quiet)

    def summary(self) -> dict[str, Any]:
        """Statistics since the last reset: plain values."""
        past = self._history
        return {
            "frames": past.frames,
            "shares": {name: count / max(past.frames, 1) for name, count in past.counts.items()},
            "episodes": dict(past.episodes),
            "largest_score": past.largest_score,
            "threshold": self.threshold,
            "limit": None if self.limit is None else self.limit.tolist(),
        }

    def __repr__(self) -> str:
        limit = "none" if self.limit is None else ", ".join(f"{value:.4g}" for value in self.limit.tolist())
        options = f"leave={self.leave:g}, patience={self.patience}"
        now = f"frames={self._history.frames}, status={self._history.last or 'none'!r}"
        return f"Monitor(threshold={self.threshold:.4g}, limit=[{limit}], {options}, {now})"

    def _invalid(self, reason: str) -> Verdict:
        """Verdict on an invalid frame, which is not quiet: active alarms restart their count."""
        self._novel(above=False, quiet=False)
        self._uncertain(above=False, quiet=False)
        return self._verdict(INVALID, reason=reason)

    def _verdict(self, status: str, **fields: Any) -> Verdict:
        self._history.add(status, fields.get("score"))
        return Verdict(status, self._history.frames - 1, **fields)
