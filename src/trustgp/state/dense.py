"""The state of a model whose outputs have positions, and its predictions and file."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.batches import Unpack, as_pair, batches_of, inputs_like, is_stream
from ..data.chunking import chunks
from ..data.fingerprint import network_fingerprint
from ..data.tensor_file import ArtifactError, write
from ..data.torch_modes import cpu_default, without_autocast
from ..data.trees import Inputs, count, take, to_device
from ..likelihoods.dense import DensePrediction
from ..likelihoods.prediction import Prediction
from ..tangents.modules import check_mode
from ..tangents.network import HALF
from ..tangents.outputs import Output, as_network, has_output_selector, named_output, with_output
from ..tangents.positions import ChannelLayout, FlatOutputs, GivenOutputs, PositionNetwork
from . import model_state
from .model_file import KIND, model_tensors, model_text, read_model
from .model_state import DATASET_ROWS, ModelState

CHUNK_BYTES = 2**26  # of the rows of positions that are predicted at a time


@dataclass(frozen=True, eq=False)
class DenseState:
    """A network whose outputs have positions, and the model of its rows."""

    network: nn.Module  # a private copy of the user's
    layout: ChannelLayout
    structure: str  # structure of the inputs
    kinds: tuple[str, ...]  # of the inputs of a row
    rows: ModelState  # of positions, or of flattened outputs
    note: str = ""  # shape of the outputs, and meaning of the rows, in words

    @property
    def positions(self) -> PositionNetwork:
        """The network that turns inputs into rows."""
        return PositionNetwork(self.network, self.layout)


@torch.no_grad()
@cpu_default()
def predict(
    state: DenseState, inputs: Any, *, batch_size: int | None = None, unpack: Unpack | None = None
) -> DensePrediction:
    """Prediction for each position; the arguments are those of `model_state.predict`."""
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise ValueError(f"batch_size={batch_size!r}; a whole number of at least 1 is needed, or None.")
    batches = batches_of(inputs, batch_size or DATASET_ROWS)[0] if is_stream(inputs) else [inputs]
    parts: list[DensePrediction] = []
    for batch in batches:
        batch = batch if unpack is None else as_pair(batch, "a batch", unpack)[0]
        rows = inputs_like(batch, state.network, state.structure, state.kinds)
        for index in chunks(count(rows), batch_size or count(rows)):
            parts.append(_predict_batch(state, rows if len(index) == count(rows) else take(rows, index)))
    if not parts:
        raise ValueError("the loader holds no rows.")
    return parts[0] if len(parts) == 1 else DensePrediction.cat(parts)


def _predict_batch(state: DenseState, inputs: Inputs) -> DensePrediction:
    n, layout, device = count(inputs), state.layout, state.rows.device
    inputs = to_device(inputs, device)
    if layout.tail is not None:
        rows = model_state.predict(state.rows, inputs)
        return DensePrediction(rows, torch.arange(n, device=device), layout)
    with without_autocast(device.type):
        outputs, features = state.positions(inputs)
    chunk = max(1, CHUNK_BYTES // max(1, 4 * (features[:1].numel() + outputs[:1].numel())))
    pairs = zip(outputs.split(chunk), features.split(chunk), strict=True)
    lots = [model_state.predict(state.rows, state.positions.rows(*pair)) for pair in pairs]
    rows = lots[0] if len(lots) == 1 else Prediction.cat(lots)
    index = torch.arange(len(rows), device=device).reshape(layout.columns(outputs).shape[:-1])
    return DensePrediction(rows.to(outputs.dtype) if outputs.dtype in HALF else rows, index, layout)


def describe(state: DenseState) -> str:
    """A few lines: the network and its outputs, and the model of the rows."""
    total = sum(value.numel() for value in state.network.parameters())
    kind = f"{type(state.network).__name__}, {total:,} parameters, inputs {state.structure}"
    return f"  dense: {kind}; {state.note}\n{model_state.describe(state.rows)}"


@cpu_default()
def save_dense(state: DenseState, path: str | Path) -> None:
    """Write a model completely or not at all. The network is not in the file."""
    own = {
        "network": network_fingerprint(state.network),
        "structure": state.structure,
        "kinds": list(state.kinds),
        "layout": asdict(state.layout),
        "features": getattr(state.rows.network, "features", 0),
        "note": state.note,
        "named": has_output_selector(state.network, named=True),
    }
    text = model_text(state.rows) | {"picked": has_output_selector(state.network), "dense": own}
    write(Path(path), kind=KIND, text=text, tensors=model_tensors(state.rows))


def read_dense(
    text: dict[str, Any], table: Any, network: Any, *, where: str, select: Output | None = None
) -> DenseState:
    """The state from a file of `save_dense`; raise unless `network` is the one that it was fitted to."""
    own = text["dense"]
    try:
        layout = own["layout"]
        tail = None if layout["tail"] is None else tuple(map(int, layout["tail"]))
        layout, kinds = ChannelLayout(layout["axis"], tail), tuple(map(str, own["kinds"]))
        facts = str(own["structure"]), kinds, int(own["features"]), str(own["note"])
        sane = layout.axis in (1, -1, None) and isinstance(own["network"], str) and facts[2] >= 0
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{where}: its description is damaged or unknown ({error}).") from error
    if not sane:
        raise ArtifactError(f"{where}: its description does not fit together.")
    network = as_network(network, lambda results: results[0])
    if network_fingerprint(network) != own["network"]:
        raise ArtifactError(
            f"{where}: was fitted to another network; classes, names or weights differ. Load it with the "
            "network it was fitted to, or fit again."
        )
    check_mode(network)
    network = with_output(network, named_output if own.get("named") is True else select)
    if tail is not None:
        inner: nn.Module = FlatOutputs(network)
    else:
        outputs = table["mixture.0.tangents.mix"].shape[-1] if "mixture.0.tangents.mix" in table else 0
        first = next(network.parameters())
        inner = GivenOutputs(facts[2], outputs, torch.float32 if first.dtype in HALF else first.dtype)
        inner = inner.to(first.device)
    plain = {name: value for name, value in text.items() if name != "dense"} | {"picked": False}
    rows = read_model(plain, table, inner, where=where)
    network = rows.network.network if tail is not None else network  # pyright: ignore
    return DenseState(network, layout, facts[0], kinds, rows, *facts[3:])
