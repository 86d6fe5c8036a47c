"""`trustgp.fit` and `trustgp.load`: the only file that knows every task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from .data.quantities import BudgetText
from .data.tensor_file import kind_of, read
from .detection.fit import fit_detector
from .detection.model import DetectionModel
from .detection.query_rows import Detection
from .detection.state import read_detector
from .executors import Executor
from .experts.gate import Division
from .experts.neighbours import Patchwork
from .experts.witness import Witness
from .fitting.options import FitOptions
from .fitting.tune import fit_within_budget
from .likelihoods import Likelihood
from .model import UncertaintyModel
from .state.model_file import DETECTOR, KIND, check_output, read_model
from .tangents import Tangents
from .tangents.modules import Output, unwrap

FITTERS = {Detection: fit_detector}
"""What is given as a likelihood and is none, and the fit it stands for: a new task is one line."""
FORMATS: dict[str, tuple[Any, Any]] = {
    KIND: (UncertaintyModel, read_model),
    DETECTOR: (DetectionModel, read_detector),
}
"""How a file begins, what it gives, and what reads the state of that."""


def fit(
    network: nn.Module,
    train: Any,
    *,
    likelihood: Likelihood | Detection | None = None,
    validation: Any = None,
    groups: Any = None,
    num_experts: int | None = None,
    tangents: Tangents | None = None,
    outputs: str | None = None,
    output: Output | None = None,
    patchwork: Patchwork | None = None,
    division: Division | None = None,
    witness: Witness | None = Witness(),  # noqa: B008 - frozen
    budget: BudgetText = None,
    memory: int | str | None = None,
    executor: Executor | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    strict: bool = False,
) -> UncertaintyModel | Any:
    """Give a trained network an honest error bar. The network, the loader and the tensors stay as they are.

    Args:
        network: Trained `torch.nn.Module`, in eval mode, that maps rows to [n] or [n, C].
        train: The rows it was trained on: (inputs, targets), a Dataset, a DataLoader, an iterable of batches.
        likelihood: What the targets are: `Regression()`, which None stands for, or `Classification()`.
            For a detector `Detection()`, which is no likelihood but the settings of a fit to its queries:
            `train` and `validation` are then pictures with `Things`; `groups`, `tangents`, `output`,
            `outputs` and `witness` are refused; a `DetectionModel` comes back.
        validation: Rows it was not trained on: the size of the error bar is fitted to them. Without them,
            `Classification()` keeps a tenth of the training rows from the experts for that.
        groups: Trajectory of each training row, shape [n]: left out together in calibration.
        num_experts: None: about 1,000 rows each.
        tangents: `LayerFactors()`, `JacobianRows(...)` or `Sketch(...)`; None: chosen from the network.
        outputs: "shared", "separate" or "pseudo": how several outputs enter the kernel. None: "shared" for
            regression, "pseudo", whose cost does not grow with the classes, for classification.
        output: Picks the tensor [n] or [n, C] from what the network returns, where that is a tuple, a dict or
            an object: `lambda result: result.logits`. None: the network returns it.
        patchwork: How many neighbours lend how many rows; None: `Patchwork(neighbours=4, fraction=0.1)`.
        division: How the rows are divided; None: `Division()`.
        witness: A second opinion from the inputs themselves, where they are vectors; None: without.
        budget: The most the fitted model may hold: bytes, or a text like "64 MiB". Or the most time that a
            prediction for one row may take on this machine, "2 ms", or both, "64 MiB, 2 ms". With validation
            rows the model is fitted without a limit, where the memory allows it, and `trustgp.tune` finds its
            best form within the budget; else each expert holds the rows that say most.
        memory: The most the fit itself may need; None: what is free.
        executor: Where experts are solved: `Threads(...)`, `executors.Processes(...)`, `executors.Ray(...)`;
            None: threads, one per core (two on a GPU), or a single one where the memory is short.
        device: Where to work; None: where the network is.
        seed: The same seed gives the same model.
        progress: Whether to show bars in a terminal.
        checkpoint: A folder; finished experts are kept there, and the same call goes on after a crash.
        strict: Raise when an expert cannot be solved, instead of letting it answer with the prior.

    Returns:
        An `UncertaintyModel`; of a detector a `DetectionModel`.
    """
    given = dict(locals())  # all that was passed, by name
    network, train = given.pop("network"), given.pop("train")
    for kind, fitter in FITTERS.items():
        if isinstance(likelihood, kind):
            return fitter(network, train, given.pop("likelihood"), **given)
    return UncertaintyModel(fit_within_budget(network, train, FitOptions.parse(**given)))


def load(
    path: str | Path,
    network: nn.Module,
    *,
    output: Output | None = None,
    device: str | torch.device | None = None,
) -> UncertaintyModel | Any:
    """Read an `UncertaintyModel` or `DetectionModel` that was saved, for the network it was fitted to.

    Args:
        path: The file.
        network: The same trained network; other weights are refused.
        output: What picks its output, where the model was fitted with one: a file does not hold functions.
        device: Where to put the model; None: where the network is.
    """
    kind = kind_of(Path(path))
    kind = kind if kind in FORMATS else KIND  # whose reader says what is wrong
    text, table = read(Path(path), kind=kind)
    check_output(text.get("picked", False), output, str(path))
    network = unwrap(network)
    shell, reader = FORMATS[kind]
    chosen = {} if output is None else {"output": output}
    model = shell(reader(text, table, network, where=str(path), **chosen))
    target = next(network.parameters()).device if device is None else torch.device(device)
    return model.to(target)
