"""Small networks of every kind that can be exported, models of them, and how answers are compared."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import trustgp

MODES = ("shared", "separate", "pseudo")
BATCHES = (1, 3, 17)


def quick_wrapper() -> dict[str, str]:
    """Settings of inductor for a package that is compiled soon; torch 2.6 does not have them."""
    from torch._inductor import config

    known = hasattr(config.aot_inductor, "compile_wrapper_opt_level")
    return {"aot_inductor.compile_wrapper_opt_level": "O0"} if known else {}


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x):
        return x + self.inner(x)


def mlp(*middle: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(3, 6), *middle, nn.Linear(6, 2))


def conv(*layers: nn.Module, channels: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 2))


C = nn.Conv2d
MLPS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: mlp(nn.ReLU(), nn.Linear(6, 6), nn.ReLU(inplace=True))(),
    "tanh": lambda: mlp(nn.Tanh(), nn.Linear(6, 6, bias=False), nn.Tanh())(),
    "silu": lambda: mlp(nn.SiLU(), nn.Linear(6, 6), nn.SiLU())(),
    "gelu": lambda: mlp(nn.GELU(), nn.Linear(6, 6), nn.GELU())(),
    "residual": lambda: mlp(nn.Tanh(), Residual(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)))(),
    "layer norm": lambda: mlp(nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 6), nn.LayerNorm(6), nn.Sigmoid())(),
    "batch norm": lambda: mlp(nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ELU())(),
}
CONVS: dict[str, Callable[[], nn.Module]] = {
    "stride and padding": lambda: conv(
        C(1, 3, 3, stride=2, padding=1), nn.ReLU(), C(3, 4, 2, padding=1, stride=3), channels=16
    ),
    "groups and dilation": lambda: conv(
        C(1, 4, 3, bias=False), nn.Tanh(), C(4, 6, 2, groups=2, dilation=2), channels=24
    ),
    "max pool": lambda: conv(C(1, 3, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), nn.SiLU(), channels=27),
    "average pool": lambda: conv(
        C(1, 3, 3, padding=1), nn.GELU(), nn.AvgPool2d(3, 2, padding=1), channels=27
    ),
    "adaptive pools": lambda: conv(
        C(1, 3, 3, padding=1), nn.AdaptiveAvgPool2d(4), nn.ReLU(), nn.AdaptiveMaxPool2d(2), channels=12
    ),
    "residual with norms": lambda: conv(
        C(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        Residual(C(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU()),
        nn.AdaptiveAvgPool2d(1),
        channels=4,
    ),
}
NETWORKS = {**MLPS, **CONVS}
PRUNED = trustgp.JacobianRows(keep=30, keep_per_expert=20)


def rows_of(name: str, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs of a network, and targets."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n, 3) if name in MLPS else (n, 1, 6, 6)
    inputs = torch.randn(shape, generator=generator)
    flat = inputs.flatten(1)
    return inputs, torch.stack([flat[:, :3].sum(dim=1).sin(), flat[:, 0] * flat[:, 1]], dim=1)


def network_of(name: str) -> nn.Module:
    """With weights and running statistics that are not those of a fresh network."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = NETWORKS[name]().train()
        with torch.no_grad():
            for seed in range(3):
                network(2.0 * rows_of(name, 20, seed + 5)[0] + 0.3)
    return network.eval()


def model_of(name: str, **options: Any) -> trustgp.UncertaintyModel:
    """A model of one of these networks with two experts; without a witness unless one is asked for."""
    options = {"num_experts": 2, "progress": False, "witness": None, **options}
    rows = 40 if options["witness"] is None else 60  # with fewer there is none
    return trustgp.fit(network_of(name), rows_of(name, rows), **options)


def assert_equal(prediction: trustgp.Prediction, outputs: Mapping[str, Any]) -> None:
    """Answers of a graph are those of `predict`: relative 1e-4, means beside their spread."""
    outputs = {name: np.asarray(value) for name, value in outputs.items()}
    corrected = prediction.corrected
    for one, mean, lead in ((prediction, "mean", ""), (corrected, "corrected", "corrected_")):
        variance = f"{lead}variance"
        spread = one.variance.sqrt().numpy()
        errors = np.abs(outputs[mean] - one.mean.numpy())
        bad = ~(errors <= 1e-4 * (np.abs(one.mean.numpy()) + spread))
        assert not bad[prediction.valid.numpy()].any(), mean
        np.testing.assert_allclose(outputs[variance], one.variance.numpy(), rtol=1e-4, err_msg=variance)
    np.testing.assert_allclose(outputs["novelty"], prediction.novelty.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(outputs["score"], prediction.score.numpy(), rtol=1e-4, atol=1e-6)
    for name in ("expert", "valid"):
        value = getattr(prediction, name)
        np.testing.assert_array_equal(outputs[name], value.numpy())
        assert outputs[name].dtype == value.numpy().dtype
    for name in ("mean", "variance", "novelty"):
        value = getattr(prediction, name).numpy()
        assert (outputs[name].shape, outputs[name].dtype) == (value.shape, value.dtype)
