"""`trustgp.fit`, `trustgp.paper` and `trustgp.load`; the only module that depends on every task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .data.batches import Unpack
from .data.quantities import BudgetText
from .data.rows import DenseOutputError
from .data.tensor_file import read_file
from .data.torch_modes import cpu_default, plain_modes
from .data.user_warnings import explain_call
from .detection.model import DetectionModel
from .detection.state import read_detector
from .executors import Executor
from .experts.gate import Division
from .experts.neighbours import Patchwork
from .experts.witness import Witness
from .fitting.budget import BudgetError
from .fitting.dense import fit_dense
from .fitting.options import LIKELIHOODS, FitOptions, as_object
from .fitting.pipeline import fit_model
from .likelihoods import Classification, Likelihood, PaperClassification, PaperRegression, Regression
from .model import DenseModel, UncertaintyModel
from .state.dense import read_dense
from .state.model_file import DETECTOR, KIND, check_output, read_model
from .tangents import JacobianRows, Tangents
from .tangents.modules import check_kind, unwrap
from .tangents.outputs import Output, as_network, members_of

DENSE = "dense"  # key in the metadata of a model whose outputs have positions
# by the kind of a file: the class of its model, and the reader of its state
FORMATS: dict[str, Any] = {KIND: (UncertaintyModel, read_model), DETECTOR: (DetectionModel, read_detector)}
FORMATS[DENSE] = (DenseModel, read_dense)

# Options of `fit` as in the paper.
PAPER: dict[str, Any] = {"outputs": "separate", "patchwork": Patchwork(neighbours=2, fraction=1.0)}
PAPER |= {"witness": None, "budget": "none"}
HINTS = {
    "sample_weight": " Weights of the training rows are weights=, positive numbers [n].",
    "output": " What selects the network's output is select=, a function.",
}
PAPER_KINDS = {Regression: PaperRegression, Classification: PaperClassification}


@explain_call("fit(network, (inputs, targets))", hints=HINTS)
def fit(
    network: nn.Module | Sequence[nn.Module],
    train: Any,
    *,
    likelihood: Likelihood | type | str | None = None,
    validation: Any = None,
    groups: Any = None,
    weights: Any = None,
    num_experts: int | None = None,
    tangents: Tangents | type | str | Sequence[str] | None = None,
    outputs: str | None = None,
    select: Output | None = None,
    patchwork: Patchwork | None = None,
    division: Division | None = None,
    witness: Witness | bool | None = Witness(),  # noqa: B008 - frozen
    budget: BudgetText = None,
    memory: int | str | None = None,
    executor: Executor | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    strict: bool = False,
    unpack: Unpack | None = None,
) -> UncertaintyModel:
    """Give a trained network an honest error bar. Network, loader and tensors are not modified.

    Args:
        network: Trained `torch.nn.Module` in eval mode that maps rows to [n], [n, C] or to positions,
            such as [n, T, C] or [n, C, H, W]; or a list of several with outputs [n] or [n, C]; their mean (of
            probabilities for `Classification()`) is the prediction, the variance between them is known, and
            gradients are those of the first. A trained perceptron of scikit-learn is accepted as well;
            and, without gradients, anything that maps rows [n, d] to outputs: a function, an estimator with
            `predict`, a session of onnxruntime.
        train: Training rows: (inputs, targets), a Dataset, a DataLoader or an iterable of batches. Inputs are
            tensors, arrays or data frames, or tuples or dicts of them, as the network takes them.
        likelihood: Observation model: `Regression()` or `Classification()`, or its class or name. Default:
            `Regression()`. Detectors: `trustgp.detection.fit`.
        validation: Held-out rows that calibrate the error bar, in any form that `train` has. Without them,
            `Classification()` holds out a tenth of the training rows.
        groups: Trajectory label of each training row, shape [n]; a trajectory is left out as a whole.
        weights: Positive numbers, one for each training row [n]: a row of weight w, over the mean weight, has
            the noise variance sigma^2 / w; for classes and labels it counts w times. The division into
            experts ignores weights; the witness leaves out rows with less than a tenth of the mean weight.
        num_experts: Default: about 250 rows per expert, at most 48 experts; exact experts: 1,000 rows each.
        tangents: `Sketch(...)`, `JacobianRows(...)` or `LayerFactors()`. Default: gradients, or a sketch of
            512 numbers if there are more; with budget="none" exact features where they are cheap. "last" or
            names of parameters restrict the default to the last layer or to these parameters.
        outputs: How several outputs enter the kernel: "shared", "separate" or "pseudo". Default: "pseudo",
            whose cost does not grow with the outputs; with budget="none" "shared" for regression.
        select: Selects the tensor [n] or [n, C] from what the network returns: `lambda r: r.logits`; or, from
            a network that states the variance of its prediction, both: `lambda r: (r.mean, r.variance)`.
        patchwork: How many neighbours an expert has, and how many rows each lends. Default: `Patchwork()`.
        division: How the rows are divided among the experts. Default: `Division()`.
        witness: A nearest-neighbour GP on the inputs, if they are vectors; None or False: no witness.
        budget: Maximum size of the fitted model: bytes, or a text like "64 MiB"; "none": exact experts of any
            size. Sketches, experts and directions are chosen before the fit (`LayerFactors()` is refused).
        memory: Maximum memory of the fit itself. Default: the free memory.
        executor: `Threads(...)` or `executors.Ray(...)`. Default: a thread per core (two on a GPU), or a
            single one if memory is short.
        device: Where to compute. Default: the network's device.
        seed: The same seed gives the same model.
        progress: Show progress bars in a terminal.
        checkpoint: Folder for finished experts; the same call resumes after a crash.
        strict: Raise if an expert cannot be solved, instead of predicting its prior.
        unpack: `lambda batch: (inputs, targets)` for batches that are dicts, triples or anything else; a pair
            that is neither a Dataset nor a loader is used as it is.

    Returns:
        An `UncertaintyModel`; for outputs with positions a `DenseModel`.

    Raises:
        BudgetError: If no model satisfies the budget; after the fit it carries the fitted `model`.

    Examples:
        >>> model = trustgp.fit(network, train, validation=held_out, progress=False)
        >>> p = model.predict(inputs)
        >>> lower, upper = p.interval(0.95)
    """
    given = dict(locals())  # every argument, by name
    network, train = given.pop("network"), given.pop("train")
    with plain_modes():
        options = FitOptions.parse(**given)
        try:
            return UncertaintyModel(fit_model(network, train, options))
        except DenseOutputError as error:
            return DenseModel(fit_dense(network, error.rows, options))
        except BudgetError as error:
            error.model = None if error.model is None else UncertaintyModel(error.model)
            raise


def paper(
    network: nn.Module | Sequence[nn.Module],
    train: Any,
    *,
    likelihood: Likelihood | type | str | None = None,
    pruning: tuple[int, int] | None = (20_000, 1_000),
    **options: Any,
) -> UncertaintyModel:
    """Fit as in the paper (Lee et al., CoRL 2021); `predict(...).variance` is the paper's variance.

    Each output has its own kernel, gate and experts, whose scale and noise maximise the evidence. Each of two
    neighbours lends an expert as many rows as an average expert has, the most uncertain first. The variance
    is that of the posterior plus the noise, not scaled by left-out or held-out rows; there is no witness.

    Args:
        network: As for `fit`.
        train: As for `fit`.
        likelihood: Default: `Regression()`. `Classification()` divides logits by T = sqrt(1 + pi/8 v).
        pruning: Numbers of parameters to keep: for all experts those that matter most to the loss (Taylor),
            and of these, for each expert, those with the largest gradients; all if there are fewer. None: the
            exact gradients, or the sketch, that `fit` uses by default.
        options: Other options of `fit`; validation rows only serve `model.threshold`.

    Examples:
        >>> p = trustgp.paper(network, train, progress=False).predict(inputs)
    """
    if isinstance(likelihood, (str, type)):
        likelihood = as_object("likelihood", likelihood, LIKELIHOODS, Likelihood)
    kind = PAPER_KINDS.get(Regression if likelihood is None else type(likelihood))
    if kind is None:
        raise ValueError(f"likelihood={likelihood!r}; the paper has Regression() and Classification().")
    if pruning is not None:
        first = members_of(as_network(network, kind().combined))[0]
        total = sum(value.numel() for value in first.parameters())
        keep, each = (most if total > most else None for most in pruning)
        options = {"tangents": JacobianRows(keep=keep, rank="taylor", keep_per_expert=each), **options}
    return fit(network, train, likelihood=kind(), **{**PAPER, **options})


@cpu_default()
def load(
    path: str | Path,
    network: nn.Module | Sequence[nn.Module],
    *,
    select: Output | None = None,
    device: str | torch.device | None = None,
) -> UncertaintyModel | Any:
    """Read a saved `UncertaintyModel` or `DetectionModel` for the network that it was fitted to.

    Args:
        path: The file.
        network: The same trained network, or list of them; other weights are refused.
        select: The `select` function of the fit, if it had one: a file does not hold functions.
        device: Where to put the model; None: where the network is.

    Examples:
        >>> model.save("arm.trustgp")
        >>> model = trustgp.load("arm.trustgp", network)
    """
    kind, text, table, _ = read_file(Path(path), FORMATS)
    check_output(text.get("picked", False), select, str(path))
    (shell, reader), network = FORMATS[DENSE if DENSE in text else kind], unwrap(network)
    if kind == DETECTOR:
        check_kind(network, "detector")
    chosen = {} if select is None else {"select": select}
    model = shell(reader(text, table, network, where=str(path), **chosen))
    return model.to(next(model.parameters()).device if device is None else torch.device(device))
