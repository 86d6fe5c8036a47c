"""Where does a model come from? What is saved with it, and what a checkpoint must agree with."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from .data import Rows, structure
from .fingerprint import network_fingerprint, rows_fingerprint
from .gating import Division
from .likelihoods import Likelihood
from .model import Origin
from .patchwork import Patchwork
from .plan import Plan
from .preparing import Prepared
from .witness import Witness


def make_origin(
    ready: Prepared,
    rows: Rows,
    labels: Tensor | None,
    outputs: str,
    likelihood: Likelihood,
    seed: int,
    witness: Witness | None,
    split: tuple[int, int],
) -> Origin:
    """Where the model comes from; what the experts may hold is not known yet."""
    return Origin(
        network=network_fingerprint(ready.network.module),
        data=rows_fingerprint(rows, labels),
        rows=len(rows),
        structure=structure(rows.inputs),
        outputs=outputs,
        tangents=ready.tangents,
        names=ready.network.names,
        likelihood=likelihood,
        cap=(),
        lend=(),
        seed=seed,
        witness=witness,
        split=split,
    )


def checkpoint_settings(
    origin: Origin, plan: Plan, patchwork: Patchwork, division: Division, budget: int | None
) -> dict[str, Any]:
    """Everything that decides what an expert comes out as, for the checkpoint's fingerprint."""
    return {
        "network": origin.network,
        "data": origin.data,
        "outputs": origin.outputs,
        "tangents": [type(origin.tangents).__name__, origin.tangents.settings()],
        "names": list(origin.names),
        "likelihood": [type(origin.likelihood).__name__, origin.likelihood.settings()],
        "experts": plan.num_experts,
        "subset": plan.subset,
        "components": division.components,
        "patchwork": [patchwork.neighbours, patchwork.fraction],
        "budget": budget,
        "witness": None if origin.witness is None else asdict(origin.witness),
        "seed": origin.seed,
    }
