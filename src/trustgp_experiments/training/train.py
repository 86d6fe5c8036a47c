"""Training the networks of the demo and the studies: AdamW, one cycle, every shuffle from its own seed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.functional import mse_loss

from trustgp.executors.progress import reporting

from .cuda_graph import plain_gradients, recorded_gradients
from .inference import own_randomness, repeatable

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class TrainingRecipe:
    """How a network is trained.

    Args:
        epochs: Passes over the rows; each uses every row once.
        batch_size: The most rows in a batch; batches differ by at most one row.
        learning_rate: At the peak of the cycle.
        weight_decay: Of AdamW.
        loss: From outputs and targets of a batch to a scalar.
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    loss: Loss = mse_loss

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs={self.epochs}, batch_size={self.batch_size}; both must be 1 or more.")


def mlp(
    widths: Sequence[int],
    *,
    activation: Callable[[], nn.Module] = nn.ReLU,
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """A fully connected network, for example `mlp([21, 200, 200, 7], activation=nn.SiLU)`.

    Args:
        widths: Of the inputs, the hidden layers and the outputs.
        activation: Makes the layer between two Linear layers.
        dropout: Share of hidden units that a Dropout layer behind each activation drops; 0: no such layers.
        seed: Of the initial weights, with or without dropout; torch's global generators are left alone.
    """
    if len(widths) < 2:
        raise ValueError(f"widths={list(widths)}; inputs and outputs are needed at least.")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout={dropout}; a share from 0 to below 1 is needed.")
    layers: list[nn.Module] = []
    with own_randomness(seed, torch.device("cpu")):
        for number, (fan_in, fan_out) in enumerate(pairwise(widths)):
            layers += [activation()] if number else []
            layers += [nn.Dropout(dropout)] if number and dropout else []
            layers.append(nn.Linear(fan_in, fan_out))
    return nn.Sequential(*layers)


def train(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    record: bool = True,
    progress: bool = False,
    **recipe: Any,
) -> nn.Module:
    """A trained copy of the network, in eval mode; the network itself stays as it was.

    Args:
        network: With fresh weights, or weights to go on from.
        inputs: Shape [n, ...].
        targets: What `loss` compares the outputs with, shape [n, ...].
        seed: Of the shuffling.
        device: Where to train; None: where the network is.
        record: On a GPU, record a step once and replay it; False for layers that cannot be recorded.
        progress: Whether to show a bar in a terminal.
        recipe: epochs, batch_size, learning_rate, weight_decay and loss, see `TrainingRecipe`.
    """
    how = TrainingRecipe(**recipe)
    place = _place(network, device)
    trained = copy.deepcopy(network).to(place).train()
    inputs, targets = inputs.to(place), targets.to(place)

    def batch_loss(batch: Tensor) -> Tensor:  # [1, b]
        return how.loss(trained(inputs[batch[0]]), targets[batch[0]])

    with own_randomness(seed, place), repeatable():
        free = list(trained.parameters())
        _descend(free, batch_loss, len(inputs), [seed], how, place, progress, record=record)
    return trained.eval()


def train_many(
    networks: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    *,
    seeds: Sequence[int] | None = None,
    device: str | torch.device | None = None,
    progress: bool = False,
    **recipe: Any,
) -> list[nn.Module]:
    """Trained copies of networks of one architecture, all at once: the members of an ensemble.

    Their parameters are stacked and a step is one vectorised pass. AdamW is elementwise and the loss a
    sum over members, so each is trained as `train` would with its seed. Not for networks that change
    their buffers while they train (batch normalisation).

    Args:
        networks: E of them, of one architecture.
        seeds: Of each member's shuffling; None: 0, 1, 2, ...
        inputs, targets, device, progress, recipe: See `train`.
    """
    how = TrainingRecipe(**recipe)
    seeds = list(range(len(networks))) if seeds is None else list(seeds)
    if not networks or len(seeds) != len(networks):
        raise ValueError(f"{len(seeds)} seeds for {len(networks)} networks; one each, and at least one.")
    place = _place(networks[0], device)
    copies = [copy.deepcopy(network).to(place).train() for network in networks]
    parameters, buffers = stack_module_state(copies)  # leaves of shape [E, ...]
    frame = copy.deepcopy(copies[0]).to("meta")
    inputs, targets = inputs.to(place), targets.to(place)

    def member_loss(weights: dict, constants: dict, batch: Tensor) -> Tensor:
        outputs = functional_call(frame, (weights, constants), (inputs[batch],))
        return how.loss(outputs, targets[batch])

    losses = torch.vmap(member_loss, randomness="different")

    def batch_loss(batch: Tensor) -> Tensor:  # [E, b]
        return losses(parameters, buffers, batch).sum()

    with own_randomness(seeds[0], place), repeatable():
        _descend(list(parameters.values()), batch_loss, len(inputs), seeds, how, place, progress)
    for member, trained in enumerate(copies):
        state = {name: value.detach()[member] for name, value in parameters.items()}
        trained.load_state_dict(state, strict=False)
    return [trained.eval() for trained in copies]


def _descend(
    parameters: Sequence[Tensor],
    batch_loss: Callable[[Tensor], Tensor],
    n: int,
    seeds: Sequence[int],
    recipe: TrainingRecipe,
    device: torch.device,
    progress: bool,
    *,
    record: bool = True,
) -> None:
    """All epochs; `batch_loss` takes the rows of each member's batch, shape [E, b]."""
    free = [parameter for parameter in parameters if parameter.requires_grad]
    rate, decay = recipe.learning_rate, recipe.weight_decay
    # fused is fastest on a GPU, and many times slower than foreach on a busy CPU
    fused = device.type == "cuda"
    optimiser = torch.optim.AdamW(free, lr=rate, weight_decay=decay, fused=fused, foreach=not fused)
    batches = -(-n // recipe.batch_size)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=recipe.epochs * batches + 1)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    make = recorded_gradients if fused and record else plain_gradients
    gradients = make(free, batch_loss)
    with reporting(enabled=progress) as report, torch.enable_grad():
        for _ in report.track(range(recipe.epochs), stage="training", total=recipe.epochs):
            orders = torch.stack([torch.randperm(n, generator=generator) for generator in generators])
            for batch in orders.to(device).tensor_split(batches, dim=1):
                gradients(batch)
                optimiser.step()
                cycle.step()


def _place(network: nn.Module, device: str | torch.device | None) -> torch.device:
    return next(network.parameters()).device if device is None else torch.device(device)
