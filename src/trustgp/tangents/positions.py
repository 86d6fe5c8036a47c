"""Outputs of many positions, such as sequences and images: each position is a row.

The tangent features of a position are the inputs of the last layer with a weight matrix there: the gradient
of an output for the weights of that layer. A row holds these features and the network's output, to which a
linear layer of zeros adds nothing but its gradients. Outputs of few or no positions are flattened.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..data.batches import IGNORED
from ..data.trees import Inputs, copied
from .jacobian.layer_io import LastLayers
from .network import HALF, call
from .outputs import OutputError

MAX_FLAT_POSITIONS = 3  # outputs of so few positions are flattened
VOID = 255  # label of pixels without a class, where there is no such class


@dataclass(frozen=True)
class ChannelLayout:
    """Which dimension of outputs [n, ...] holds the channels; all others after the first are positions."""

    axis: int | None  # 1 or -1; None: there is one channel, without a dimension
    tail: tuple[int, ...] | None = None  # shape of a row that is flattened; None: positions are rows

    def columns(self, outputs: Tensor) -> Tensor:
        """Outputs [n, ...] as [n, *positions, C]."""
        if self.tail is not None:
            return outputs.flatten(1)
        return outputs[..., None] if self.axis is None else outputs.movedim(self.axis, -1)

    def restored(self, columns: Tensor) -> Tensor:
        """Columns [n, *positions, C] in the layout of the network's outputs; if these have no channels, but
        C is not 1, the channels become the second dimension."""
        if self.tail is not None:
            return columns.unflatten(-1, self.tail)
        if self.axis is None and columns.shape[-1] == 1:
            return columns[..., 0]
        return columns if self.axis == -1 else columns.movedim(-1, 1)


class PositionNetwork(nn.Module):
    """Network that also returns features, for rows of one position each: features, then outputs."""

    def __init__(self, network: nn.Module, layout: ChannelLayout) -> None:
        super().__init__()
        self.network, self.layout = network, layout
        self.training = network.training

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Outputs [n, ...], and features of all positions [n, *positions, h]."""
        outputs, layers = run_watched(self.network, inputs)
        return outputs, _features(layers, self.layout.columns(outputs)).detach()

    def rows(self, outputs: Tensor, features: Tensor) -> Tensor:
        """Rows [N, h + C] of the results of `forward`, in float32 at least."""
        both = torch.cat([features, self.layout.columns(outputs).to(features)], dim=-1)
        return (both.float() if both.dtype in HALF else both).flatten(0, -2)


class GivenOutputs(nn.Module):
    """Rows [N, h + C]: the outputs, plus a linear map of the features whose weights are 0."""

    def __init__(self, features: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.features, self.linear = features, nn.Linear(features, outputs, dtype=dtype)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.eval()

    def forward(self, rows: Tensor) -> Tensor:
        """The network's own outputs, [N, C]."""
        return rows[:, self.features :] + self.linear(rows[:, : self.features])


class FlatOutputs(nn.Module):
    """A network with its outputs [n, ...] as [n, C]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.training = network, network.training

    def forward(self, *args: Any, **options: Any) -> Tensor:
        """Outputs flattened to [n, C]."""
        outputs = self.network(*args, **options)
        if not isinstance(outputs, Tensor) or outputs.ndim < 2:
            kind = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise OutputError(f"the network returned {kind}; for such targets one tensor [n, ...] is needed.")
        return outputs.flatten(1)


@torch.no_grad()
def run_watched(network: nn.Module, inputs: Inputs) -> tuple[Any, LastLayers]:
    """Result of a forward pass, and the inputs of its last layers."""
    with LastLayers() as layers:
        return call(network, copied(inputs)), layers


def _features(layers: LastLayers, columns: Tensor) -> Tensor:
    """Features [n, *positions, h] for outputs [n, *positions, C]: the inputs of the last layer with as many
    dimensions, at matching positions; else those of the last layer, averaged; else the outputs."""
    if not layers.inputs:
        return columns
    values = layers.inputs.get(columns.ndim, layers.inputs[layers.last])[0]
    size = columns.shape[1:-1]
    if values.ndim != columns.ndim:
        values = values.flatten(1, -2).mean(dim=1) if values.ndim > 2 else values
        return values.reshape(len(values), *[1] * len(size), -1).expand(-1, *size, -1)
    if values.shape[1:-1] == size:
        return values
    for axis, wanted in enumerate(size, start=1):
        place = torch.arange(wanted, device=values.device) * values.shape[axis] // wanted
        values = values.index_select(axis, place)
    return values


def find_layout(outputs: Tensor, layers: LastLayers, targets: Tensor, *, classes: bool) -> ChannelLayout:
    """Layout of outputs [n, ...] that fits the targets; `classes`: targets are class numbers of positions."""
    shape, wanted = tuple(outputs.shape[1:]), tuple(targets.shape[1:])
    own, second = layers.inputs.get(outputs.ndim, (None, False))
    if classes:
        plain = wanted[1:] if wanted[:1] == (1,) and len(wanted) == len(shape) else wanted
        fits = {1: shape[1:] == plain, -1: shape[:-1] == plain, None: shape == plain}
        axes = [axis for axis in ((1, -1, None) if second else (-1, 1, None)) if fits[axis]]
        if not axes:
            raise ValueError(
                f"the network returned {list(outputs.shape)} and labels are {list(targets.shape)}; one class "
                "number for each position is needed: [n, K, H, W] and [n, H, W], or [n, T, K] and [n, T]. "
                "Logits of another size: select=lambda r: F.interpolate(r.logits, size=(H, W))."
            )
        return ChannelLayout(axes[0])
    if [size for size in shape if size > 1] != [size for size in wanted if size > 1]:
        raise ValueError(f"the network returned {list(outputs.shape)} but targets are {list(targets.shape)}.")
    if own is None and outputs.ndim + 1 in layers.inputs:
        layout = ChannelLayout(None)
    else:
        layout = ChannelLayout(1 if second or (own is None and outputs.ndim > 3) else -1)
    last = layers.inputs.get(layers.last)
    few = layout.columns(outputs)[0, ..., 0].numel() <= MAX_FLAT_POSITIONS
    return ChannelLayout(-1, shape) if few or last is None or last[0].ndim == 2 else layout


def target_columns(layout: ChannelLayout, outputs: Tensor, targets: Tensor, *, classes: bool) -> Tensor:
    """Targets in the order of the outputs, [n, *positions, C], or class numbers [n, *positions, 1]."""
    columns = layout.columns(outputs)
    return (
        targets.reshape(*columns.shape[:-1], 1) if classes else layout.columns(targets.reshape(outputs.shape))
    )


def observed(targets: Tensor, num_outputs: int) -> Tensor:
    """Mask of the positions that have targets [..., C]: real numbers other than NaN, or a class."""
    if targets.is_floating_point():
        return ~targets.isnan().any(dim=-1)
    void = (targets == IGNORED) | ((targets == VOID) & (max(2, num_outputs) <= VOID))
    return ~void.any(dim=-1)
