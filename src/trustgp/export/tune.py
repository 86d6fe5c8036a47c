"""`trustgp.tune`: what forms of a model are worth against what they take, and the best within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from rich.table import Table
from torch import Tensor

from ..data.chunking import chunks
from ..data.quantities import Budget, BudgetText, parse_budget, size_text
from ..data.rows import Rows, Unpack
from ..data.trees import Inputs, count, leaves, map_tensors, take
from ..executors.progress import Reporter, reporting
from ..fitting.budget import BudgetError
from ..fitting.calibrate import recalibrate, recalibrate_forms
from ..fitting.compress import RANKS, ModelForm, reduced, warn_without_threshold
from ..likelihoods.prediction import ClassPrediction, Prediction
from ..metrics import auroc, class_nll, gaussian_nll
from ..metrics.score_report import table_text
from ..plots import draw_frontier
from ..state.model_file import file_bytes
from ..state.model_state import FittedModel, ModelState, inputs_of, nbytes, predict_alike, read_like
from ..state.support import require_support
from ..tangents.network import as_matrix
from .serving import CALLS, check_runtime, times

SCORES = {"nll": False, "corrected": False, "auroc": True}  # whether more is better
NOVELTY = 0.01  # AUROC that a chosen form may lose to the best that fits
FAR = 3.0  # how many times their distance from the mean strange rows lie
BLOCKS = 10  # of validation rows, in their order: every second one scores
LOT = 1024  # rows predicted at a time
Best = TypeVar("Best")
Model = TypeVar("Model", bound=FittedModel)


@dataclass(frozen=True)
class Trial:
    """A form that was tried."""

    name: str  # what was done to the model, in words
    nll: float  # on rows it was not calibrated on, about the network's output, per output, in nats
    corrected: float  # the same about the corrected mean; of classes the same number
    auroc: float  # how well the novelty score tells strange rows from those
    nbytes: int  # what it holds in memory
    file_bytes: int  # of the file that `save` writes
    milliseconds: float | None  # median of a thread's time for one row; None: it is too large to be timed
    fits: bool  # whether it stays within the budget


@dataclass(frozen=True)
class Tuning(Generic[Best]):
    """What was tried, and what was chosen. Made by `tune`."""

    table: list[Trial]  # one line for each form that was tried
    best: Best = field(repr=False)  # the best within the budget, calibrated on all validation rows
    chosen: str  # its name in the table
    budget: str  # the limits, in words
    by: str  # the score that decided
    runtime: str  # that times were measured in
    split: str  # which rows calibrated and which scored, in words
    strange: str  # what the novelty score was asked to tell apart, in words

    def __str__(self) -> str:
        return table_text(self.__rich__())

    def __rich__(self) -> Table:
        """The table, for a terminal."""
        shown = Table(title=f"Within {self.budget}, by {self.by}: {self.chosen}", title_justify="left")
        shown.caption, shown.caption_justify = f"{self.split} AUROC: {self.strange}.", "left"
        shown.add_column("model")
        for name in ("NLL", "corrected", "AUROC", "memory", "file", f"ms, {self.runtime}", "fits"):
            shown.add_column(name, justify="right")
        for row in self.table:
            figures = (f"{row.nll:.3f}", f"{row.corrected:.3f}", f"{row.auroc:.4f}")
            spent = "" if row.milliseconds is None else f"{row.milliseconds:.2f}"
            sizes = (size_text(row.nbytes), size_text(row.file_bytes), spent)
            style = "bold" if row.name == self.chosen else None
            shown.add_row(row.name, *figures, *sizes, "yes" if row.fits else "", style=style)
        return shown

    def plot(self, path: str | Path | None = None, *, dpi: int = 120) -> Any:
        """A figure: NLL and AUROC against memory and time; see `trustgp.plots`. Needs `trustgp[plots]`."""
        return draw_frontier(self.table, path, chosen=self.chosen, dpi=dpi)


def tune(
    model: Model,
    validation: Any,
    *,
    budget: BudgetText = None,
    novel: Any = None,
    by: str = "nll",
    runtime: str = "eager",
    calls: int = CALLS,
    progress: bool = True,
    unpack: Unpack | None = None,
) -> Tuning[Model]:
    """Try smaller forms of a model, and choose the best within a budget. The model stays as it is.

    The forms are those of `compress`: fewer directions in each expert, and no witness. The validation rows
    are cut into ten blocks in their order: five calibrate every form, the other five score it. Of the forms
    that fit, those whose AUROC is more than 0.01 below the best are left out; of the others the best score
    decides. The one that is chosen is then calibrated on all validation rows.

    Args:
        model: From `trustgp.fit` or `trustgp.load`.
        validation: Rows that neither the network nor the experts have seen: (inputs, targets), a Dataset or a
            DataLoader. They may be those that the model was calibrated on.
        budget: Bytes, a text like "64 MiB", a time like "2 ms" for one row, or both: "64 MiB, 2 ms". None: no
            limit.
        novel: Inputs that should count as strange; None: the scoring rows, each number moved to three times
            its distance from the rows' mean.
        by: The score that decides: "nll", "corrected" (about the corrected mean) or "auroc".
        runtime: What times are measured in, on one thread: "eager" (`model.predict`), "onnx" (onnxruntime) or
            "compiled" (`trustgp.compile`, a minute for each form).
        calls: Predictions that are timed, of each form.
        progress: Whether to show bars in a terminal.
        unpack: As for `fit`, of the validation rows.

    Raises:
        BudgetError: When nothing fits; it says what the smallest and the fastest take.
    """
    require_support(model, "tune")
    if by not in SCORES:
        raise ValueError(f'by="{by}"; allowed are {", ".join(SCORES)}.')
    if calls < 1:
        raise ValueError(f"calls={calls}; at least 1 is needed.")
    check_runtime(runtime, timed=True)
    state, limits = model.state, parse_budget(budget, name="budget")
    rows = read_like(state, validation, name="validation", unpack=unpack)
    state.likelihood.check(state.shape.outputs, rows.targets, name="validation")
    calibrating, scoring = halves(rows)
    strange = made_strange(scoring) if novel is None else inputs_of(state, novel)
    with reporting(enabled=progress) as report:
        forms = forms_of(state)
        states = recalibrate_forms(list(forms.values()), calibrating, report)
        said = scores(states, scoring, strange, report)
        report.begin("timing")
        spent = _timed(states, scoring, limits, calls, runtime)
        found = [_trial(*one, limits) for one in zip(map(str, forms), states, said, spent, strict=True)]
        best = _best(found, limits, by, model)
        # half of the rows may have been too few for the threshold
        chosen = recalibrate(replace(states[best], threshold=state.threshold), rows, report)
    warn_without_threshold(state, chosen)
    return Tuning(
        table=found,
        best=type(model)(chosen),
        chosen=found[best].name,
        budget=str(limits),
        by=by,
        runtime=runtime,
        split=f"{len(calibrating)} rows calibrate, {len(scoring)} score, in ten blocks by turns.",
        strange="the given rows" if novel is not None else "scoring rows, three times as far from their mean",
    )


def forms_of(state: ModelState) -> dict[ModelForm, ModelState]:
    """Forms of a model, the largest first: itself, with fewer directions, and each without the witness."""
    found = {ModelForm(): state}
    found |= {ModelForm(rank): reduced(state, ModelForm(rank)) for rank in RANKS if rank < state.directions}
    if state.witness is not None:
        bare = [ModelForm(form.rank, False) for form in found]
        found |= {form: reduced(small, form) for form, small in zip(bare, found.values(), strict=True)}
    return {form: replace(small, threshold=state.threshold) for form, small in found.items()}


def _timed(
    states: Sequence[ModelState], rows: Rows, limits: Budget, calls: int, runtime: str
) -> list[float | None]:
    """Milliseconds of each form for one row; None: its size alone is beyond the budget."""
    small = [k for k, state in enumerate(states) if limits.allows(nbytes(state))]
    spent: list[float | None] = [None] * len(states)
    if small:
        found = times([states[k] for k in small], rows, calls=calls, runtime=runtime)
        for k, seconds in zip(small, found, strict=True):
            spent[k] = 1e3 * seconds
    return spent


def _trial(
    name: str, state: ModelState, figures: dict[str, float], spent: float | None, limits: Budget
) -> Trial:
    held, seconds = nbytes(state), None if spent is None else 1e-3 * spent
    return Trial(
        name,
        **figures,
        nbytes=held,
        file_bytes=file_bytes(state),
        milliseconds=spent,
        fits=limits.allows(held, seconds),
    )


def halves(rows: Rows) -> tuple[Rows, Rows]:
    """Rows to calibrate on and rows to score: ten blocks in their order, every second one scores. Rows that
    follow each other in time stay together, so that few score beside their own neighbours."""
    n, least = len(rows), 2 * BLOCKS
    if n < least:
        raise ValueError(f"{n} validation rows; tuning splits them in two and needs {least} at least.")
    block = torch.arange(n) * BLOCKS // n
    return rows.subset(block % 2 == 0), rows.subset(block % 2 == 1)


def made_strange(rows: Rows) -> Inputs:
    """The same inputs, each number three times as far from its mean over the rows; whole numbers stay."""
    inputs = rows.take(torch.arange(len(rows)))
    if not any(leaf.is_floating_point() for leaf in leaves(inputs)):
        raise ValueError("no input is a real number, so none can be moved away; pass novel=, strange rows.")

    def away(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        mean = leaf.double().mean(dim=0)
        return (mean + FAR * (leaf.double() - mean)).to(leaf.dtype)

    return map_tensors(away, inputs)


def scores(
    states: Sequence[ModelState], rows: Rows, novel: Inputs, report: Reporter
) -> list[dict[str, float]]:
    """NLL, corrected NLL and AUROC of each form of a model."""
    said, strange = (_predictions(states, inputs, report) for inputs in (rows.inputs, novel))
    found = []
    for known, other in zip(said, strange, strict=True):
        # the novelty score is infinite where nothing is known
        familiar, far = (torch.where(p.valid, p.score.double(), torch.inf) for p in (known, other))
        nll = {"nll": _nll(known, rows.targets), "corrected": _nll(known.corrected, rows.targets)}
        found.append(nll | {"auroc": float(auroc(familiar, far))})
    return found


def _predictions(states: Sequence[ModelState], inputs: Inputs, report: Reporter) -> list[Prediction]:
    """Of each form, for all rows: features are made once for all."""
    parts = list(chunks(count(inputs), LOT))
    tracked = report.track(parts, stage="scoring", total=len(parts), rows=len)
    with torch.no_grad():
        lots = [predict_alike(states, take(inputs, index)) for index in tracked]
    return [Prediction.cat(list(lot)) for lot in zip(*lots, strict=True)]


def _nll(said: Prediction, targets: Tensor) -> float:
    targets = targets.to(said.mean.device)
    if isinstance(said, ClassPrediction):
        return float(class_nll(said.probabilities, targets.flatten().long()).mean())
    return float(gaussian_nll(as_matrix(said.mean), as_matrix(said.variance), targets).mean())


def _best(found: list[Trial], limits: Budget, by: str, model: Any) -> int:
    """The best that fits, of those that tell strange rows nearly as well as any that fits; of equals the
    smallest."""
    fitting = [k for k, one in enumerate(found) if one.fits]
    if not fitting:
        raise BudgetError(f"nothing fits within {limits}: of {len(found)} forms {_nearest(found)}.", model)
    least = max(found[k].auroc for k in fitting) - NOVELTY
    sign = -1.0 if SCORES[by] else 1.0
    told = [k for k in fitting if found[k].auroc >= least]
    return min(told, key=lambda k: (sign * getattr(found[k], by), found[k].nbytes))


def _nearest(found: list[Trial]) -> str:
    """What the smallest form takes, and the fastest of those that were timed."""
    small = min(found, key=lambda one: one.nbytes)
    said = f"the smallest ({small.name}) holds {size_text(small.nbytes)}"
    timed = [(one.milliseconds, one.name) for one in found if one.milliseconds is not None]
    if timed:
        said += ", the fastest ({1}) takes {0:.2f} ms a row".format(*min(timed))
    return f"{said}. Raise the budget, or fit with a size: fit(budget=...) chooses shorter sketches, too"
