"""Twelve small fitted models for the whole run, each fitted when a test first asks for it. Do not change one.

`def test_x(fitted_zoo): member = fitted_zoo["regression-rows-pseudo-witness"]`: `member.network, .inputs,
.targets, .validation, .fresh, .options, .model`; `member.fit(seed=1)` fits again with other options. Several:
`@pytest.mark.parametrize("name", names("regression", "witness"))`, those with both words in their names.
"""

import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from pairwise import every_pair
from tiny_networks import Trainer, train
from torch import Tensor, nn

import trustgp

TANGENTS = {"sketch": trustgp.Sketch(24), "rows": trustgp.JacobianRows(), "factors": trustgp.LayerFactors()}
KINDS = ("regression", "classification")
PAIRS = every_pair(["shared", "separate", "pseudo"], [*TANGENTS], KINDS, ["witness", ""], ["", "validation"])
WORDS = [
    (kind, tangents, outputs, witness if kind == "regression" else "", validation)
    for outputs, tangents, kind, witness, validation in PAIRS
]
NAMES = (
    "regression-default",
    "classification-default",
    "regression-images",
    *("-".join(filter(None, words)) for words in WORDS),
)


def names(*words: str) -> list[str]:
    """The members whose names contain all of the words."""
    return [name for name in NAMES if set(words) <= set(name.split("-"))]


@dataclass(frozen=True)
class Member:
    """A float64 network, its 120 training rows, 80 for validation, 40 that no fit has seen, and the model."""

    name: str
    network: nn.Module
    inputs: Tensor
    targets: Tensor
    validation: tuple[Tensor, Tensor]
    fresh: tuple[Tensor, Tensor]

    @property
    def options(self) -> dict[str, Any]:
        """Of `trustgp.fit`."""
        words = self.name.split("-")
        options: dict[str, Any] = {"num_experts": 3, "progress": False, "likelihood": words[0]}
        if words[1] in TANGENTS:
            witness = trustgp.Witness() if "witness" in words else None
            options |= {"tangents": TANGENTS[words[1]], "outputs": words[2], "witness": witness}
        if "factors" in words:
            options["budget"] = "none"
        return {**options, "validation": self.validation} if "validation" in words else options

    def fit(self, **changed: Any) -> Any:
        """A new model with the member's options, but for those given."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no validation rows
            return trustgp.fit(self.network, (self.inputs, self.targets), **{**self.options, **changed})

    @cached_property
    def model(self) -> Any:
        return self.fit()


class FittedZoo:
    """The members by name."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}

    def __getitem__(self, name: str) -> Member:
        if name not in NAMES:
            raise KeyError(f"{name}; the zoo has {', '.join(NAMES)}")
        if name not in self.members:
            self.members[name] = Member(name, *_case(name.split("-")[0], "images" in name))
        return self.members[name]


@cache
def _case(kind: str, images: bool) -> tuple[nn.Module, Tensor, Tensor, tuple, tuple]:
    """A trained network with training, validation and fresh rows; members of one kind share it."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(240, 36 if images else 3, generator=generator, dtype=torch.float64) * 4 - 2
    x, y, z = inputs[:, :3].T
    noise = torch.randn(240, 2, generator=generator, dtype=torch.float64)
    targets = torch.stack([x.sin() + y, y * z.cos()], dim=1) + 0.1 * noise
    if kind == "classification":
        targets = (targets[:, 0] > 0).long() + (targets[:, 0] + 0.5 * noise[:, 1] > 1).long()
    if images:
        inputs = inputs.reshape(-1, 1, 6, 6)
    rows = [(inputs[part], targets[part]) for part in (slice(120), slice(120, 200), slice(200, 240))]
    if images:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = [nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 2)]
        network = nn.Sequential(*layers).double()
        train(network, lambda net: (net(rows[0][0]) - rows[0][1]).square().mean())
    else:
        network = Trainer(classes=kind == "classification")(*rows[0])
    return network, *rows[0], rows[1], rows[2]
