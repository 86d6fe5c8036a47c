"""Every option of a fit, parsed once: whatever can be refused without the data is refused here."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from ..data.batches import Unpack
from ..data.quantities import Budget, parse_budget, parse_bytes
from ..data.user_warnings import nearest_name
from ..executors import Executor, Ray, Threads, usual_threads
from ..experts.gate import Division
from ..experts.neighbours import Patchwork
from ..experts.witness import Witness
from ..likelihoods import KINDS, Likelihood, Regression
from ..tangents import JacobianRows, LayerFactors, Sketch, Tangents
from ..tangents.network import Choice
from ..tangents.outputs import Output

OUTPUTS = ("shared", "separate", "pseudo")
# by name; `trustgp.paper` fits the others
LIKELIHOODS: dict[str, type] = {name.lower(): kind for name, kind in KINDS.items() if kind.calibrated}
TANGENTS: dict[str, type] = {"sketch": Sketch, "jacobian_rows": JacobianRows, "layer_factors": LayerFactors}
PARAMETERS = ("last", "all")  # values of `tangents` that choose parameters instead


@runtime_checkable
class _Runner(Protocol):
    """An executor, without `workers`: the check for that property would query a cluster."""

    def run(self, function: Any, tasks: Any) -> Any: ...


OBJECTS: dict[str, tuple[dict[str, type], Any]] = {
    "likelihood": (LIKELIHOODS, Likelihood),
    "patchwork": ({"patchwork": Patchwork}, Patchwork),
    "division": ({"division": Division}, Division),
    "witness": ({"witness": Witness}, Witness),
    "executor": ({"threads": Threads, "ray": Ray}, _Runner),
}
"""Options that are objects: their classes by name, and their base class."""


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of `trustgp.fit`, which documents them; created by `parse`."""

    likelihood: Likelihood = field(default_factory=Regression)
    validation: Any = None
    groups: Any = None
    weights: Any = None
    num_experts: int | None = None
    tangents: Tangents | None = None
    parameters: Choice = "all"  # those that count, where tangents are chosen for the user
    outputs: str = "pseudo"
    select: Output | None = None
    patchwork: Patchwork = field(default_factory=Patchwork)
    division: Division = field(default_factory=Division)
    witness: Witness | None = None
    budget: Budget = field(default_factory=Budget)
    memory: int | None = None
    executor: Executor | None = None
    device: torch.device | None = None
    seed: int = 0
    progress: bool = True
    checkpoint: Path | None = None
    strict: bool = False
    hidden_rows: int = 2**31  # rows whose hidden vectors are kept, at most; not a user option
    unpack: Unpack | None = None

    @classmethod
    def parse(cls, **given: Any) -> FitOptions:
        """Checked options of the user: strings, classes and names are parsed, and None is the default. The
        default of `witness` is no witness."""
        options = {name: value for name, value in given.items() if value is not None}
        if isinstance(options.get("witness"), bool):
            options["witness"] = Witness() if options["witness"] else None
        for name, (kinds, base) in OBJECTS.items():
            if options.get(name) is not None:
                options[name] = as_object(name, options[name], kinds, base)
        if "tangents" in options:
            options |= _parse_tangents(options.pop("tangents"))
        likelihood = options.setdefault("likelihood", Regression())
        options["budget"] = parse_budget(given.get("budget"), name="budget")
        default = likelihood.default_outputs if options["budget"].exact else "pseudo"
        outputs = options.setdefault("outputs", default)
        if outputs not in OUTPUTS:
            hint = nearest_name(str(outputs), OUTPUTS)
            raise ValueError(f'outputs="{outputs}"; allowed are "shared", "separate" and "pseudo".{hint}')
        for name in ("num_experts", "seed"):
            value = options.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise TypeError(f"{name}={value!r}; a whole number is needed.")
        if options.get("num_experts", 1) < 1:
            raise ValueError(f"num_experts={options['num_experts']}; at least one is needed.")
        if not likelihood.uses_witness:
            options["witness"] = None
        if "memory" in options:
            options["memory"] = parse_bytes(options["memory"], name="memory")
        if "device" in options:
            options["device"] = _parse_device(options["device"])
        if "checkpoint" in options:
            if not isinstance(options["checkpoint"], (str, PathLike)):
                raise TypeError(f"checkpoint={options['checkpoint']!r}; the path of a folder is needed.")
            path = options["checkpoint"] = Path(options["checkpoint"])
            if os.path.isfile(path):
                what = f"checkpoint={str(path)!r} is a file; name a folder; it need not exist"
                raise NotADirectoryError(errno.ENOTDIR, what)
        if "unpack" in options and not callable(options["unpack"]):
            kind = type(options["unpack"]).__name__
            raise TypeError(f"unpack is a {kind}; a function is needed: lambda batch: (inputs, targets).")
        return cls(**options)

    @property
    def light(self) -> bool:
        """Whether experts keep only their best-determined directions."""
        return not self.budget.exact

    def executors(self, device: torch.device) -> list[Executor]:
        """Candidate executors, best first: the user's, or else threads, and last a single thread."""
        return [usual_threads(device), Threads(1)] if self.executor is None else [self.executor]

    def settings(self) -> dict[str, Any]:
        """Settings of the experts, as plain values: for the fingerprint of a checkpoint."""
        return {
            "outputs": self.outputs,
            "likelihood": [type(self.likelihood).__name__, self.likelihood.settings()],
            "components": self.division.components,
            "subset": self.division.subset,
            "patchwork": [self.patchwork.neighbours, self.patchwork.fraction],
            "budget": [self.budget.size, self.budget.exact],
            "witness": None if self.witness is None else self.witness.settings(),
            "seed": self.seed,
        }


def as_object(name: str, value: Any, kinds: Mapping[str, type], base: Any) -> Any:
    """Instance of `base` from an option: an instance, a class without parentheses, or a name in `kinds`."""
    parsed, wrong = value, TypeError
    if isinstance(value, str):
        named = {_plain(key): kind for key, kind in kinds.items()}
        parsed, wrong = named.get(_plain(value)), ValueError
    if isinstance(parsed, type) and issubclass(parsed, tuple(kinds.values())):
        return parsed()
    if isinstance(parsed, base) and not isinstance(parsed, type):
        return parsed
    shown = [f'"{key}"' for key in kinds] if len(kinds) > 1 else []
    for kind in kinds.values():
        shown.append(f"{kind.__name__}({', '.join(f'{key}=...' for key in signature(kind).parameters)})")
    hint = nearest_name(value, kinds) if isinstance(value, str) else ""
    raise wrong(f"{name}={value!r}; allowed are {', '.join(shown)}, or None.{hint}")


def _parse_tangents(value: Any) -> dict[str, Any]:
    """Options `tangents` or `parameters` from a value: tangents, or "last", "all" or a list of names."""
    names = isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
    if names or value in PARAMETERS:
        return {"parameters": tuple(value) if names else value}
    try:
        return {"tangents": as_object("tangents", value, TANGENTS, Tangents)}
    except (TypeError, ValueError) as error:
        also = '"last" or "all" or a list of names: which parameters count'
        raise type(error)(f"{error} Or {also}.") from None


def _parse_device(value: Any) -> torch.device:
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device={value!r}; allowed are such as "cpu", "cuda" or "cuda:1".') from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f'device="{device}", but torch finds no GPU here; pass device="cpu", or None.')
    return device


def _plain(name: str) -> str:
    return name.lower().translate({ord(letter): None for letter in "_- "})
