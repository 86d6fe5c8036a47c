"""A small convolutional network for grey images: the classifier of the studies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from .inference import own_randomness


def cnn(
    *,
    size: int = 28,
    channels: Sequence[int] = (32, 64),
    hidden: int = 128,
    classes: int = 10,
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Module:
    """Convolutions 5 x 5 with stride 2 and ReLU, a hidden layer, logits: images [n, 1, size, size] to [n, C].

    Strides and no pooling, whose gradient on a GPU is not the same from run to run.

    Args:
        size: Of the images' sides.
        channels: Of each convolution.
        hidden: Width of the layer behind them.
        classes: C.
        dropout: Share of units that a Dropout layer behind each ReLU drops; 0: no such layers.
        seed: Of the initial weights, with or without dropout; torch's global generators are left alone.
    """
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout={dropout}; a share from 0 to below 1 is needed.")
    if not channels or size < 1:
        raise ValueError(f"channels={list(channels)}, size={size}; at least one convolution is needed.")
    layers: list[nn.Module] = []

    def add(*some: nn.Module) -> None:
        layers.extend([*some, nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])])

    with own_randomness(seed, torch.device("cpu")):
        for before, after in zip((1, *channels), channels, strict=False):
            add(nn.Conv2d(before, after, 5, stride=2, padding=2))
            size = (size + 1) // 2
        add(nn.Flatten(), nn.Linear(channels[-1] * size * size, hidden))
        layers.append(nn.Linear(hidden, classes))
    return nn.Sequential(*layers)
