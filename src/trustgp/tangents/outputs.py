"""Outputs of networks: selected by the user, combined from several networks, or with stated variances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..data.trees import copied
from .modules import check_kind, clone_module, unwrap

Output = Callable[[Any], Any]
"""Selects a tensor [n] or [n, C] from a network's result, or a pair of them: a mean and its variance."""


class StatedOutputs(NamedTuple):
    """The outputs of a network that states their variance."""

    mean: Tensor  # [n] or [n, C]
    variance: Tensor  # of the same shape


NAMES = (  # fields of the prediction in results of networks of Hugging Face and torchvision
    *("logits", "prediction", "predictions", "prediction_outputs", "regression_outputs", "predicted_depth"),
    *("reconstruction", "out"),
)
Combination = Callable[[Sequence[Any]], Any]
"""Combines the outputs of several networks into one: a tensor [n] or [n, C], or `StatedOutputs`."""


class OutputError(ValueError):
    """Outputs of a network, or what was selected from them, are not usable."""


class OutputSelector:
    """A forward hook of the private copy that selects the output tensor, or the mean and its variance."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def __call__(self, module: nn.Module, args: Any, result: Any) -> Tensor | StatedOutputs:
        selected = self.output(result)
        if isinstance(selected, Tensor):
            return selected
        pair = tuple(selected) if isinstance(selected, (tuple, list)) else ()
        if len(pair) != 2 or not all(isinstance(one, Tensor) for one in pair):
            what = f"select= gave a {type(selected).__name__}; it must select a tensor of shape [n] or [n, C]"
            raise OutputError(f"{what}, or a pair of them: a mean and its variance.")
        if pair[0].shape != pair[1].shape:
            raise OutputError(f"select= gave a mean and variance of shapes {_shapes(pair)}; they must agree.")
        return StatedOutputs(*pair)

    def __deepcopy__(self, memo: dict) -> OutputSelector:
        return self


def with_output(network: nn.Module, output: Output | None) -> nn.Module:
    """Copy of one network or several that returns `output(network(...))`, or with None its own output."""
    if output is not None and not callable(output):
        raise TypeError(f"select is a {type(output).__name__}; pass a function of what the network returns.")
    network = clone_module(network)
    if output is not None:
        for member in dict.fromkeys(members_of(network)):  # one may be given twice
            member.register_forward_hook(OutputSelector(output))
    return network


def has_output_selector(network: nn.Module, *, named: bool = False) -> bool:
    """Whether a user's function, or with `named` the name of a field, selects the network's output."""
    hooks = members_of(network)[0]._forward_hooks.values()
    return any(isinstance(hook, OutputSelector) and named == (hook.output is named_output) for hook in hooks)


def named_output(result: Any) -> Any:
    """Prediction in a result with named fields, see `NAMES`; any other result unchanged."""
    table = result if isinstance(result, Mapping) else getattr(result, "__dict__", {})
    named = [] if isinstance(result, (Tensor, StatedOutputs)) else [table.get(name) for name in NAMES]
    return next((one for one in named if isinstance(one, Tensor)), result)


def select_named(network: nn.Module, result: Any) -> bool:
    """Whether `result` has a field of `NAMES`; if so, `network` (a private copy) returns that from now on."""
    names_it = named_output(result) is not result
    for member in dict.fromkeys(members_of(network)) if names_it else ():
        member.register_forward_hook(OutputSelector(named_output))
    return names_it


class NetworkEnsemble(nn.Module):
    """Several networks as one. Only the first is differentiated: all M would cost M times as much."""

    def __init__(self, members: Sequence[nn.Module], combination: Combination) -> None:
        super().__init__()
        self.members, self.combination = nn.ModuleList(members), combination
        self.training = any(member.training for member in members)

    def forward(self, *args: Any, **options: Any) -> Any:
        """The members' outputs, combined."""
        results: list[Any] = []
        for member in self.members:
            given, named = copied((args, options))  # a member may work in place
            results.append(member(*given, **named))
        shapes = [_shapes(result) for result in results]
        for number, shape in enumerate(shapes, start=1):
            if shape != shapes[0]:
                what = f"network {number} of {len(shapes)} returned {shape} and the first {shapes[0]}"
                raise OutputError(f"{what}; several networks must have the same outputs.")
        usable = isinstance(results[0], (Tensor, StatedOutputs))
        return self.combination(results) if usable else results[0]  # later refused, as for one network


def as_network(given: Any, combination: Combination) -> nn.Module:
    """Given network, unwrapped and checked; several become one `NetworkEnsemble`."""
    several = isinstance(given, (list, tuple, nn.ModuleList))
    members = [unwrap(member) for member in (given if several else [given])]
    if not members:
        raise ValueError("network is an empty list; pass one trained network at least.")
    for number, member in enumerate(members, start=1):
        check_kind(member, f"network {number} of {len(members)}" if several else "network")
    return members[0] if len(members) == 1 else NetworkEnsemble(members, combination)


def members_of(network: nn.Module) -> list[nn.Module]:
    """The networks of an ensemble, or the one network; the first is differentiated."""
    return list(network.members) if isinstance(network, NetworkEnsemble) else [network]


def total_variance(results: Sequence[Any]) -> StatedOutputs:
    r"""The mean of several outputs, and the variance of the mixture of their distributions.

    .. math:: \mu = \tfrac{1}{M} \sum_m \mu_m, \qquad
        \tfrac{1}{M} \sum_m (\mu_m - \mu)^2 + \tfrac{1}{M} \sum_m \sigma_m^2

    The second sum is present only if the members state variances; else the variance of networks that agree
    to the bit is the smallest normal number.
    """
    means = torch.stack([mean_of(result) for result in results])
    mean, wide = means.mean(dim=0), torch.promote_types(means.dtype, torch.float32)
    variance = (means.to(wide) - means.to(wide).mean(dim=0)).square().mean(dim=0)
    if isinstance(results[0], StatedOutputs):
        own = torch.stack([result.variance for result in results]).to(wide)
        return StatedOutputs(mean, variance + torch.where(own > 0, own, torch.nan).mean(dim=0))
    return StatedOutputs(mean, variance.clamp_min(torch.finfo(wide).tiny))


def mean_of(outputs: Any) -> Any:
    """Prediction in the outputs of a network: the mean, if they have a stated variance."""
    return outputs.mean if isinstance(outputs, StatedOutputs) else outputs


def log_variance(outputs: Any) -> Tensor | None:
    """Logarithm of the stated variance, float64 [n, C], not finite where that is <= 0; None if none is."""
    if not isinstance(outputs, StatedOutputs):
        return None
    value = outputs.variance.double().log()
    return value if value.ndim == 2 else value[:, None]


def check_variance(outputs: Any) -> Any:
    """Return `outputs`; raise OutputError if a finite mean has a variance that is not positive and finite."""
    if isinstance(outputs, StatedOutputs):
        mean, variance = outputs
        wrong = variance[torch.isfinite(mean) & ~((variance > 0) & torch.isfinite(variance))]
        if len(wrong):
            what = f"{len(wrong)} of {variance.numel()} variances that are not, such as {float(wrong[0]):.3g}"
            advice = "exp(o) of a head for the logarithm, or softplus(o) + 1e-6"
            raise OutputError(f"variances must be positive and finite; select= gave {what}. Select {advice}.")
    return outputs


def _shapes(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(map(_shapes, result))
    return list(result.shape) if isinstance(result, Tensor) else type(result).__name__
