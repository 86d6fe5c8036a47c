"""Networks of the demo and the studies, their training (AdamW, one cycle, shuffles by seed) and use."""

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.functional import mse_loss

from trustgp.data.chunking import chunks
from trustgp.data.rows import Rows, finite_rows
from trustgp.data.trees import Inputs, as_inputs, count, take, to_device
from trustgp.executors.progress import reporting
from trustgp.likelihoods.prediction import Prediction
from trustgp.tangents.network import as_matrix, call

Activation = Callable[[], nn.Module]
Layers = list[nn.Module]
Loss = Callable[[Tensor, Tensor], Tensor]
BatchLoss = Callable[[Tensor], Tensor]  # from row numbers [E, b] of each member's batch to a scalar


@dataclass(frozen=True)
class TrainingRecipe:
    """How a network is trained: each epoch uses every row once."""

    epochs: int = 100
    batch_size: int = 128  # at most; batches differ by at most one row
    learning_rate: float = 1e-3  # at the peak of the cycle
    weight_decay: float = 1e-5
    loss: Loss = mse_loss  # from outputs and targets of a batch to a scalar
    constant: bool = False  # whether the learning rate is constant, without a cycle


def mlp(
    widths: Sequence[int], *, activation: Activation = nn.ReLU, dropout: float = 0.0, seed: int = 0
) -> nn.Module:
    """A fully connected network, for example `mlp([21, 200, 200, 7], activation=nn.SiLU)`.

    A Dropout layer after each activation drops the share `dropout` of the units; 0: there is none. The seed
    fixes the initial weights, with dropout or without; torch's global generators are left unchanged.
    """
    if len(widths) < 2:
        raise ValueError(f"widths={list(widths)}; inputs and outputs are needed at least.")
    return _stacked(([nn.Linear(*pair)] for pair in pairwise(widths)), activation, dropout, seed)


def cnn(
    *,
    size: int = 28,
    channels: Sequence[int] = (32, 64),
    hidden: int = 128,
    classes: int = 10,
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """Network of 5 x 5 convolutions, stride 2, ReLU, a hidden layer: images [n, 1, size, size] to [n, C].

    It has strides, not pooling, whose gradient on a GPU varies from run to run. See `mlp` for the rest.
    """

    def groups() -> Iterator[Layers]:
        for pair in pairwise((1, *channels)):
            yield [nn.Conv2d(*pair, 5, stride=2, padding=2)]
        side = -(-size // 2 ** len(channels))
        yield [nn.Flatten(), nn.Linear(channels[-1] * side * side, hidden)]
        yield [nn.Linear(hidden, classes)]

    return _stacked(groups(), nn.ReLU, dropout, seed)


def _stacked(groups: Iterable[Layers], activation: Activation, dropout: float, seed: int) -> nn.Module:
    """Groups of layers, made one after another from a seed, with an activation and dropout in between."""
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout={dropout}; a share from 0 to below 1 is needed.")
    layers: Layers = []
    with own_randomness(seed, torch.device("cpu")):
        for group in groups:
            if layers:
                layers += [activation(), *([nn.Dropout(dropout)] if dropout else [])]
            layers += group
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
    watch: Callable[[nn.Module], None] | None = None,
    **recipe: Any,
) -> nn.Module:
    """A trained copy of the network, in eval mode; the network itself stays as it was.

    Rows are [n, ...], the seed is that of the shuffling; a `device` of None is the network's. On a GPU a step
    is recorded once and replayed; pass `record=False` for layers that do not allow this. `progress` shows a
    bar in a terminal; `watch` is called with the network after every epoch. The recipe is a
    `TrainingRecipe`.
    """
    how = TrainingRecipe(**recipe)
    (trained,), inputs, targets = _moved([network], inputs, targets, device)

    def batch_loss(batch: Tensor) -> Tensor:  # [1, b]
        return how.loss(trained(inputs[batch[0]]), targets[batch[0]])

    each = None if watch is None else partial(watch, trained)
    options = {"progress": progress, "record": record, "each": each}
    _descend(list(trained.parameters()), batch_loss, inputs, [seed], how, **options)
    return trained.eval()


def train_many(
    networks: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    *,
    seeds: Sequence[int] | None = None,
    device: str | torch.device | None = None,
    **recipe: Any,
) -> list[nn.Module]:
    """Trained copies of networks of one architecture, all at once: the members of an ensemble.

    A step is one vectorised pass through stacked parameters; each member is trained as `train` would with its
    seed. Networks that change buffers in training (batch normalisation) are not supported. Seeds are those of
    each member's shuffling (None: 0, 1, 2, ...); for the rest see `train`.
    """
    how = TrainingRecipe(**recipe)
    seeds = list(range(len(networks))) if seeds is None else list(seeds)
    if not networks or len(seeds) != len(networks):
        raise ValueError(f"{len(seeds)} seeds for {len(networks)} networks; one each, and at least one.")
    copies, inputs, targets = _moved(networks, inputs, targets, device)
    parameters, buffers = stack_module_state(copies)  # leaves of shape [E, ...]
    frame = copy.deepcopy(copies[0]).to("meta")

    def member_loss(weights: dict, constants: dict, batch: Tensor) -> Tensor:
        outputs = functional_call(frame, (weights, constants), (inputs[batch],))
        return how.loss(outputs, targets[batch])

    losses = torch.vmap(member_loss, randomness="different")

    def batch_loss(batch: Tensor) -> Tensor:  # [E, b]
        return losses(parameters, buffers, batch).sum()

    _descend(list(parameters.values()), batch_loss, inputs, seeds, how)
    for member, trained in enumerate(copies):
        state = {name: value.detach()[member] for name, value in parameters.items()}
        trained.load_state_dict(state, strict=False)
    return [trained.eval() for trained in copies]


def _moved(
    networks: Sequence[nn.Module], inputs: Tensor, targets: Tensor, device: str | torch.device | None
) -> tuple[list[nn.Module], Tensor, Tensor]:
    """Copies in training mode and the rows, on `device` (None: that of the first network)."""
    place = next(networks[0].parameters()).device if device is None else torch.device(device)
    copies = [copy.deepcopy(network).to(place).train() for network in networks]
    return copies, inputs.to(place), targets.to(place)


@torch.enable_grad()
def _descend(
    parameters: Sequence[Tensor],
    batch_loss: BatchLoss,
    inputs: Tensor,
    seeds: Sequence[int],
    recipe: TrainingRecipe,
    *,
    progress: bool = False,
    record: bool = True,
    each: Callable[[], None] | None = None,
) -> None:
    """Run all epochs, with a shuffle of the rows for each seed; `each` is called after every epoch."""
    n, device = len(inputs), inputs.device
    free = [parameter for parameter in parameters if parameter.requires_grad]
    rate, decay = recipe.learning_rate, recipe.weight_decay
    # fused is fastest on a GPU, and many times slower than foreach on a busy CPU
    fused = device.type == "cuda"
    optimiser = torch.optim.AdamW(free, lr=rate, weight_decay=decay, fused=fused, foreach=not fused)
    batches = -(-n // recipe.batch_size)
    cycle = None
    if not recipe.constant:
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=recipe.epochs * batches + 1)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    with own_randomness(seeds[0], device), repeatable(), reporting(enabled=progress) as report:
        gradients = _gradients(optimiser, batch_loss, record=fused and record)
        for _ in report.track(range(recipe.epochs), stage="training", total=recipe.epochs):
            orders = torch.stack([torch.randperm(n, generator=generator) for generator in generators])
            for batch in orders.to(device).tensor_split(batches, dim=1):
                gradients(batch)
                optimiser.step()
                if cycle is not None:
                    cycle.step()
            if each is not None:
                each()


def _gradients(
    optimiser: torch.optim.Optimizer, batch_loss: BatchLoss, *, record: bool
) -> Callable[[Tensor], None]:
    """Function that fills the parameters' gradients for a batch; on a GPU recorded once per batch size.

    A step of a small network is some hundred kernels of microseconds; launching them one by one from Python
    takes far longer than they run. The loss must not copy a number from the GPU.
    """
    records: dict[torch.Size, tuple[Tensor, torch.cuda.CUDAGraph]] = {}
    for parameter in optimiser.param_groups[0]["params"] if record else ():
        parameter.grad = torch.zeros_like(parameter)

    def fill(batch: Tensor) -> None:
        optimiser.zero_grad(set_to_none=not record)
        batch_loss(batch).backward()

    def replay(batch: Tensor) -> None:
        if batch.shape not in records:
            rows = batch.clone()
            records[batch.shape] = rows, record_graph(partial(fill, rows), batch.device)[0]
        rows, graph = records[batch.shape]
        rows.copy_(batch)
        graph.replay()

    return replay if record else fill


def record_graph(call: Callable[[], Any], device: torch.device) -> tuple[torch.cuda.CUDAGraph, Any]:
    """CUDA graph of a call, and its output, which every replay overwrites."""
    here, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    aside.wait_stream(here)
    with torch.cuda.stream(aside):  # libraries initialise in the first calls, which are not recorded
        for _ in range(3):
            call()
    here.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    return graph, output


def now(device: str | torch.device) -> float:
    """Clock time in seconds after all work on that device is done: on a GPU some may still be pending."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@torch.no_grad()
def run_network(network: nn.Module, inputs: Inputs) -> Tensor:
    """Outputs of the network, shape [n] or [n, C], chunk by chunk on its own device."""
    place = next(network.parameters()).device
    inputs = to_device(as_inputs(inputs), place)
    return torch.cat([call(network, take(inputs, index)) for index in chunks(count(inputs), 8192)])


def errors(outputs: Tensor, rows: Rows) -> Tensor:
    """Errors y - f(x), float64, [n, C], of outputs [n] or [n, C] of a network or of several on average."""
    outputs, targets = as_matrix(outputs), rows.targets
    if outputs.shape != targets.shape:
        shapes = f"{tuple(outputs.shape)} but the validation targets are {tuple(targets.shape)}"
        raise ValueError(f"the network gives {shapes}; they must agree.")
    return targets.to(outputs.device).double() - outputs.double()


def moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population variance over the members, the first dimension; each [n] or [n, C]."""
    return outputs.mean(dim=0), outputs.var(dim=0, correction=0)


def valid_rows(inputs: Inputs, outputs: Tensor) -> Tensor:
    """Mask [n] of the rows with finite inputs and outputs."""
    finite = torch.isfinite(as_matrix(outputs)).all(dim=1)
    return finite_rows(as_inputs(inputs)).to(outputs.device) & finite


def answer(inputs: Inputs, mean: Tensor, epistemic: Tensor, noise: Tensor) -> Prediction:
    """Prediction without experts or novelty, from mean and variance [n] or [n, C] and a noise [C]."""
    valid, blank = valid_rows(inputs, mean), mean.new_zeros(len(mean))
    shape = (-1,) + (1,) * (mean.ndim - 1)
    return Prediction(
        mean=mean,
        epistemic=torch.where(valid.reshape(shape), epistemic, torch.full_like(mean, torch.inf)),
        aleatoric=noise.to(mean).expand(as_matrix(mean).shape).reshape(mean.shape),
        excess=torch.zeros_like(mean),
        novelty=blank,
        expert=blank.long(),
        valid=valid,
    )


@contextmanager
def repeatable() -> Iterator[None]:
    """Make the gradients of convolutions on a GPU deterministic inside; restore the setting afterwards."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


@contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators inside; restore them afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # not torch.manual_seed, which would also seed every GPU, and those are not restored
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
