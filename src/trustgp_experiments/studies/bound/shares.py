"""The share of the squared kernel that falls between experts: the measuring of the bound study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trustgp.data.rows import Rows, read_rows
from trustgp.executors import FitContext, Threads
from trustgp.executors.progress import reporting
from trustgp.experts.features import features_of
from trustgp.experts.gate import Division
from trustgp.experts.neighbours import Patchwork
from trustgp.fitting.divide import divide
from trustgp.fitting.options import FitOptions
from trustgp.fitting.prepare import prepare_network
from trustgp.fitting.solve import NO_COLUMNS
from trustgp.tangents.base import TangentMap

EXACT = 4096  # rows up to which every pair is counted; of more rows, a random subset of so many


def shares_of(
    network: nn.Module,
    rows: tuple[Tensor, Tensor],
    experts: Sequence[int],
    components: Sequence[int],
    *,
    seed: int,
    progress: bool,
) -> list[dict[str, Any]]:
    """What each division leaves between experts, beside a random one with experts of the same sizes.

    Args:
        network: Trained, on its device.
        rows: Inputs and targets, n of them.
        experts: Numbers of experts to ask for.
        components: Numbers q of kernel principal components.
        seed: Of the divisions, the random ones included.
        progress: Whether to show bars in a terminal.

    Returns:
        For each q and each number of experts: both; how many experts there are; the bound that `fit` would
        report; and by kernel ("kernel", "centred") the shares "ours" and "random".
    """
    read = read_rows(rows, name="train")
    ready = prepare_network(network, read, FitOptions.parse(seed=seed))
    tangents = ready.maps[0][0]
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(len(read), generator=generator)[:EXACT].sort().values
    gram = _gram(tangents, read, sample)
    kernels = {"kernel": gram, "centred": centred(gram)}
    wanted = [(q, count) for q in components for count in experts]
    found = []
    with reporting(enabled=progress) as bars, reporting(enabled=False) as quiet:
        for q, count in bars.track(wanted, stage="dividing", total=len(wanted)):
            partition, bound = divide(
                tangents,
                read,
                count,
                FitContext(tangents.network.device, seed, Threads(1), quiet),
                division=Division(components=q),
                patchwork=Patchwork(neighbours=0),
            )
            ours = partition.nearest
            random = ours[torch.randperm(len(ours), generator=generator)]
            labels = {"ours": ours[sample], "random": random[sample]}
            shares = {
                name: {kind: between_share(kernel, label, len(read)) for kind, label in labels.items()}
                for name, kernel in kernels.items()
            }
            found.append({"components": q, "asked": count, "experts": partition.gate.num_experts, **shares})
            found[-1]["reported"] = float(bound)
    return found


def between_share(gram: Tensor, labels: Tensor, n: int) -> float:
    """Share of the squared kernel of n rows that falls between experts, from some of the rows.

    Args:
        gram, labels, n: See `squared_masses`.
    """
    between, total = squared_masses(gram, labels, n)
    return float(between / total)


def squared_masses(gram: Tensor, labels: Tensor, n: int) -> tuple[Tensor, Tensor]:
    r"""Squared kernel of n rows between experts, and of all pairs, each estimated without bias from m rows.

    .. math:: w B, \quad w O + D n / m, \quad w = \frac{n (n - 1)}{m (m - 1)}

    with B the squared kernel between experts, O that of all pairs of two rows, D that of the diagonal: a
    pair is drawn less often than a row. With m = n both are exact, and their ratio is
    `trustgp.math.kernel_pca.mass_between`.

    Args:
        gram: Of m rows, drawn at random, shape [m, m].
        labels: Expert of each, shape [m].
        n: How many rows there are.
    """
    m, labels = len(gram), labels.to(gram.device)
    squared = gram.square()
    diagonal = squared.diagonal().sum()
    between = squared[labels[:, None] != labels[None, :]].sum()
    weight = n * (n - 1) / (m * (m - 1)) if m > 1 else 0.0
    return weight * between, weight * (squared.sum() - diagonal) + diagonal * n / m


def centred(gram: Tensor) -> Tensor:
    """The kernel of features less their mean, shape [m, m]."""
    mean = gram.mean(dim=0)
    return gram - mean - mean[:, None] + gram.mean()


@torch.no_grad()
def _gram(tangents: TangentMap, rows: Rows, index: Tensor) -> Tensor:
    features = features_of(tangents, rows.take(index), NO_COLUMNS)
    return features.gram(features)
