"""One fit of a given size: its time and memory by stage, what it holds, and how good it is."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from trustgp import metrics
from trustgp.api import fit
from trustgp.model import UncertaintyModel

from ...core.recipes import Pair
from ...core.stage_timer import Ledger, stages
from ...peers import ConstantNoise
from .rows import ScaleRows

WARM_ROWS, WARM_EXPERTS = 2_000, 2


def warm_up(network: nn.Module, rows: ScaleRows, *, device: str, n: int = WARM_ROWS, **options: Any) -> None:
    """A small fit of n rows, so that libraries are loaded and workspaces taken before anything is timed."""
    options = {**options, "num_experts": WARM_EXPERTS, "budget": None}
    fit(network, rows.first(n), validation=rows.validation, device=device, progress=False, **options)


def measured_fit(
    network: nn.Module, rows: ScaleRows, n: int, *, device: str, **options: Any
) -> tuple[UncertaintyModel, Ledger]:
    """A model of the first n rows, without a witness, and what its fit took.

    Args:
        network: Trained.
        rows: Of which the first n are fitted.
        n: How many.
        device: Where to fit.
        options: Of `fit`.
    """
    train = rows.first(n)
    with stages(device) as ledger:
        model = fit(network, train, validation=rows.validation, witness=None, device=device, **options)
    return model, ledger


def likelihoods(model: UncertaintyModel, network: nn.Module, rows: ScaleRows) -> dict[str, float]:
    """Mean negative log likelihood per torque of the test rows: of trustgp, and of network + noise."""
    noise = ConstantNoise.fit(network, rows.validation)
    return {"trustgp": _nll(model, rows.test), "network + noise": _nll(noise, rows.test)}


def _nll(model: Any, test: Pair) -> float:
    said, targets = model.predict(test[0]), test[1]
    values: Tensor = metrics.gaussian_nll(said.mean, said.variance, targets.to(said.mean.device))
    return float(values.mean())


def held_rows(model: UncertaintyModel) -> list[int]:
    """Training rows that each expert holds, kernel after kernel."""
    return [len(expert.rows) for mixture in model.mixtures for expert in mixture.experts]
