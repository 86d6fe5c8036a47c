"""Which expert answers where? The rows in the first two components of the gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import chunks
from ..data.rows import require_finite
from ..data.trees import Inputs, as_inputs, count, take, to_device
from ..experts.features import chunk_rows
from ..experts.gate import nearest_two
from .style import INK, PALETTE, numbers

MOST_NUMBERS = 40  # experts that are numbered; more would hide the rows


@dataclass(frozen=True)
class ExpertMap:
    """Rows as the gate sees them."""

    points: Tensor  # first two components of each row [n, 2]; the second is 0 for a gate with one
    expert: Tensor  # which expert answers, by all components [n]
    centroids: Tensor  # of the experts [M, 2]


@torch.no_grad()
def map_experts(model: Any, inputs: Inputs, *, output: int = 0) -> ExpertMap:
    """Where rows lie for the gate, and who answers for them.

    Args:
        model: Of two or more experts, such as an `UncertaintyModel`.
        inputs: As the network takes them, of n rows.
        output: Whose gate to show, where `outputs="separate"` gave each output its own.
    """
    mixture = next((one for one in model.mixtures if output in one.outputs.tolist()), None)
    if mixture is None:
        outputs = sum(len(one.outputs) for one in model.mixtures)
        raise ValueError(f"output={output}; the model has outputs 0 to {outputs - 1}.")
    if mixture.gate.projection is None:
        raise ValueError(
            "the model has a single expert, and no gate to draw; fit with num_experts=2 or more."
        )
    rows = to_device(as_inputs(inputs), mixture.gate.centroids.device)
    require_finite(rows, "inputs")
    parts = [
        mixture.gate.embed(mixture.tangents(take(rows, index)))
        for index in chunks(count(rows), chunk_rows(mixture.tangents))
    ]
    embedded, centroids = torch.cat(parts), mixture.gate.centroids
    expert = nearest_two(embedded, centroids)[0]
    points, centres = (torch.nn.functional.pad(rows, (0, 1))[:, :2] for rows in (embedded, centroids))
    return ExpertMap(points, expert, centres)


def draw_experts(axes: Any, model: Any, inputs: Inputs, *, output: int = 0, size: float = 8.0) -> None:
    """Rows coloured by expert, in dots of a size, and the experts' centroids; see `map_experts`.

    Two components of the gate are drawn, while it decides by all of them: colours may overlap.
    """
    found = map_experts(model, inputs, output=output)
    colours = [PALETTE[expert % len(PALETTE)] for expert in range(len(found.centroids))]
    points, centres = numbers(found.points), numbers(found.centroids)
    dots = [colours[expert] for expert in found.expert.tolist()]
    axes.scatter(*points.T, s=size, c=dots, alpha=0.6, linewidths=0)
    axes.scatter(*centres.T, s=110, c=colours, edgecolors=INK, linewidths=0.9, marker="o", zorder=3)
    style = {"ha": "center", "va": "center", "fontsize": 7, "color": "white", "weight": "bold", "zorder": 4}
    if len(centres) <= MOST_NUMBERS:
        for expert, centre in enumerate(centres):
            axes.text(*centre, str(expert), **style)
    axes.set(xlabel="first component of the gate", ylabel="second component")
