"""What the ablation turns, one axis for each setting of the method, and one trial: fit, predict, score."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from trustgp import metrics
from trustgp.api import fit
from trustgp.experts.gate import Division
from trustgp.experts.neighbours import Patchwork
from trustgp.experts.witness import Witness
from trustgp.likelihoods.prediction import Prediction
from trustgp.model import UncertaintyModel
from trustgp.tangents import JacobianRows, LayerFactors

from ...core.arm import ArmRows, arm_recipe, arm_rows
from ...core.recipes import Pair
from ...core.result import Setting
from ..scale.fits import held_rows

KINDS = {"own": "own", "corrected": "corrected", "plain": "plain"}
"""Predictions of the experts alone: about the network's output, about the corrected mean, evidence only."""
HEARD = {"heard_own": "own, witness", "heard_corrected": "corrected, witness"}
"""The same experts with the witness beside them."""

ALL = "all"
NUM_EXPERTS, QUICK_EXPERTS = EXPERTS = 12, 4  # of a full run, and of a quick one
KEPT, QUICK_KEPT = 8192, 256  # parameters kept for all experts where stage (ii) is turned
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


@dataclass(frozen=True)
class AblationTrial:
    """One fit; of the options what is not named is the library's default, but for the witness."""

    name: str  # of its part of the results: letters, digits, dots and dashes
    options: Mapping[str, Any] = field(default_factory=dict)  # of `trustgp.fit`
    small: bool = False  # on a third of the rows, with the pseudo kernel: what gradient rows can afford
    validated: bool = True  # whether it may see the validation rows


@dataclass(frozen=True)
class Point:
    """A setting on an axis: what is fitted, and by column (`KINDS`, `HEARD`) the score that stands there."""

    label: str
    trial: AblationTrial
    scores: Mapping[str, str] = field(default_factory=lambda: {name: name for name in (*KINDS, *HEARD)})


@dataclass(frozen=True)
class Axis:
    """A setting that is turned while all others stay at their defaults."""

    name: str  # in the numbers
    title: str  # for people
    points: Sequence[Point]
    default: str  # label of the library's
    ordered: bool = True  # whether the points are numbers that grow


DEFAULT = AblationTrial("default")
SMALL = AblationTrial("small", small=True)
LEFT_OUT = AblationTrial("leave-one-out", validated=False)


def paper_axes(quick: bool) -> list[Axis]:
    """What the paper turns."""
    most, kept = (QUICK_EXPERTS, QUICK_KEPT) if quick else (NUM_EXPERTS, KEPT)
    each = f"pruning (ii), an expert's, of {kept}"
    turned = partial(_turned, quick)

    return [
        turned("experts", "experts", most, lambda value: {"num_experts": value}),
        turned("subset", "subset of the gate", 512, lambda v: {"division": Division(subset=v)}),
        turned("stage_one", "pruning (i), parameters for all", ALL, base=SMALL, trial=_rows),
        turned("stage_two", each, ALL, base=_rows(kept), trial=partial(_rows, kept)),
        turned(
            "fraction", "active fraction of a neighbour", 0.1, lambda v: {"patchwork": Patchwork(fraction=v)}
        ),
    ]


def our_axes(quick: bool) -> list[Axis]:
    """What is ours to choose."""
    kept, each = (QUICK_KEPT, QUICK_PER_EXPERT) if quick else (KEPT, PER_EXPERT)
    alone, heard = ({name: name for name in names} for names in (KINDS, HEARD))
    outputs = [Point(kind, AblationTrial(kind, {"outputs": kind})) for kind in ("separate", "pseudo")]
    tangents = [  # rows with every parameter kept have the kernel of the factors: no point of their own
        Point("factors", SMALL),
        Point(f"rows, {kept}", _rows(kept)),
        Point(f"rows, {kept}/{each}", _rows(kept, each)),
        Point("last layer", AblationTrial("last-layer", {"tangents": LayerFactors("last")}, small=True)),
    ]
    calibration = [
        Point("validation rows", DEFAULT),
        Point("leave-one-out", LEFT_OUT),
        Point("evidence only", DEFAULT, {"own": "plain"}),
    ]
    witness = [Point("off", DEFAULT, alone), Point("on", DEFAULT, heard)]
    turned = partial(_turned, quick)
    return [
        turned("components", "components of the gate", 8, lambda v: {"division": Division(components=v)}),
        turned("neighbours", "neighbours", 4, lambda v: {"patchwork": Patchwork(neighbours=v)}),
        Axis("outputs", "outputs", [Point("shared", DEFAULT), *outputs], "shared", ordered=False),
        Axis("tangents", "gradients", tangents, "factors", ordered=False),
        Axis("witness", "witness", witness, "on", ordered=False),
        Axis("calibration", "calibration", calibration, "validation rows", ordered=False),
    ]


def trials_of(axes: Sequence[Axis]) -> list[AblationTrial]:
    """Every trial once, in order."""
    return list({point.trial.name: point.trial for axis in axes for point in axis.points}.values())


def _turned(
    quick: bool,
    name: str,
    title: str,
    default: Any,
    options: Callable[[Any], dict[str, Any]] = dict,
    *,
    base: AblationTrial = DEFAULT,
    trial: Callable[[Any], AblationTrial] | None = None,
) -> Axis:
    """An axis of values; the default is the base trial, `options` are those of `fit`, or `trial` is all."""

    def turned(value: Any) -> AblationTrial:
        return AblationTrial(f"{name}-{value}".replace(" ", ""), options(value))

    points = [Point(str(v), base if v == default else (trial or turned)(v)) for v in VALUES[name][quick]]
    return Axis(name, title, points, str(default))


def _rows(kept: int, each: int | None = None) -> AblationTrial:
    """Gradient rows after stage (i), and (ii) where `each` is given: points of several axes."""
    name = f"kept-{kept}" if each is None else f"kept-{kept}-each-{each}"
    return AblationTrial(name, {"tangents": JacobianRows(keep=kept, keep_per_expert=each)}, small=True)


SHARE = 3  # small trials see one row in so many
WARM_ROWS = 64


class Bench:
    """Rows and network of one seed, made when they are first needed: a finished part needs none."""

    def __init__(self, seed: int, setting: Setting) -> None:
        self.seed, self.setting = seed, setting

    @cached_property
    def rows(self) -> ArmRows:
        """Of the arm."""
        return arm_rows(seed=self.seed, quick=self.setting.quick)

    @cached_property
    def network(self) -> nn.Module:
        """The one that all trials share, and a machine that has done each kind of fit before it is timed."""
        recipe = arm_recipe(self.setting.quick)
        network = recipe.train(self.rows.train, seed=self.seed, device=self.setting.device)
        few, held = ([part[:WARM_ROWS] for part in pair] for pair in (self.rows.train, self.rows.validation))
        for tangents in (None, JacobianRows(keep=WARM_ROWS)):
            options: Any = {"validation": tuple(held), "tangents": tangents, "num_experts": 2}
            fit(network, tuple(few), progress=False, **options)
        return network

    def describe(self) -> dict[str, Any]:
        """What the rows are, as JSON."""
        sizes = {**self.rows.sizes, "small": len(self.train(small=True)[0])}
        return {"source": self.rows.source, "about": self.rows.about, "rows": sizes}

    def train(self, *, small: bool) -> Pair:
        """Training rows: all, or a random part that is the same in every small trial."""
        if not small:
            return self.rows.train
        n = self.rows.sizes["train"]
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed))
        chosen = order[: n // SHARE].sort().values
        inputs, targets = self.rows.train
        return inputs[chosen], targets[chosen]

    def fitted(self, trial: AblationTrial, *, witness: Witness | None = None) -> UncertaintyModel:
        """The experts alone, or the same ones with the witness."""
        options: dict[str, Any] = {"num_experts": self.setting.sized(*EXPERTS), "budget": "none"}
        options["outputs"] = "pseudo" if trial.small else "shared"
        options["validation"] = self.rows.validation if trial.validated else None
        options |= {**trial.options, "device": self.setting.device, "seed": self.seed}
        with warnings.catch_warnings():
            if not trial.validated:  # that leave-one-out is optimistic is what is measured
                warnings.filterwarnings("ignore", message="the rows look like a time series")
            rows = self.train(small=trial.small)
            return fit(self.network, rows, witness=witness, progress=False, **options)

    def measure(self, trial: AblationTrial, *, heard: bool) -> dict[str, Any]:
        """Sizes, scores on all test rows and times, as JSON; `heard`: with the witness as well."""
        inputs, targets = self.rows.test
        _ = self.network  # trained before the clock starts
        start = time.perf_counter()
        model = self.fitted(trial)
        fitted = time.perf_counter()
        alone = model.predict(inputs)
        found = {"own": alone, "corrected": alone.corrected, "plain": alone.plain}
        seconds = {"fit_seconds": fitted - start, "predict_seconds": time.perf_counter() - fitted}
        if heard:
            both = self.fitted(trial, witness=Witness()).predict(inputs)
            found |= {"heard_own": both, "heard_corrected": both.corrected}
        return {**sizes_of(model), **scores_of(found, targets), **seconds}


def sizes_of(model: UncertaintyModel) -> dict[str, Any]:
    """How much a model holds, and the work of its factorisations: the sum over experts of rows cubed."""
    rows = held_rows(model)
    return {
        "experts": model.num_experts,
        "failed": len(model.failed),
        "held_rows": sum(rows) / len(rows),
        "work": sum(count**3 for count in rows),
        "bytes": model.nbytes,
    }


def scores_of(predictions: Mapping[str, Prediction], targets: Tensor) -> dict[str, dict[str, float]]:
    """Scores over all rows and torques, by score and prediction; targets [n, C]."""
    found: dict[str, dict[str, float]] = {"nll": {}, "mse": {}, "coverage": {}}
    for name, said in predictions.items():
        known = targets.to(said.mean.device)
        found["nll"][name] = float(metrics.gaussian_nll(said.mean, said.variance, known).mean())
        found["mse"][name] = float(metrics.mse(said.mean, known))
        found["coverage"][name] = float(metrics.coverage(said, known))
    return found
