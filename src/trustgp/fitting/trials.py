"""What a model is worth and what it takes: likelihood, novelty, bytes and milliseconds, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ..data.chunking import chunks
from ..data.quantities import Budget
from ..data.rows import Rows
from ..data.trees import Inputs, leaves, map_tensors, take
from ..experts.shrink import Sizes
from ..likelihoods.class_prediction import ClassPrediction
from ..likelihoods.prediction import Prediction
from ..metrics import auroc, class_nll, gaussian_nll
from ..state.model_file import file_bytes
from ..state.model_state import ModelState
from ..state.predict import nbytes, predict
from ..tangents.network import as_matrix
from .plan import timed

# Rows of an expert, rows of the gate, directions of a cell of the witness: each in two precisions.
STEPS = (
    (512, 256, 512),
    (256, 128, 512),
    (128, 128, 512),
    (128, 64, 128),
    (64, 64, 64),
    (32, 64, 32),
    (16, 32, 0),
)
RANK = 128  # directions of an expert that keeps all its rows
FAR = 3.0  # how many times their distance from the mean strange rows lie
BLOCKS = 10  # of validation rows, in their order: every second one scores
LOT = 1024  # rows predicted at a time


@dataclass(frozen=True)
class Trial:
    """A model that was tried.

    Args:
        name: What was done to it, in words.
        nll: On rows it was not calibrated on, about the network's output, per output, in nats.
        corrected: The same about the corrected mean; of classes the same number.
        auroc: How well the novelty score tells strange rows from those.
        moved: Share of those rows that another expert answers than of the first model.
        nbytes: What it holds in memory.
        file_bytes: Of the file that `save` writes.
        milliseconds: Median of predictions for one row.
        fits: Whether it stays within the budget.
    """

    name: str
    nll: float
    corrected: float
    auroc: float
    moved: float
    nbytes: int
    file_bytes: int
    milliseconds: float
    fits: bool


def ladder(state: ModelState) -> list[Sizes]:
    """Settings that make this model smaller, each in its own way, the largest first."""
    wanted = [Sizes(), Sizes(half=True), Sizes(rank=RANK)]
    for rows, gate, witness in STEPS:
        both = [Sizes(rows=rows, gate=gate, witness=witness, half=half) for half in (False, True)]
        wanted += both
    most = _most(state)
    found: dict[Sizes, None] = {}
    for sizes in wanted:
        limits = {
            name: value
            for name, largest in most.items()
            if (value := getattr(sizes, name)) is not None and value < largest
        }
        found[Sizes(half=sizes.half, **limits)] = None
    return list(found)


def _most(state: ModelState) -> dict[str, int]:
    """The largest number of each kind that the model holds; a limit above says nothing."""
    rows = [expert.posterior.size for mixture in state.mixtures for expert in mixture.experts]
    gates = [m.gate.projection for m in state.mixtures]
    subsets = [gate.size for gate in gates if gate is not None]
    cells = [] if state.witness is None else [len(cell.rows) for cell in state.witness.cells]
    found = {"rows": rows, "rank": rows, "gate": subsets, "witness": cells}
    return {name: max(sizes, default=0) for name, sizes in found.items()}


def halves(rows: Rows) -> tuple[Rows, Rows]:
    """Rows to calibrate on and rows to score: ten blocks in their order, every second one scores.

    Rows that follow each other in time stay together, so that few score beside their own neighbours.
    """
    if len(rows) < 2 * BLOCKS:
        raise ValueError(
            f"{len(rows)} validation rows; tuning splits them in two and needs {2 * BLOCKS} at least."
        )
    block = torch.arange(len(rows)) * BLOCKS // len(rows)
    parts = [(block % 2 == k).nonzero().flatten() for k in (0, 1)]
    one, other = (replace(rows, inputs=rows.take(p), targets=rows.targets[p]) for p in parts)
    return one, other


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
    said = _predicted(state, rows.inputs, len(rows))
    strange = _predicted(state, novel, len(leaves(novel)[0]))
    found = {
        "nll": _nll(said, rows.targets),
        "corrected": _nll(said.corrected, rows.targets),
        "auroc": float(auroc(_score(said), _score(strange))),
    }
    return found, said.expert


def _predicted(state: ModelState, inputs: Inputs, count: int) -> Prediction:
    return Prediction.cat([predict(state, take(inputs, index)) for index in chunks(count, LOT)])


def _nll(said: Prediction, targets: Tensor) -> float:
    targets = targets.to(said.mean.device)
    if isinstance(said, ClassPrediction):
        return float(class_nll(said.probabilities, targets.flatten().long()).mean())
    mean, variance = as_matrix(said.mean), as_matrix(said.variance)
    return float(gaussian_nll(mean, variance, targets).mean())


def _score(said: Prediction) -> Tensor:
    """The novelty score; infinite where nothing is known."""
    return torch.where(said.valid, said.score.double(), torch.inf)


def times(states: Sequence[ModelState], rows: Rows, *, calls: int) -> list[float]:
    """Median seconds of a prediction for one row, of each model; they take turns."""
    spent: list[list[float]] = [[] for _ in states]
    ones = [rows.take(torch.tensor([k % len(rows)])) for k in range(calls + 1)]
    for turn, one in enumerate(ones):
        for state, found in zip(states, spent, strict=True):
            seconds = timed(lambda state=state, one=one: predict(state, one), state.device)
            if turn:  # the first call of each warms up
                found.append(seconds)
    return [float(torch.tensor(found, dtype=torch.float64).median()) for found in spent]


def trial(
    name: str, state: ModelState, found: dict[str, float], moved: float, seconds: float, budget: Budget
) -> Trial:
    """The figures of one model together.

    Args:
        name: In words.
        state: The model.
        found: NLL, corrected NLL and AUROC.
        moved: Share of rows that another expert answers.
        seconds: Of a prediction for one row.
        budget: What it may take.
    """
    held = nbytes(state)
    small = budget.size is None or held <= budget.size
    quick = budget.seconds is None or seconds <= budget.seconds
    return Trial(
        name=name,
        **found,
        moved=moved,
        nbytes=held,
        file_bytes=file_bytes(state),
        milliseconds=1e3 * seconds,
        fits=small and quick,
    )


COLUMNS = tuple(field.name for field in fields(Trial))
