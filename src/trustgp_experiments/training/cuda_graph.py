"""Gradients of a batch's loss: plainly, or recorded once on a GPU and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

BatchLoss = Callable[[Tensor], Tensor]


def plain_gradients(parameters: Sequence[Tensor], batch_loss: BatchLoss) -> Callable[[Tensor], None]:
    """A function that fills the parameters' gradients for a batch.

    Args:
        parameters: Leaves.
        batch_loss: From a batch of row numbers to a scalar.
    """

    def gradients(batch: Tensor) -> None:
        for parameter in parameters:
            parameter.grad = None
        batch_loss(batch).backward()

    return gradients


def recorded_gradients(parameters: Sequence[Tensor], batch_loss: BatchLoss) -> Callable[[Tensor], None]:
    """The same on a GPU, recorded once for each size of a batch.

    A step of a small network is some hundred kernels of microseconds; launching them one by one from Python
    takes far longer than they run. The loss must not ask the GPU for a number on its way.

    Args:
        parameters, batch_loss: See `plain_gradients`.
    """
    filled = [torch.zeros_like(parameter) for parameter in parameters]
    for parameter, gradient in zip(parameters, filled, strict=True):
        parameter.grad = gradient
    records: dict[torch.Size, tuple[Tensor, torch.cuda.CUDAGraph]] = {}

    def fill(batch: Tensor) -> None:
        for gradient in filled:
            gradient.zero_()
        batch_loss(batch).backward()

    def gradients(batch: Tensor) -> None:
        if batch.shape not in records:
            records[batch.shape] = _record(fill, batch.clone())
        held, graph = records[batch.shape]
        held.copy_(batch)
        graph.replay()

    return gradients


def _record(fill: Callable[[Tensor], None], batch: Tensor) -> tuple[Tensor, torch.cuda.CUDAGraph]:
    """A graph, and the tensor from which it reads its rows."""
    here = torch.cuda.current_stream(batch.device)
    aside = torch.cuda.Stream(batch.device)
    aside.wait_stream(here)
    with torch.cuda.stream(aside):  # libraries set themselves up on the first calls, outside the record
        for _ in range(3):
            fill(batch)
    here.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fill(batch)
    return batch, graph
