"""Tangents bound to a network, and a tolerance of rounding in float64."""

import torch

from trustgp.data.trees import count
from trustgp.tangents import output_mixes
from trustgp.tangents.network import prepare


def bound(network, inputs, tangents, outputs="shared", *, targets=None, device=None):
    """The map of the last kernel, and its mix."""
    prepared = prepare(network, tangents.choose(network), device)
    num_outputs = prepared.matrix(inputs).shape[1]
    mix, _ = output_mixes(outputs, num_outputs, torch.Generator().manual_seed(3))[-1]
    targets = torch.zeros(count(inputs), num_outputs) if targets is None else targets
    return tangents.bind(prepared, mix, inputs, targets), mix


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
