"""How good is a prediction, all told? Its scores, to be looked at, kept as a dict, or written as a table.

Every row counts. One without a finite mean and variance costs an infinite likelihood; it is not left out.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from . import metrics
from .prediction import Prediction
from .scorecard import ALL, Counts, Scores, as_table, plain, write_csv
from .tangents.network import as_matrix

CURVE_POINTS = 100  # of a selective-risk curve that is kept; its area is taken over every row


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Evaluation(Scores):
    """The scores of n rows on average over the outputs, each output's own, and the curves behind them.

    Averages are plain means over the outputs, but for `rmse`, the root of the averaged mse, and for
    `auroc_std` and `fpr95_std`, for which a row's score is its mean std. Where outputs have different
    units, look at them one by one.

    Args:
        outputs: The scores of each output, by name.
        invalid, ood_invalid: How many rows have no finite prediction.
        levels: Promised coverage, shape [100].
        observed: Observed coverage, shape [100, C].
        kept: Shares of the rows that are kept, the surest first, shape [100].
        risk, oracle_risk: Their mean squared error, shape [100, C].
        prediction, targets: What was scored; targets of shape [n, C].
        ood_prediction, ood_targets: The foreign rows, where given.
    """

    outputs: Mapping[str, Scores]
    invalid: int
    ood_invalid: int
    levels: Tensor
    observed: Tensor
    kept: Tensor
    risk: Tensor
    oracle_risk: Tensor
    prediction: Prediction
    targets: Tensor
    ood_prediction: Prediction | None
    ood_targets: Tensor | None

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def counts(self) -> Counts:
        """Rows, and how many have no finite prediction."""
        foreign = 0 if self.ood_prediction is None else len(self.ood_prediction)
        return Counts(len(self), self.invalid, foreign, self.ood_invalid)

    @property
    def scores(self) -> dict[str, Scores]:
        """Every output's scores, the average under "all" first."""
        average = Scores(**{field.name: getattr(self, field.name) for field in fields(Scores)})
        return {ALL: average, **self.outputs}

    @cached_property
    def corrected(self) -> Evaluation:
        """The same rows, scored about the corrected mean; nothing is predicted anew."""
        return self._about("corrected")

    @cached_property
    def plain(self) -> Evaluation:
        """The same rows, scored with the paper's variance."""
        return self._about("plain")

    def table(self, *, most: int = 8) -> Table:
        """For a terminal: a line for each score.

        Args:
            most: Up to so many outputs have a column each; of more, the lowest and the highest are shown.
        """
        return as_table(self.scores, self.counts, most=most)

    def to_dict(self) -> dict[str, Any]:
        """Scores and curves as plain values that JSON can hold; what is infinite is the text "inf"."""
        return plain(
            {
                **asdict(self.counts),
                "scores": {name: asdict(found) for name, found in self.scores.items()},
                "coverage_curve": {"levels": self.levels.tolist(), "observed": self._curve(self.observed)},
                "risk_curve": {
                    "kept": self.kept.tolist(),
                    "risk": self._curve(self.risk),
                    "oracle": self._curve(self.oracle_risk),
                },
            }
        )

    def to_csv(self, path: str | Path) -> Path:
        """Write the scores, one in a line (metric, output, value), whole or not at all."""
        return write_csv(Path(path), self.scores, self.counts)

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=400, color_system=None).print(self.table())  # as wide as it needs
        return text.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        size = f"{len(self)} rows, {len(self.outputs)} outputs"
        return f"<Evaluation of {size}: nll {self.nll:.4g}, rmse {self.rmse:.4g}, 95 % {self.coverage:.3f}>"

    def _curve(self, values: Tensor) -> dict[str, list[float]]:
        """A curve [L, C] by output, the average first."""
        each = {name: values[:, c].tolist() for c, name in enumerate(self.outputs)}
        return {ALL: values.mean(1).tolist(), **each}

    def _about(self, which: str) -> Evaluation:
        inner, foreign = getattr(self.prediction, which), self.ood_prediction
        if inner is self.prediction:
            return self
        foreign = None if foreign is None else getattr(foreign, which)
        return score(inner, self.targets, foreign, self.ood_targets, names=list(self.outputs))


def score(
    prediction: Prediction,
    targets: Tensor,
    ood: Prediction | None = None,
    ood_targets: Tensor | None = None,
    *,
    names: Sequence[str],
) -> Evaluation:
    """Every score of a prediction; `trustgp.evaluate` is the door that checks what comes in.

    Args:
        prediction: Of n rows and C outputs.
        targets: Finite, shape [n, C].
        ood: Of m foreign rows.
        ood_targets: Finite, shape [m, C].
        names: Of the C outputs.
    """
    mean, variance = known(prediction)
    targets = targets.to(mean.device)
    around, excess = parts(prediction)
    levels, observed = metrics.coverage_curve(mean, around, targets, excess=excess)
    errors = metrics.squared_error(mean, targets)
    risk, oracle = _risks(variance, errors), _risks(errors, errors)
    values = {
        **_fit_to_targets(prediction, targets),
        "calibration_error": metrics.calibration_error(levels, observed),
        "rms_calibration_error": metrics.rms_calibration_error(levels, observed),
        "crps": metrics.gaussian_crps(mean, variance, targets).mean(0),
        "sharpness": metrics.interval_width(around, excess=excess).mean(0),
        "aurc": risk.mean(0),
        "aurc_oracle": oracle.mean(0),
        **({} if ood is None else _foreign_scores(variance, ood, ood_targets)),
    }
    average = {name: float(value.mean()) for name, value in values.items()}
    average |= {} if ood is None else _told_apart(prediction, ood)
    columns = [{name: float(value[c]) for name, value in values.items()} for c in range(len(names))]
    steps = torch.arange(1, CURVE_POINTS + 1, device=mean.device)
    last = (steps * len(mean) + CURVE_POINTS - 1) // CURVE_POINTS - 1  # whole numbers: no rounding past n
    return Evaluation(
        **_with_root(average),
        outputs={name: Scores(**_with_root(own)) for name, own in zip(names, columns, strict=True)},
        invalid=_count_invalid(prediction),
        ood_invalid=0 if ood is None else _count_invalid(ood),
        levels=levels,
        observed=observed,
        kept=(last + 1).double() / len(mean),
        risk=risk[last],
        oracle_risk=oracle[last],
        prediction=prediction,
        targets=targets,
        ood_prediction=ood,
        ood_targets=ood_targets,
    )


def known(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """Mean and variance, each [n, C]; the variance is infinite where either is not a finite number."""
    mean, variance = as_matrix(prediction.mean), as_matrix(prediction.variance)
    finite = torch.isfinite(mean) & torch.isfinite(variance)
    return mean, torch.where(finite, variance, torch.inf)


def parts(prediction: Prediction) -> tuple[Tensor, Tensor]:
    """What an interval is made of, each [n, C]: variance about the corrected mean, and excess.

    The first is infinite, and the second 0, where mean or variance is not a finite number.
    """
    lost = torch.isinf(known(prediction)[1])
    around = as_matrix(prediction.epistemic) + as_matrix(prediction.aleatoric)
    return torch.where(lost, torch.inf, around), torch.where(lost, 0.0, as_matrix(prediction.excess))


def _fit_to_targets(prediction: Prediction, targets: Tensor) -> dict[str, Tensor]:
    """Scores of each output, shape [C]."""
    level = torch.tensor([0.95], dtype=torch.float64)
    (mean, variance), (around, excess) = known(prediction), parts(prediction)
    return {
        "nll": metrics.gaussian_nll(mean, variance, targets).mean(0),
        "mse": metrics.squared_error(mean, targets).mean(0),
        "coverage": metrics.coverage_curve(mean, around, targets, excess=excess, levels=level)[1][0],
    }


def _with_root(values: dict[str, float]) -> dict[str, float]:
    return {**values, "rmse": values["mse"] ** 0.5}


def _risks(scores: Tensor, losses: Tensor) -> Tensor:
    """Selective risk of each output, shape [n, C]."""
    columns = zip(scores.T, losses.T, strict=True)
    return torch.stack([metrics.selective_risk(score, loss) for score, loss in columns], dim=1)


def _foreign_scores(variance: Tensor, ood: Prediction, targets: Tensor | None) -> dict[str, Tensor]:
    """How each output's std tells foreign rows apart, and how well those are predicted; shape [C]."""
    foreign = known(ood)[1]
    pairs = list(zip(variance.T, foreign.T, strict=True))
    apart = {
        "auroc_std": torch.stack([metrics.auroc(a, b) for a, b in pairs]),
        "fpr95_std": torch.stack([metrics.fpr95(a, b) for a, b in pairs]),
    }
    fit = {} if targets is None else _fit_to_targets(ood, targets.to(foreign.device))
    return apart | {f"ood_{name}": value for name, value in fit.items()}


def _told_apart(prediction: Prediction, ood: Prediction) -> dict[str, float]:
    """By one number a row: its mean std, and its novelty where the method has one."""
    marks = {"std": [known(p)[1].double().sqrt().mean(1) for p in (prediction, ood)]}
    novelty = [prediction.novelty, ood.novelty]
    if len(torch.cat(novelty).unique()) > 1:  # methods without a novelty give the same for every row
        marks["novelty"] = novelty
    found: dict[str, float] = {}
    for mark, (familiar, foreign) in marks.items():
        found[f"auroc_{mark}"] = float(metrics.auroc(familiar, foreign))
        found[f"fpr95_{mark}"] = float(metrics.fpr95(familiar, foreign))
    return found


def _count_invalid(prediction: Prediction) -> int:
    usable = torch.isfinite(known(prediction)[1]).all(dim=1) & prediction.valid
    return int((~usable).sum())
