"""Running the peers' networks, and filling a `Prediction` from what they say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trustgp.data.chunking import chunks
from trustgp.data.rows import Rows, finite_rows
from trustgp.data.trees import Inputs, as_inputs, count, take, to_device
from trustgp.likelihoods.prediction import Prediction
from trustgp.tangents.network import as_matrix, call


@torch.no_grad()
def run_network(network: nn.Module, inputs: Inputs) -> Tensor:
    """The network's outputs as they are, shape [n] or [n, C], chunk by chunk on its own device."""
    place = next(network.parameters()).device
    inputs = to_device(as_inputs(inputs), place)
    return torch.cat([call(network, take(inputs, index)) for index in chunks(count(inputs), 8192)])


def errors(outputs: Tensor, rows: Rows) -> Tensor:
    """y - f(x) of outputs [n] or [n, C], of a network or of several on average, float64, shape [n, C]."""
    found = as_matrix(outputs)
    if found.shape != rows.targets.shape:
        raise ValueError(
            f"the network gives {tuple(found.shape)} but the validation targets are "
            f"{tuple(rows.targets.shape)}; they must agree."
        )
    return rows.targets.to(found.device).double() - found.double()


def moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population variance over the members, the first dimension; each [n] or [n, C]."""
    return outputs.mean(dim=0), outputs.var(dim=0, correction=0)


def answer(inputs: Inputs, mean: Tensor, epistemic: Tensor, noise: Tensor) -> Prediction:
    """A prediction without experts, whose mean [n] or [n, C] has this variance and noise [C]: no novelty."""
    valid = finite_rows(as_inputs(inputs)).to(mean.device) & torch.isfinite(as_matrix(mean)).all(dim=1)
    shape = (-1,) + (1,) * (mean.ndim - 1)
    unknown = torch.full_like(mean, torch.inf)
    blank = mean.new_zeros(len(mean))
    return Prediction(
        mean=mean,
        epistemic=torch.where(valid.reshape(shape), epistemic, unknown),
        aleatoric=noise.to(mean).expand(as_matrix(mean).shape).reshape(mean.shape),
        excess=torch.zeros_like(mean),
        novelty=blank,
        expert=blank.long(),
        valid=valid,
    )


@contextmanager
def repeatable() -> Iterator[None]:
    """Convolutions whose gradients on a GPU are the same from run to run inside; outside, as it was."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


@contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seeded weights and dropout inside; outside, torch's generators are as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # not torch.manual_seed, which would also seed every GPU, and those are not given back
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
