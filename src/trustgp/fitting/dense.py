"""The fit of networks whose outputs have positions: a few positions of each input are the rows."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..data.batches import Unpack
from ..data.chunking import evenly
from ..data.rows import DenseOutputError, Rows, finite_rows, gather, read_rows, require_all
from ..data.split import check_groups, weighted
from ..data.trees import kinds, structure, to_device
from ..state.dense import DenseState
from ..tangents.network import TangentNetwork, check_network, probe
from ..tangents.outputs import NetworkEnsemble, as_network, select_named, with_output
from ..tangents.positions import (
    FlatOutputs,
    GivenOutputs,
    PositionNetwork,
    find_layout,
    observed,
    run_watched,
    target_columns,
)
from .options import FitOptions
from .pipeline import fit_model

MAX_POSITIONS, MAX_HELD_OUT = 20_000, 10_000  # rows of the experts, and rows that calibrate them
MIN_POSITIONS = 4  # positions of an input, where there are many inputs
MIN_GROUPS = 5  # with at least so many inputs, the positions of an input are left out together
HIDDEN_ROWS = 600  # rows whose features are compared with those of each position
NUM_EXPERTS, EXPERT_ROWS, USUAL_ROWS = 48, 25, 250  # experts, and rows of each: at least, and by default
MAX_WITNESS_POSITIONS = 64  # positions of an input, up to which there is a witness
PROBED = 4  # inputs on which the network is probed


def fit_dense(network: Any, rows: Rows, options: FitOptions) -> DenseState:
    """Fit a model to a network whose outputs, or whose targets, have more than two dimensions."""
    network = with_output(as_network(network, options.likelihood.combined), options.select)
    if isinstance(network, NetworkEnsemble):
        raise ValueError("several networks must have outputs [n] or [n, C]; fit one of them.")
    network = network if options.device is None else network.to(options.device)
    first, classes = rows.take(torch.arange(min(PROBED, len(rows)))), options.likelihood.class_numbers
    select_named(network, probe(network, first, "training"))
    check_network(FlatOutputs(network), first)
    outputs, layers = run_watched(network, to_device(first, next(network.parameters()).device))
    if outputs.ndim < 3:
        what = f"train targets have shape {tuple(rows.targets.shape)}; [n] or [n, C] is needed"
        raise ValueError(f"{what}: the network returned {list(outputs.shape)}.")
    positions = PositionNetwork(network, find_layout(outputs, layers, rows.targets, classes=classes))
    layout, shape, seed = positions.layout, list(outputs.shape[1:]), options.seed
    how: dict[str, Any] = {"classes": classes, "seed": seed}
    rows, groups, validation = weighted(rows, options.weights), check_groups(options.groups, rows), None
    train, groups = position_rows(positions, rows, **how, groups=groups, most=MAX_POSITIONS)
    if options.validation is not None:
        given = read_dense_rows(options.validation, "validation", network, options.unpack)
        validation, _ = position_rows(positions, given, **how, most=MAX_HELD_OUT)
    fixed: dict[str, Any] = {"select": None, "unpack": None, "validation": validation, "groups": groups}
    fixed["weights"] = train.weights
    if layout.tail is not None:
        names = options.parameters
        names = names if isinstance(names, str) else tuple(f"network.{name}" for name in names)
        state = fit_model(FlatOutputs(network), train, replace(options, **fixed, parameters=names))
        network, note = state.network.network, f"outputs {shape}, flattened"
    else:
        _refuse_tangents(options, shape)
        channels, note = layout.columns(outputs).shape[-1], f"outputs {shape}; rows are positions of"
        given = GivenOutputs(train.inputs.shape[1] - channels, channels, train.inputs.dtype)
        fixed |= {"parameters": "all", "hidden_rows": HIDDEN_ROWS}
        fixed |= _position_experts(options, len(train), layout.columns(outputs)[0, ..., 0].numel())
        state = fit_model(given.to(outputs.device), train, replace(options, **fixed))
        note = f"{note} {len(rows):,} inputs"
    return DenseState(network, layout, structure(first), tuple(kinds(first)), state, note)


def _position_experts(options: FitOptions, rows: int, positions: int) -> dict[str, Any]:
    """Options for real targets: more and smaller experts than usual, each with its own noise, and a witness
    only if an input has few positions, since it takes ten times as long as everything else."""
    if not options.likelihood.uses_witness:
        return {}
    small = min(NUM_EXPERTS, max(1, rows // EXPERT_ROWS)) if rows < NUM_EXPERTS * USUAL_ROWS else None
    witness = options.witness if positions <= MAX_WITNESS_POSITIONS else None
    return {"num_experts": options.num_experts or small, "witness": witness}


def _refuse_tangents(options: FitOptions, shape: list[int]) -> None:
    if options.tangents is not None or options.parameters not in ("all", "last"):
        raise ValueError(
            f"tangents= is not for outputs of many positions, {shape}: the features of a position are what "
            "the last layer is given there. Leave tangents= out."
        )


def read_dense_rows(source: Any, name: str, network: nn.Module, unpack: Unpack | None) -> Rows:
    """Rows whose targets may have any shape; their inputs must be finite."""
    try:
        rows = read_rows(source, name=name, unpack=unpack, network=network, finite=False)
    except DenseOutputError as error:
        rows: Any = error.rows
    require_all(finite_rows(rows.inputs), f"{name} inputs")
    return rows


def position_rows(
    positions: PositionNetwork,
    rows: Rows,
    *,
    classes: bool,
    groups: Tensor | None = None,
    most: int | None = None,
    seed: int = 0,
) -> tuple[Rows, Tensor | None]:
    """Random positions of the inputs as rows, about `most` of them (None: all), and the groups that are left
    out together: those of the inputs, or each input by itself. Flattened outputs keep one row per input."""
    if positions.layout.tail is not None:
        return replace(rows, targets=rows.targets.reshape(len(rows), -1)), groups
    inputs = torch.arange(len(rows)) if most is None else evenly(len(rows), max(1, most // MIN_POSITIONS))
    each = None if most is None else -(-most // len(inputs))
    lots = _positions(positions, rows, inputs, each, classes, torch.Generator().manual_seed(seed))
    (matrix, source), targets = gather((((x, i), y) for x, i, y in lots), name="positions")
    labels = torch.arange(len(rows)) if groups is None and len(rows) >= MIN_GROUPS else groups
    labels = None if labels is None else labels[source]
    return Rows(matrix, targets, rows.ordered, rows.weights_at(source)), labels


@torch.no_grad()
def _positions(
    positions: PositionNetwork,
    rows: Rows,
    index: Tensor,
    each: int | None,
    classes: bool,
    generator: torch.Generator,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield, chunk by chunk on the CPU, rows of positions that have targets, the indices of their inputs, and
    the targets."""
    network, layout = TangentNetwork(positions.network, ()), positions.layout
    for part in index.split(network.pass_rows(rows.first)):
        inputs, targets = rows.batch(part)
        outputs, features = positions(to_device(inputs, network.device))
        columns = target_columns(layout, outputs, targets, classes=classes).flatten(1, -2).cpu()
        seen = observed(columns, layout.columns(outputs).shape[-1])
        keys = torch.where(seen, torch.rand(seen.shape, generator=generator, dtype=torch.float32), -1.0)
        size = keys.shape[1] if each is None else min(each, keys.shape[1])
        chosen = keys.topk(size, dim=1).indices.sort(dim=1).values  # [b, size]
        chosen = chosen + torch.arange(len(part))[:, None] * keys.shape[1]
        source, chosen = part[:, None].expand_as(chosen).flatten(), chosen.flatten()
        kept = seen.flatten()[chosen]
        source, chosen = source[kept], chosen[kept]
        if len(chosen):
            matrix = positions.rows(outputs, features)[chosen.to(outputs.device)].cpu()
            yield matrix, source, columns.flatten(0, 1)[chosen]
