"""Every option of a fit, parsed once: whatever can be refused without looking at the data is refused here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..data.quantities import Budget, parse_budget, parse_bytes
from ..executors import Executor, Threads, usual_threads
from ..experts.gate import Division
from ..experts.neighbours import Patchwork
from ..experts.witness import Witness
from ..likelihoods import Likelihood, Regression
from ..tangents import Tangents
from ..tangents.modules import Output

OUTPUTS = ("shared", "separate", "pseudo")


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The options of `trustgp.fit`, which says what each is. Made by `parse`."""

    likelihood: Likelihood = field(default_factory=Regression)
    validation: Any = None
    groups: Any = None
    num_experts: int | None = None
    tangents: Tangents | None = None
    outputs: str = "pseudo"
    output: Output | None = None
    patchwork: Patchwork = field(default_factory=Patchwork)
    division: Division = field(default_factory=Division)
    witness: Witness | None = None
    budget: Budget = field(default_factory=Budget)
    rank: int | None = None  # directions that an expert of a light model keeps, as its budget has it
    memory: int | None = None
    executor: Executor | None = None
    device: torch.device | None = None
    seed: int = 0
    progress: bool = True
    checkpoint: Path | None = None
    strict: bool = False

    @classmethod
    def parse(cls, **given: Any) -> FitOptions:
        """What a user has said, checked; budget, memory, device and checkpoint may be texts or objects.

        What is left out, or None, has its default; without `witness` there is none.
        """
        said = {name: value for name, value in given.items() if value is not None}
        likelihood = said.setdefault("likelihood", Regression())
        said["budget"] = parse_budget(given.get("budget"), name="budget")
        exact = said["budget"].exact
        outputs = said.setdefault("outputs", likelihood.default_outputs if exact else "pseudo")
        if outputs not in OUTPUTS:
            raise ValueError(f'outputs="{outputs}"; allowed are "shared", "separate" and "pseudo".')
        if (experts := said.get("num_experts", 1)) < 1:
            raise ValueError(f"num_experts={experts}; at least one is needed.")
        if not likelihood.uses_witness:
            said["witness"] = None
        if "memory" in said:
            said["memory"] = parse_bytes(said["memory"], name="memory")
        for name, kind in (("device", torch.device), ("checkpoint", Path)):
            if name in said:
                said[name] = kind(said[name])
        return cls(**said)

    @property
    def light(self) -> bool:
        """Whether experts keep only the directions of which most is known."""
        return not self.budget.exact

    def executors(self, device: torch.device) -> list[Executor]:
        """Those that may be tried, the best first: the user's, or threads, at last a single one."""
        return [usual_threads(device), Threads(1)] if self.executor is None else [self.executor]

    def settings(self) -> dict[str, Any]:
        """What is asked of every expert, as plain values: for the fingerprint of a checkpoint."""
        return {
            "outputs": self.outputs,
            "likelihood": [type(self.likelihood).__name__, self.likelihood.settings()],
            "components": self.division.components,
            "patchwork": [self.patchwork.neighbours, self.patchwork.fraction],
            "budget": [self.budget.size, self.budget.exact],
            "witness": None if self.witness is None else self.witness.settings(),
            "seed": self.seed,
        }
