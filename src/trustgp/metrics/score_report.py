"""A report of scores: their names, titles, table and dict.

Each kind of prediction has a dataclass with a `score_field` per score, and a `ScoreReport` derived from it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..data.tables import html_table
from .ranking import auroc, fpr95, selective_risk

ALL = "all"  # name of the average over the outputs
RISK = {"kept": "kept", "risk": "risk", "oracle": "oracle_risk"}  # fields of curves
RELIABILITY = {"rows": "bin_rows", "confidence": "confidence", "right": "right"}
MAX_COLUMNS = 8  # of outputs, in a table
CURVE_POINTS = 100  # of a selective-risk curve that is kept; its area is taken over every row


def score_field(title: str, good: str = "", *, share: bool = False, foreign: bool = False) -> Any:
    """Dataclass field of a score: title, good value, whether it is a share, and whether of foreign rows."""
    return field(default=None, metadata={"title": title, "good": good, "share": share, "foreign": foreign})


@dataclass(frozen=True)
class RowCounts:
    """Number of rows, and number of rows without a finite prediction."""

    noun: ClassVar[str] = "rows"
    cost: ClassVar[str] = "each costs an infinite NLL"

    rows: int
    invalid: int = 0
    ood_rows: int = 0
    ood_invalid: int = 0

    @classmethod
    def of(cls, *usable: Tensor) -> RowCounts:
        """Counts from masks of rows with a finite prediction, bool: familiar [n], then any foreign [m]."""
        return cls(*(number for part in usable for number in (len(part), int((~part).sum()))))

    @property
    def warning(self) -> str:
        """Warning about rows without a finite prediction; empty if there are none."""
        kinds = ((self.invalid, self.rows, ""), (self.ood_invalid, self.ood_rows, "foreign "))
        parts = [f"{bad:,} of {rows:,} {kind}{self.noun}" for bad, rows, kind in kinds if bad]
        return f"No finite prediction for {' and '.join(parts)}: {self.cost}." if parts else ""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScoreReport:
    """Scores of n rows or pictures."""

    kind: ClassVar[type]  # the dataclass of the scores
    shown: ClassVar[tuple[str, ...]]  # those that `repr` shows
    curve_fields: ClassVar[Mapping[str, Mapping[str, str]]]  # the field of each tensor of a curve

    counts: RowCounts
    subject: str  # what each row has, such as "2 outputs", for the title of the table
    outputs: Mapping[str, Any] = field(default_factory=dict)  # scores by output; empty: rows have one score

    def __len__(self) -> int:
        return self.counts.rows

    invalid = property(lambda self: self.counts.invalid, doc="Number of rows without a finite prediction.")
    ood_invalid = property(lambda self: self.counts.ood_invalid, doc="`invalid`, of foreign rows.")

    @property
    def average(self) -> Any:
        """Scores averaged over the outputs, without the curves."""
        return self.kind(**{each.name: getattr(self, each.name) for each in fields(self.kind)})

    @property
    def scores(self) -> dict[str, Any]:
        """The scores of each output by its name, the average under "all" first."""
        return {ALL: self.average, **self.outputs}

    @property
    def warning(self) -> str:
        """Text of the line below the table; empty if there is none."""
        return self.counts.warning

    def table(self) -> Table:
        """Table for a terminal, with a line for each score and a column for each output. With more than 8
        outputs, two columns show the lowest and the highest value of each score instead."""
        header, sections = self._cells()
        table = Table(title=self._title, caption=self.warning, title_justify="left", caption_justify="left")
        table.add_column(header[0])
        table.add_column(header[1], style="dim")
        for name in header[2:]:
            table.add_column(Text(name), justify="right")  # a user's name is no markup
        for section in sections:
            for cells in section:
                table.add_row(*cells)
            table.add_section()
        return table

    __rich__ = table

    @property
    def _title(self) -> str:
        counts = self.counts
        against = f", against {counts.ood_rows:,} foreign {counts.noun}" if counts.ood_rows else ""
        return f"{len(self):,} {counts.noun}, {self.subject}{against}"

    def _cells(self) -> tuple[list[str], list[list[list[str]]]]:
        """Header of the table, and its lines as texts: scores of the rows, then those of foreign rows."""
        average, *each = self.scores.items()
        ranged = len(each) > MAX_COLUMNS
        names = ["lowest", "highest"] if ranged else [name for name, _ in each] if len(each) > 1 else []
        sections: list[list[list[str]]] = [[], []]
        for score in fields(self.kind):
            line, mean = score.metadata, getattr(average[1], score.name)
            if mean is None:
                continue
            shown = [getattr(scores, score.name) for _, scores in each] if names else []
            if ranged:
                values = [value for value in shown if value is not None]
                shown = [min(values, default=None), max(values, default=None)]
            form = (lambda value: f"{100 * value:.1f} %") if line["share"] else "{:.4g}".format
            cells = ["" if value is None else form(value) for value in (mean, *shown)]
            sections[line["foreign"]].append([line["title"], line["good"], *cells])
        return ["score", "good is", each[0][0] if len(each) == 1 else ALL, *names], sections

    def to_dict(self) -> dict[str, Any]:
        """Scores and curves as plain values that JSON can hold; infinity becomes the text "inf"."""

        def by_output(field: str) -> Any:  # [L], or [L, C]: by name, the average first
            values = getattr(self, field)
            rows = (values.mean(1), *values.unbind(1)) if values.ndim > 1 else ()
            return dict(zip(self.scores, rows, strict=True)) if rows else values

        curves = {n: {k: by_output(v) for k, v in curve.items()} for n, curve in self.curve_fields.items()}
        return plain({**asdict(self.counts), "scores": self.scores, **curves})

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.shown}
        text = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
        return f"<{type(self).__name__} of {len(self)} {self.counts.noun}: {text}>"

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=400, color_system=None).print(self.table())  # as wide as it needs
        return text.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        header, sections = self._cells()
        return html_table(self._title, header, [line for lines in sections for line in lines], self.warning)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RowReport(ScoreReport):
    """Scores of n rows, and the curves behind them."""

    kept: Tensor  # shares of the rows that are kept, the surest first [100]
    risk: Tensor  # their mean loss [100], or [100, C] with a column for each output
    oracle_risk: Tensor  # mean loss of as many rows, ranked by their losses
    prediction: Any  # what was scored
    targets: Tensor  # the targets it was scored against
    ood_prediction: Any  # the prediction of the foreign rows; None: none was given
    ood_targets: Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Reliability:
    """Probabilities in bins of equal width on [0, 1]."""

    bin_rows: Tensor  # of each bin: rows, labels or detections,
    confidence: Tensor  # their mean probability,
    right: Tensor  # and the share of right ones


def risk_curves(scores: Tensor, losses: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Areas `aurc` and `aurc_oracle`, [] or [C], for losses ranked by scores, each [n] or [n, C]; then the
    curves that a report keeps: `kept` [100], `risk` and `oracle_risk` [100] or [100, C]."""
    risk, oracle = _risks(scores, losses), _risks(losses, losses)
    steps = torch.arange(1, CURVE_POINTS + 1, device=losses.device)
    last = (steps * len(losses) + CURVE_POINTS - 1) // CURVE_POINTS - 1  # whole numbers: no rounding past n
    kept = (last + 1).double() / len(losses)
    areas = {"aurc": risk.mean(0), "aurc_oracle": oracle.mean(0)}
    return areas, {"kept": kept, "risk": risk[last], "oracle_risk": oracle[last]}


def _risks(scores: Tensor, losses: Tensor) -> Tensor:
    """Selective risk, separately for each output, shape [n] or [n, C]."""
    columns = zip(scores.reshape(len(scores), -1).T, losses.reshape(len(losses), -1).T, strict=True)
    return torch.stack([selective_risk(score, loss) for score, loss in columns], dim=1).reshape(losses.shape)


def separation(marks: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """AUROC and FPR95 by "auroc_MARK" and "fpr95_MARK", from marks of familiar [n] and foreign rows [m]."""
    scores = {"auroc": auroc, "fpr95": fpr95}
    return {f"{name}_{mark}": score(*both) for mark, both in marks.items() for name, score in scores.items()}


def plain(value: Any, *, infinite: Callable[[float], Any] = str) -> Any:
    """Plain values that JSON can hold, from dataclasses and tensors; `infinite` maps NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else infinite(value)
    if is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner, infinite=infinite) for key, inner in value.items()}
    if isinstance(value, Tensor):
        value = value.tolist()
    return [plain(inner, infinite=infinite) for inner in value] if isinstance(value, list | tuple) else value
