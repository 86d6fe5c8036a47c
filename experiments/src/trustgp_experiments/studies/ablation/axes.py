"""The settings that the ablation varies, an axis for each, and one trial: fit, predict, score."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from trustgp import metrics
from trustgp.api import fit
from trustgp.experts.gate import Division
from trustgp.experts.neighbours import Patchwork
from trustgp.experts.witness import Witness
from trustgp.model import UncertaintyModel
from trustgp.tangents import JacobianRows, LayerFactors

from ...core.arm import ArmRows, arm_recipe, arm_rows
from ...core.recipes import Pair
from ...core.result import Setting
from ..scale.study import held_rows

KINDS = {"own": "own", "corrected": "corrected", "plain": "plain"}
"""Predictions without a witness: around the network's output, around the corrected mean, evidence only."""
WITNESS_KINDS = {"heard_own": "own, witness", "heard_corrected": "corrected, witness"}
"""Predictions of the same experts with the witness; the keys are those of stored results."""

ALL = "all"
NUM_EXPERTS, QUICK_EXPERTS = EXPERTS = 12, 4  # of a full run, and of a quick one
KEPT, QUICK_KEPT = 8192, 256  # parameters kept for all experts where stage (ii) is varied
PER_EXPERT, QUICK_PER_EXPERT = 2048, 64  # of these, columns that an expert keeps in the pruned rows
VALUES: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {  # of a full run, and of a quick one
    "experts": ((3, 6, NUM_EXPERTS, 24, 48, 96), (2, QUICK_EXPERTS)),
    "subset": ((64, 128, 256, 512, 1024, 2048), (64, 512)),
    "stage_one": ((128, 512, 2048, KEPT, ALL), (QUICK_KEPT, ALL)),
    "stage_two": ((128, 512, PER_EXPERT, ALL), (QUICK_PER_EXPERT, ALL)),
    "fraction": ((0.0, 0.05, 0.1, 0.2, 0.5), (0.0, 0.1)),
    "components": ((2, 4, 8, 16, 32), (2, 8)),
    "neighbours": ((1, 2, 4, 8), (1, 4)),
}
SMALL_SHARE = 3  # small trials use one row in so many
WARM_ROWS = 64


@dataclass(frozen=True)
class AblationTrial:
    """One fit; all options but the witness that are not given have the library's defaults."""

    name: str  # of its part of the results: letters, digits, dots and dashes
    options: Mapping[str, Any] = field(default_factory=dict)  # of `trustgp.fit`
    small: bool = False  # on a third of the rows, with the pseudo kernel, since gradient rows are costly
    validated: bool = True  # whether it calibrates on the validation rows


@dataclass(frozen=True)
class Axis:
    """A setting that varies while all others stay at their defaults."""

    name: str  # in the numbers
    title: str
    trials: Mapping[str, AblationTrial]  # by the label of a setting
    default: str  # label of the library's default


DEFAULT = AblationTrial("default")
SMALL = AblationTrial("small", small=True)
LEAVE_ONE_OUT = AblationTrial("leave-one-out", validated=False)


def paper_axes(quick: bool) -> list[Axis]:
    """Axes of the settings that the paper varies."""
    experts, kept = (QUICK_EXPERTS, QUICK_KEPT) if quick else (NUM_EXPERTS, KEPT)
    per_expert = f"pruning (ii), an expert's, of {kept}"
    active = "active fraction of a neighbour"
    axis = partial(_axis, quick)
    return [
        axis("experts", "experts", experts, lambda value: {"num_experts": value}),
        axis("subset", "subset of the gate", 512, lambda v: {"division": Division(subset=v)}),
        axis("stage_one", "pruning (i), parameters for all", ALL, base=SMALL, trial=_rows),
        axis("stage_two", per_expert, ALL, base=_rows(kept), trial=partial(_rows, kept)),
        axis("fraction", active, 0.1, lambda v: {"patchwork": Patchwork(fraction=v)}),
    ]


def our_axes(quick: bool) -> list[Axis]:
    """Axes of our own choices."""
    kept, per_expert = (QUICK_KEPT, QUICK_PER_EXPERT) if quick else (KEPT, PER_EXPERT)
    outputs = {kind: AblationTrial(kind, {"outputs": kind}) for kind in ("separate", "pseudo")}
    tangents = {  # rows with every parameter kept have the kernel of the factors: no point of their own
        "factors": SMALL,
        f"rows, {kept}": _rows(kept),
        f"rows, {kept}/{per_expert}": _rows(kept, per_expert),
        "last layer": AblationTrial("last-layer", {"tangents": LayerFactors("last")}, small=True),
    }
    calibration = {"validation rows": DEFAULT, "leave-one-out": LEAVE_ONE_OUT}
    axis = partial(_axis, quick)
    return [
        axis("components", "components of the gate", 8, lambda v: {"division": Division(components=v)}),
        axis("neighbours", "neighbours", 4, lambda v: {"patchwork": Patchwork(neighbours=v)}),
        Axis("outputs", "outputs", {"shared": DEFAULT, **outputs}, "shared"),
        Axis("tangents", "gradients", tangents, "factors"),
        Axis("calibration", "calibration", calibration, "validation rows"),
    ]


def trials_of(axes: Sequence[Axis]) -> list[AblationTrial]:
    """Trials of all axes, each once, in order."""
    return list({trial.name: trial for axis in axes for trial in axis.trials.values()}.values())


def _axis(
    quick: bool,
    name: str,
    title: str,
    default: Any,
    options: Callable[[Any], dict[str, Any]] = dict,
    *,
    base: AblationTrial = DEFAULT,
    trial: Callable[[Any], AblationTrial] | None = None,
) -> Axis:
    """Axis of values: the default is the trial `base`, others are from `trial` or have `options` of `fit`."""

    def make(value: Any) -> AblationTrial:
        return AblationTrial(f"{name}-{value}".replace(" ", ""), options(value))

    trials = {str(v): base if v == default else (trial or make)(v) for v in VALUES[name][quick]}
    return Axis(name, title, trials, str(default))


def _rows(kept: int, per_expert: int | None = None) -> AblationTrial:
    """Trial with gradient rows after stage (i), and (ii) if `per_expert` is given; several axes share it."""
    name = f"kept-{kept}" if per_expert is None else f"kept-{kept}-each-{per_expert}"
    return AblationTrial(name, {"tangents": JacobianRows(keep=kept, keep_per_expert=per_expert)}, small=True)


class Bench:
    """Rows and network of one seed, made when they are first needed: a cached part needs none."""

    def __init__(self, seed: int, setting: Setting) -> None:
        self.seed, self.setting = seed, setting

    @cached_property
    def rows(self) -> ArmRows:
        return arm_rows(seed=self.seed, quick=self.setting.quick)

    @cached_property
    def network(self) -> nn.Module:
        """Network that all trials share; small fits of each kind first load what later fits need."""
        recipe = arm_recipe(self.setting.quick)
        network = recipe.train(self.rows.train, seed=self.seed, device=self.setting.device)
        few, validation = (tuple(p[:WARM_ROWS] for p in x) for x in (self.rows.train, self.rows.validation))
        for tangents in (None, JacobianRows(keep=WARM_ROWS)):
            options: Any = {"validation": validation, "tangents": tangents, "num_experts": 2}
            fit(network, few, progress=False, **options)
        return network

    def describe(self) -> dict[str, Any]:
        sizes = {**self.rows.sizes, "small": len(self.train(small=True)[0])}
        return {"source": self.rows.source, "about": self.rows.about, "rows": sizes}

    def train(self, *, small: bool) -> Pair:
        """Training rows: all, or a random part that is the same in every small trial."""
        if not small:
            return self.rows.train
        n = self.rows.sizes["train"]
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed))
        chosen = order[: n // SMALL_SHARE].sort().values
        inputs, targets = self.rows.train
        return inputs[chosen], targets[chosen]

    def fitted(self, trial: AblationTrial, *, witness: Witness | None = None) -> UncertaintyModel:
        """The model of a trial, without or with a witness."""
        options: dict[str, Any] = {"num_experts": self.setting.sized(*EXPERTS), "budget": "none"}
        options["outputs"] = "pseudo" if trial.small else "shared"
        options["validation"] = self.rows.validation if trial.validated else None
        options |= {**trial.options, "device": self.setting.device, "seed": self.seed}
        with warnings.catch_warnings():
            if not trial.validated:  # the study measures how optimistic leave-one-out is
                warnings.filterwarnings("ignore", message="the rows look like a time series")
            rows = self.train(small=trial.small)
            return fit(self.network, rows, witness=witness, progress=False, **options)

    def measure(self, trial: AblationTrial, *, witness: bool) -> dict[str, Any]:
        """Sizes, NLL of all test rows by kind of prediction and fit seconds, as JSON values.

        `witness` adds the NLL with a witness. The `work` of factorisations sums the cubed rows of experts.
        """
        inputs, targets = self.rows.test
        _ = self.network  # trained before the clock starts
        start = time.perf_counter()
        model = self.fitted(trial)
        seconds = time.perf_counter() - start
        own, rows = model.predict(inputs), held_rows(model)
        predictions = {"own": own, "corrected": own.corrected, "plain": own.plain}
        if witness:
            both = self.fitted(trial, witness=Witness()).predict(inputs)
            predictions |= {"heard_own": both, "heard_corrected": both.corrected}
        nll = {
            name: float(metrics.gaussian_nll(p.mean, p.variance, targets.to(p.mean.device)).mean())
            for name, p in predictions.items()
        }
        sizes = {"held_rows": sum(rows) / len(rows), "work": sum(count**3 for count in rows)}
        sizes |= {"experts": model.num_experts, "bytes": model.nbytes}
        return {**sizes, "nll": nll, "fit_seconds": seconds}
