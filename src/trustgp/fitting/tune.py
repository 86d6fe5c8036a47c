"""The best form of a model within a budget: `trustgp.tune`, and the fit that keeps to one.

`tune` draws the frontier of what a model is worth against what it takes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from rich.table import Table
from torch import Tensor, nn

from ..data.chunking import chunks
from ..data.quantities import Budget, BudgetText, parse_budget, size_text
from ..data.rows import Rows, read_rows
from ..data.trees import Inputs, as_inputs, count, leaves, map_tensors, take
from ..executors.progress import Reporter, reporting
from ..experts.posteriors import Sizes
from ..likelihoods.prediction import ClassPrediction, Prediction
from ..metrics import auroc, class_nll, gaussian_nll
from ..metrics.score_report import table_text
from ..plots import draw_frontier
from ..state.model_file import file_bytes
from ..state.model_state import FittedModel, ModelState, nbytes, predict
from ..tangents import LayerFactors, Sketch
from ..tangents.modules import has_output_selector
from ..tangents.network import as_matrix
from .calibrate import recalibrate
from .compress import check_whole, compressed, ladder
from .duration import timed
from .options import FitOptions
from .pipeline import fit_model

SCORES = {"nll": False, "corrected": False, "auroc": True}  # whether more is better
AGAIN = (Sizes(), Sizes(rows=128, gate=128, witness=128, half=True))  # what is tried of each refit
WIDTHS = (4096, 1024, 256)
CALLS = 30  # of each form that are timed
WITHIN = "within"  # in the folder of a checkpoint: experts that were limited from the start
FAR = 3.0  # how many times their distance from the mean strange rows lie
BLOCKS = 10  # of validation rows, in their order: every second one scores
LOT = 1024  # rows predicted at a time
Form = tuple[str, ModelState]  # a model that is to be tried, with its name
Best = TypeVar("Best")
Model = TypeVar("Model", bound=FittedModel)


@dataclass(frozen=True)
class Trial:
    """A model that was tried."""

    name: str  # what was done to it, in words
    nll: float  # on rows it was not calibrated on, about the network's output, per output, in nats
    corrected: float  # the same about the corrected mean; of classes the same number
    auroc: float  # how well the novelty score tells strange rows from those
    moved: float  # share of those rows that another expert answers than of the first model
    nbytes: int  # what it holds in memory
    file_bytes: int  # of the file that `save` writes
    milliseconds: float  # median of predictions for one row
    fits: bool  # whether it stays within the budget


@dataclass(frozen=True)
class Tuning(Generic[Best]):
    """What was tried, and what was chosen. Made by `tune`."""

    table: list[Trial]  # one line for each model that was tried
    best: Best = field(repr=False)  # the best within the budget, calibrated on all validation rows
    chosen: str  # its name in the table
    budget: str  # the limits, in words
    by: str  # the score that decided
    split: str  # which rows calibrated and which scored, in words
    strange: str  # what the novelty score was asked to tell apart, in words

    def __str__(self) -> str:
        return table_text(self.__rich__())

    def __rich__(self) -> Table:
        """The table, for a terminal."""
        shown = Table(title=f"Within {self.budget}, by {self.by}: {self.chosen}", title_justify="left")
        shown.caption, shown.caption_justify = f"{self.split} AUROC: {self.strange}.", "left"
        shown.add_column("model")
        for name in ("NLL", "corrected", "AUROC", "moved", "memory", "file", "ms, batch 1", "fits"):
            shown.add_column(name, justify="right")
        for row in self.table:
            figures = (f"{row.nll:.3f}", f"{row.corrected:.3f}", f"{row.auroc:.4f}")
            sizes = (size_text(row.nbytes), size_text(row.file_bytes), f"{row.milliseconds:.2f}")
            moved = f"{100 * row.moved:.1f} %"
            style = "bold" if row.name == self.chosen else None
            shown.add_row(row.name, *figures, moved, *sizes, "yes" if row.fits else "", style=style)
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
    train: Any = None,
    calls: int = CALLS,
    progress: bool = True,
) -> Tuning[Model]:
    """Try smaller forms of a model, and choose the best within a budget. The model stays as it is.

    The validation rows are cut into ten blocks in their order: five calibrate every form, the other five
    score it. The one that is chosen is then calibrated on all of them. All forms are in memory at once, since
    their predictions take turns while they are timed.

    Args:
        model: From `trustgp.fit` or `trustgp.load`.
        validation: Rows that neither the network nor the experts have seen: (inputs, targets), a Dataset or a
            DataLoader. They may be those that the model was calibrated on.
        budget: Bytes, a text like "64 MiB", a time like "2 ms" for one row, or both: "64 MiB, 2 ms". None: no
            limit.
        novel: Inputs that should count as strange; None: the scoring rows, each number moved to three times
            its distance from the rows' mean.
        by: The score that decides: "nll", "corrected" (about the corrected mean) or "auroc".
        train: The training rows; with them, models with outputs="pseudo", with sketches and of the last
            layer alone are fitted and tried, too. Takes as long as so many fits.
        calls: Predictions that are timed, of each form.
        progress: Whether to show bars in a terminal.

    Raises:
        ValueError: When nothing fits; it says what the smallest and the fastest take.
    """
    if by not in SCORES:
        raise ValueError(f'by="{by}"; allowed are {", ".join(SCORES)}.')
    if calls < 1:
        raise ValueError(f"calls={calls}; at least 1 is needed.")
    state, limits = model.state, parse_budget(budget, name="budget")
    check_whole(state)
    rows = read_rows(validation, name="validation")
    state.likelihood.check(state.shape.outputs, rows.targets, name="validation")
    calibrating, scoring = halves(rows)
    strange = made_strange(scoring) if novel is None else as_inputs(novel)
    with reporting(enabled=progress) as report:
        forms = list(_forms(state, calibrating, train, report))
        found = _tried(forms, scoring, strange, limits, calls, report)
        best = _best(found, limits, by)
        chosen = recalibrate(forms[best][1], rows, report)
    return Tuning(
        table=found,
        best=type(model)(chosen),
        chosen=found[best].name,
        budget=str(limits),
        by=by,
        split=f"{len(calibrating)} rows calibrate, {len(scoring)} score, in ten blocks by turns.",
        strange="the given rows" if novel is not None else "scoring rows, three times as far from their mean",
    )


def _forms(state: ModelState, rows: Rows, train: Any, report: Reporter) -> Iterator[Form]:
    """Every form with its name, calibrated on these rows, the model itself first."""

    def form(whole: ModelState, sizes: Sizes, known: dict) -> ModelState:
        again = sizes == Sizes()
        return recalibrate(whole, rows, report) if again else compressed(whole, sizes, rows, report, known)

    known, steps = {}, ladder(state)
    for sizes in report.track(steps, stage="making smaller", total=len(steps)):
        yield str(sizes), form(state, sizes, known)
    if train is None:
        return
    if has_output_selector(state.network):
        raise ValueError("a model that was fitted with output= cannot be fitted again here; leave train out.")
    again = _refits(state)
    for name, options in report.track(again, stage="fitting again", total=len(again)):
        refit, known = _refitted(state, train, rows, options), {}
        for sizes in AGAIN:
            yield name if sizes == Sizes() else f"{name}, {sizes}", form(refit, sizes, known)


def _refits(state: ModelState) -> list[tuple[str, dict[str, Any]]]:
    """Other models of the same rows, by name: options of a fit."""
    mixed = state.shape.outputs > 1 and state.provenance.outputs != "pseudo"
    layers = isinstance(state.provenance.tangents, LayerFactors)
    return [
        *([('outputs="pseudo"', {"outputs": "pseudo"})] if mixed else []),
        *((f"Sketch({width})", {"tangents": Sketch(width)}) for width in WIDTHS),
        *([("last layer", {"tangents": LayerFactors("last")})] if layers else []),
    ]


def _refitted(state: ModelState, train: Any, rows: Rows, options: dict[str, Any]) -> ModelState:
    same = {name: getattr(state.provenance, name) for name in ("likelihood", "outputs", "witness", "seed")}
    same |= {"validation": rows, "num_experts": len(state.mixtures[0].experts), "progress": False}
    network = copy.deepcopy(state.network)  # the model's own is frozen
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in state.provenance.names)
    return fit_model(network, train, FitOptions.parse(**{**same, **options}))


def _tried(
    forms: Sequence[Form], rows: Rows, novel: Inputs, limits: Budget, calls: int, report: Reporter
) -> list[Trial]:
    """The figures of every form."""
    said = [scores(form, rows, novel) for _, form in report.track(forms, stage="scoring", total=len(forms))]
    report.begin("timing")
    spent = times([form for _, form in forms], rows, calls=calls)
    found = []
    for (name, form), (figures, experts), seconds in zip(forms, said, spent, strict=True):
        alike = experts.shape == said[0][1].shape and form.num_experts == forms[0][1].num_experts
        moved = float((experts != said[0][1]).double().mean()) if alike else 1.0
        held = nbytes(form)
        sizes = {"nbytes": held, "file_bytes": file_bytes(form), "milliseconds": 1e3 * seconds}
        found.append(Trial(name, **figures, moved=moved, **sizes, fits=limits.allows(held, seconds)))
    return found


def halves(rows: Rows) -> tuple[Rows, Rows]:
    """Rows to calibrate on and rows to score: ten blocks in their order, every second one scores. Rows that
    follow each other in time stay together, so that few score beside their own neighbours."""
    n, least = len(rows), 2 * BLOCKS
    if n < least:
        raise ValueError(f"{n} validation rows; tuning splits them in two and needs {least} at least.")
    block = torch.arange(n) * BLOCKS // n
    return rows.some(block % 2 == 0), rows.some(block % 2 == 1)


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


def scores(state: ModelState, rows: Rows, novel: Inputs) -> tuple[dict[str, float], Tensor]:
    """NLL, corrected NLL and AUROC of a model, and the expert of each row [n] or [n, G]."""
    said, strange = (
        Prediction.cat([predict(state, take(inputs, index)) for index in chunks(count(inputs), LOT)])
        for inputs in (rows.inputs, novel)
    )
    # the novelty score is infinite where nothing is known
    familiar, novel = (torch.where(p.valid, p.score.double(), torch.inf) for p in (said, strange))
    found = {"nll": _nll(said, rows.targets), "corrected": _nll(said.corrected, rows.targets)}
    return found | {"auroc": float(auroc(familiar, novel))}, said.expert


def _nll(said: Prediction, targets: Tensor) -> float:
    targets = targets.to(said.mean.device)
    if isinstance(said, ClassPrediction):
        return float(class_nll(said.probabilities, targets.flatten().long()).mean())
    return float(gaussian_nll(as_matrix(said.mean), as_matrix(said.variance), targets).mean())


def times(states: Sequence[ModelState], rows: Rows, *, calls: int) -> list[float]:
    """Median seconds of a prediction for one row, of each model; they take turns."""
    ones = [rows.take(torch.tensor([k % len(rows)])) for k in range(calls + 1)]
    spent = [[timed(partial(predict, state, one), state.device) for state in states] for one in ones]
    # the first call of each warms up
    return torch.tensor(spent[1:], dtype=torch.float64).median(dim=0).values.tolist()


def _best(found: list[Trial], limits: Budget, by: str) -> int:
    """The best that fits; of equals the smallest."""
    fitting = [k for k, one in enumerate(found) if one.fits]
    if not fitting:
        small = min(found, key=lambda one: one.nbytes)
        quick = min(found, key=lambda one: one.milliseconds)
        raise ValueError(
            f"nothing fits within {limits}: of {len(found)} models the smallest ({small.name}) holds "
            f"{size_text(small.nbytes)} and takes {small.milliseconds:.2f} ms a row, the fastest "
            f"({quick.name}) holds {size_text(quick.nbytes)} and takes {quick.milliseconds:.2f} ms. Raise "
            "the budget, or fit with fewer experts, outputs='pseudo' or parameters='last'."
        )
    sign = -1.0 if SCORES[by] else 1.0
    return min(fitting, key=lambda k: (sign * getattr(found[k], by), found[k].nbytes))


class _Shell(FittedModel):
    """A state, as `tune` takes it."""

    def __init__(self, state: ModelState) -> None:
        super().__init__()
        self.state = state


def fit_within_budget(network: nn.Module, train: Any, options: FitOptions) -> ModelState:
    """With validation rows the best form of a model without a limit; else the fit itself keeps to it."""
    if options.budget == Budget() or options.budget.during_fit or options.validation is None:
        return fit_model(network, train, options)
    train = read_rows(train, name="train")  # once, for two fits
    options = replace(options, validation=read_rows(options.validation, name="validation"))
    best = _best_form(network, train, options)
    if best is not None:
        return best
    folder = None if options.checkpoint is None else options.checkpoint / WITHIN
    return fit_model(network, train, replace(options, checkpoint=folder))


def _best_form(network: nn.Module, train: Rows, options: FitOptions) -> ModelState | None:
    """The best form within the budget of the model without one; None: that takes too much, or none fits."""
    timed = options.budget.seconds is not None  # then there is no other way
    try:
        whole = fit_model(network, train, replace(options, budget=Budget()))
    except MemoryError:
        if timed:
            raise
        return None
    try:
        found = tune(_Shell(whole), options.validation, budget=options.budget, progress=options.progress)
        return found.best.state
    except ValueError:  # nothing fits, or there are too few validation rows to compare forms on
        if timed:
            raise
        return None
