"""How are scores shown? As a table for a terminal, as plain values for JSON, as lines for a spreadsheet."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from .safefile import temporary_beside

ALL = "all"  # how the average over the outputs is called


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Of one output, or of all; those of foreign rows are None where there are no such rows.

    Args:
        nll: Mean negative log likelihood, in nats.
        mse, rmse: Mean squared error, and its root.
        crps: Mean continuous ranked probability score.
        coverage: Share of targets inside the 95 % interval.
        calibration_error, rms_calibration_error: Mean absolute, and root mean squared, difference of the
            coverage curve from what was promised.
        sharpness: Mean width of the 95 % interval.
        aurc: Area under the selective-risk curve: the mean squared error of the rows with the smallest std,
            averaged over how many are kept. It lies near the mse where std says nothing about the errors.
        aurc_oracle: The same, had the rows been ranked by their errors: the lowest there is.
        auroc_std, fpr95_std: How well std tells foreign rows from these.
        auroc_novelty, fpr95_novelty: The same by novelty; None where the method has none, and for a single
            output, since novelty belongs to the row.
        ood_nll, ood_mse, ood_coverage: Of the foreign rows; None without their targets.
    """

    nll: float
    mse: float
    rmse: float
    crps: float
    coverage: float
    calibration_error: float
    rms_calibration_error: float
    sharpness: float
    aurc: float
    aurc_oracle: float
    auroc_std: float | None = None
    fpr95_std: float | None = None
    auroc_novelty: float | None = None
    fpr95_novelty: float | None = None
    ood_nll: float | None = None
    ood_mse: float | None = None
    ood_coverage: float | None = None


class Line(NamedTuple):
    """Of a table: what a score is called, what is good, and whether it is a share."""

    title: str
    good: str
    share: bool = False


_LINES = {
    "nll": Line("NLL", "low"),
    "crps": Line("CRPS", "low"),
    "rmse": Line("RMSE", "low"),
    "mse": Line("MSE", "low"),
    "aurc": Line("AURC, rows ranked by std", "below MSE"),
    "aurc_oracle": Line("AURC, ranked by the errors", ""),
    "coverage": Line("inside the 95 % interval", "95 %", share=True),
    "sharpness": Line("width of that interval", "low"),
    "calibration_error": Line("calibration error", "0", share=True),
    "rms_calibration_error": Line("calibration error, rms", "0", share=True),
}
_FOREIGN_LINES = {
    "auroc_std": Line("AUROC by std", "1"),
    "fpr95_std": Line("FPR95 by std", "0 %", share=True),
    "auroc_novelty": Line("AUROC by novelty", "1"),
    "fpr95_novelty": Line("FPR95 by novelty", "0 %", share=True),
    "ood_nll": Line("foreign rows: NLL", "low"),
    "ood_mse": Line("foreign rows: MSE", "low"),
    "ood_coverage": Line("foreign rows: inside 95 %", "95 %", share=True),
}


@dataclass(frozen=True)
class Counts:
    """Rows, and how many of them have no finite prediction."""

    rows: int
    invalid: int = 0
    ood_rows: int = 0
    ood_invalid: int = 0


def as_table(
    scores: Mapping[str, Any],
    counts: Counts,
    *,
    most: int = 8,
    lines: Sequence[Mapping[str, Line]] = (_LINES, _FOREIGN_LINES),
    what: str | None = None,
) -> Table:
    """A line for each score, a column for each output.

    Args:
        scores: By output, the average among them as "all".
        counts: Of the rows.
        most: Outputs that have a column each; of more, the lowest and the highest are shown.
        lines: Sections of scores, by the name of their field.
        what: There is of each row, for the title; None: the outputs, counted.
    """
    each = {name: found for name, found in scores.items() if name != ALL}
    ranged = len(each) > most
    columns = ["lowest", "highest"] if ranged else list(each) if len(each) > 1 else []
    table = Table(title=_title(counts, len(each), what), title_justify="left", caption_justify="left")
    table.add_column("score")
    table.add_column("good is", style="dim")
    for name in (next(iter(each)) if len(each) == 1 else ALL, *columns):
        table.add_column(Text(name), justify="right")  # a user's name is no markup
    for section in lines:
        for key, line in section.items():
            average = getattr(scores[ALL], key)
            if average is None:
                continue
            values = [getattr(found, key) for found in each.values()]
            shown = _range(values) if ranged else values if columns else []
            table.add_row(line.title, line.good, *(_cell(v, share=line.share) for v in (average, *shown)))
        table.add_section()
    if counts.invalid or counts.ood_invalid:
        table.caption = _warning(counts)
    return table


def plain(value: Any) -> Any:
    """The same as JSON can hold it: "inf" for what is infinite, "nan" for what is no number."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def write_csv(
    path: Path,
    scores: Mapping[str, Any],
    counts: Counts,
    *,
    lines: Sequence[Mapping[str, Line]] = (_LINES, _FOREIGN_LINES),
) -> Path:
    """Lines of metric, output, value, in full precision, written whole or not at all.

    Args:
        path: The file; what stands there is replaced.
        scores: By output, the average among them as "all".
        counts: Of the rows.
        lines: Sections of scores, by the name of their field.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", "output", "value"])
    writer.writerows([name, ALL, count] for name, count in asdict(counts).items())
    for key in (name for section in lines for name in section):
        values = {name: getattr(found, key) for name, found in scores.items()}
        writer.writerows([key, name, repr(value)] for name, value in values.items() if value is not None)
    with temporary_beside(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8", newline="")
        os.replace(temporary, path)
    return path


def _title(counts: Counts, outputs: int, what: str | None) -> str:
    what = f"{outputs} {'output' if outputs == 1 else 'outputs'}" if what is None else what
    title = f"{counts.rows:,} rows, {what}"
    return title + (f", against {counts.ood_rows:,} foreign rows" if counts.ood_rows else "")


def _warning(counts: Counts) -> str:
    parts = [
        f"{bad:,} of {rows:,} {kind}"
        for bad, rows, kind in (
            (counts.invalid, counts.rows, "rows"),
            (counts.ood_invalid, counts.ood_rows, "foreign rows"),
        )
        if bad
    ]
    return f"No finite prediction for {' and '.join(parts)}: each costs an infinite NLL."


def _range(values: list[float | None]) -> list[float | None]:
    known = [value for value in values if value is not None]
    return [min(known), max(known)] if known else [None, None]


def _cell(value: float | None, *, share: bool) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if share else f"{value:.4g}"
