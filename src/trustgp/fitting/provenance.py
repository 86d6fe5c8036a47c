"""Where does a model come from? What is saved with it, and what a checkpoint must agree with."""

from __future__ import annotations

from ..data.fingerprint import network_fingerprint, rows_fingerprint, tensor_fingerprint
from ..data.trees import structure
from ..state.model_state import Provenance
from ..tangents.output import has_output_selector
from .checkpoint import Checkpoint
from .fit_rows import FitRows
from .options import FitOptions
from .plan import Plan
from .prepare import Prepared


def make_provenance(ready: Prepared, data: FitRows, options: FitOptions) -> Provenance:
    """Where the model comes from; what the experts may hold is not known yet."""
    return Provenance(
        network=network_fingerprint(ready.network.module),
        data=rows_fingerprint(data.rows, data.groups),
        rows=len(data.rows),
        structure=structure(data.rows.inputs),
        outputs=options.outputs,
        tangents=ready.tangents,
        names=ready.network.names,
        likelihood=options.likelihood,
        cap=(),
        lend=(),
        seed=options.seed,
        witness=options.witness,
        split=data.split,
    )


def open_checkpoint(
    provenance: Provenance, plan: Plan, ready: Prepared, data: FitRows, options: FitOptions
) -> Checkpoint | None:
    """The folder of solved experts; None: the user wants none. One of another fit is refused."""
    if options.checkpoint is None:
        return None
    settings = {
        "network": provenance.network,
        "data": provenance.data,
        "tangents": [type(provenance.tangents).__name__, provenance.tangents.settings()],
        "names": list(provenance.names),
        "experts": plan.num_experts,
        "subset": plan.subset,
        **options.settings(),
    }
    if has_output_selector(ready.network.module):  # a function has no fingerprint; what it picked has
        settings["output"] = tensor_fingerprint(data.residuals[0])
    return Checkpoint.open(options.checkpoint, settings)
