"""One trial of the ablation: fit, predict all test rows, score."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from trustgp import metrics
from trustgp.api import fit
from trustgp.data.rows import read_rows
from trustgp.executors import FitContext, Threads
from trustgp.executors.progress import reporting
from trustgp.experts.witness import Witness, WitnessState
from trustgp.experts.witness_fit import find_witness
from trustgp.fitting.calibrate import calibrate
from trustgp.likelihoods.prediction import Prediction
from trustgp.model import UncertaintyModel
from trustgp.tangents import JacobianRows

from ...core.arm import ArmRows, arm_recipe, arm_rows
from ...core.recipes import Pair
from ...core.result import Setting
from .axes import NUM_EXPERTS, QUICK_EXPERTS, AblationTrial

SHARE = 3  # small trials see one row in so many
WARM_ROWS = 64


class Bench:
    """Rows, network and witness of one seed, made when they are first needed: a finished part needs none.

    Args:
        seed: Of split, network and division.
        setting: Of the study.
    """

    def __init__(self, seed: int, setting: Setting) -> None:
        self.seed = seed
        self.setting = setting
        self._witnesses: dict[bool, WitnessState] = {}

    @cached_property
    def rows(self) -> ArmRows:
        """Of the arm."""
        return arm_rows(seed=self.seed, quick=self.setting.quick)

    @cached_property
    def network(self) -> nn.Module:
        """The one that all trials share, and a machine that has done each kind of fit before it is timed."""
        setting = self.setting
        recipe = arm_recipe(setting.quick)
        network = recipe.train(self.rows.train, seed=self.seed, device=setting.device)
        few: Any = tuple(part[:WARM_ROWS] for part in self.rows.train)
        for tangents in (None, JacobianRows(keep=WARM_ROWS)):
            fit(network, few, validation=few, tangents=tangents, num_experts=2, progress=False)
        return network

    def describe(self) -> dict[str, Any]:
        """What the rows are, as JSON."""
        small = len(self.train(small=True)[0])
        return {
            "source": self.rows.source,
            "about": self.rows.about,
            "rows": {**self.rows.sizes, "small": small},
        }

    def train(self, *, small: bool) -> Pair:
        """Training rows: all, or a random part that is the same in every small trial."""
        if not small:
            return self.rows.train
        n = self.rows.sizes["train"]
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed))
        chosen = order[: n // SHARE].sort().values
        inputs, targets = self.rows.train
        return inputs[chosen], targets[chosen]

    def fitted(self, trial: AblationTrial) -> UncertaintyModel:
        """The experts alone."""
        options: dict[str, Any] = {
            "num_experts": QUICK_EXPERTS if self.setting.quick else NUM_EXPERTS,
            "outputs": "pseudo" if trial.small else "shared",
            "validation": self.rows.validation if trial.validated else None,
            **trial.options,
        }
        with warnings.catch_warnings():
            if not trial.validated:  # that leave-one-out is optimistic is what is measured
                warnings.filterwarnings("ignore", message="the rows look like a time series")
            return fit(
                self.network,
                self.train(small=trial.small),
                witness=None,
                device=self.setting.device,
                seed=self.seed,
                progress=False,
                **options,
            )

    def heard(self, model: UncertaintyModel, trial: AblationTrial) -> UncertaintyModel:
        """The same experts with the witness that `fit` would find, calibrated together."""
        if trial.small not in self._witnesses:
            self._witnesses[trial.small] = self._find_witness(small=trial.small)
        provenance = replace(model.origin, witness=Witness())
        state = replace(model.state, provenance=provenance, witness=self._witnesses[trial.small])
        with reporting(enabled=False) as quiet:
            return UncertaintyModel(calibrate(state, quiet))

    def measure(self, trial: AblationTrial, *, heard: bool) -> dict[str, Any]:
        """Sizes, scores on all test rows and times, as JSON.

        Args:
            trial: To be done.
            heard: Whether to score it with the witness as well.
        """
        inputs, targets = self.rows.test
        _ = self.network  # trained before the clock starts
        start = time.perf_counter()
        model = self.fitted(trial)
        fitted = time.perf_counter()
        alone = model.predict(inputs)
        found = {"own": alone, "corrected": alone.corrected, "plain": alone.plain}
        predicted = time.perf_counter()
        if heard:
            both = self.heard(model, trial).predict(inputs)
            found |= {"heard_own": both, "heard_corrected": both.corrected}
        return {
            **sizes_of(model),
            **scores_of(found, targets),
            "fit_seconds": fitted - start,
            "predict_seconds": predicted - fitted,
        }

    def _find_witness(self, *, small: bool) -> WitnessState:
        rows = read_rows(self.train(small=small), name="train")
        with reporting(enabled=False) as quiet:
            device = torch.device(self.setting.device)
            context = FitContext(device, self.seed, Threads(1 if device.type == "cuda" else None), quiet)
            witness = find_witness(rows, Witness(), context, None)
        assert witness is not None, "an arm's rows are few numbers each"
        return witness


def sizes_of(model: UncertaintyModel) -> dict[str, Any]:
    """How much a model holds, and the work of its factorisations: the sum over experts of rows cubed."""
    rows = [len(expert.rows) for mixture in model.mixtures for expert in mixture.experts]
    return {
        "experts": model.num_experts,
        "failed": len(model.failed),
        "held_rows": sum(rows) / len(rows),
        "work": sum(count**3 for count in rows),
        "bytes": model.nbytes,
    }


def scores_of(predictions: Mapping[str, Prediction], targets: Tensor) -> dict[str, dict[str, float]]:
    """Scores over all rows and torques, by prediction.

    Args:
        predictions: By name, each of n rows.
        targets: Shape [n, C].
    """

    def score(found: Prediction) -> dict[str, float]:
        known = targets.to(found.mean.device)
        return {
            "nll": float(metrics.gaussian_nll(found.mean, found.variance, known).mean()),
            "mse": float(metrics.mse(found.mean, known)),
            "coverage": float(metrics.coverage(found, known)),
        }

    scores = {name: score(found) for name, found in predictions.items()}
    return {key: {name: one[key] for name, one in scores.items()} for key in ("nll", "mse", "coverage")}
