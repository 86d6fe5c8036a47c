"""One trial of the ablation: fit, predict all test rows, score."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from trustgp import metrics
from trustgp.api import fit
from trustgp.experts.witness import Witness
from trustgp.likelihoods.prediction import Prediction
from trustgp.model import UncertaintyModel
from trustgp.tangents import JacobianRows

from ...core.arm import ArmRows, arm_recipe, arm_rows
from ...core.recipes import Pair
from ...core.result import Setting
from ..scale.fits import held_rows
from .axes import NUM_EXPERTS, QUICK_EXPERTS, AblationTrial

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
        few: Any = tuple(part[:WARM_ROWS] for part in self.rows.train)
        for tangents in (None, JacobianRows(keep=WARM_ROWS)):
            fit(network, few, validation=few, tangents=tangents, num_experts=2, progress=False)
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
        options: dict[str, Any] = {
            "num_experts": QUICK_EXPERTS if self.setting.quick else NUM_EXPERTS,
            "outputs": "pseudo" if trial.small else "shared",
            "validation": self.rows.validation if trial.validated else None,
            **trial.options,
        }
        options |= {"device": self.setting.device, "seed": self.seed}
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
        predicted = time.perf_counter()
        if heard:
            both = self.fitted(trial, witness=Witness()).predict(inputs)
            found |= {"heard_own": both, "heard_corrected": both.corrected}
        return {
            **sizes_of(model),
            **scores_of(found, targets),
            "fit_seconds": fitted - start,
            "predict_seconds": predicted - fitted,
        }


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
