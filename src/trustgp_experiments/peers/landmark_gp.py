"""One sparse Gaussian process with the tangent kernel, on landmarks, over all rows: no experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trustgp.data.chunking import chunks
from trustgp.data.rows import Rows, read_rows
from trustgp.data.trees import Inputs
from trustgp.experts.expert import Expert
from trustgp.experts.features import chunk_rows
from trustgp.experts.mixture import Mixture
from trustgp.likelihoods.prediction import Prediction
from trustgp.math.calibration import Calibration, CalibrationRows, held_out_loss
from trustgp.model import UncertaintyModel
from trustgp.state.model_state import ModelState
from trustgp.state.predict import calibration_rows

from .landmark_posterior import LandmarkSums, Projected, accumulate, choose_landmarks
from .subset_gp import SubsetGP

DECADES = range(-8, 3)  # tau, as powers of ten of the kernel's mean diagonal: the range that experts search
FRAME_ROWS = 256  # rows of the exact GP whose place the sparse one takes


@dataclass(frozen=True)
class LandmarkGP:
    """A network and one sparse GP. Made by `fit`.

    Args:
        model: With one expert, whose posterior is a `LandmarkPosterior`.
        tau: The chosen noise ratio.
    """

    model: UncertaintyModel
    tau: float

    @classmethod
    def fit(
        cls,
        network: nn.Module,
        train: Any,
        validation: Any,
        *,
        landmarks: int = 512,
        candidates: int = 2048,
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> LandmarkGP:
        """Landmarks by pivoted Cholesky, one pass over all rows, tau by the validation likelihood.

        Each output's scale is the evidence's. The calibration on the validation rows is trustgp's own (but
        for the leave-one-out scale, which is 1), so what is left of a difference comes from the experts
        (and from the witness, which is not asked).

        Args:
            network: Trained, in eval mode.
            train: The rows it was trained on: (inputs, targets), a Dataset or a DataLoader.
            validation: Rows it was not trained on.
            landmarks: m.
            candidates: Random rows from which they are chosen, most uncertain first.
            seed: Of the candidates.
            device: Where to work; None: where the network is.
        """
        rows, held = read_rows(train, name="train"), read_rows(validation, name="validation")
        options: dict[str, Any] = {"rows": FRAME_ROWS, "seed": seed, "device": device}
        model = SubsetGP.fit(network, rows, held, **options).model  # all but the posterior is the same
        (mixture,) = model.mixtures
        with torch.no_grad():
            chosen = choose_landmarks(mixture.tangents, rows, landmarks, candidates, seed)
            sums = accumulate(mixture.tangents, chosen, rows)
            tau, calibrations = _choose(model, sums, held)
        sparse = replace(mixture, experts=(_expert(mixture.experts[0], sums, tau),))
        return cls(UncertaintyModel(ModelState(model.network, (sparse,), model.origin, calibrations)), tau)

    def predict(self, inputs: Inputs) -> Prediction:
        """The network's own output, with the GP's error bar; `corrected` adds the GP's residual mean.

        Args:
            inputs: A tensor, tuple or dict, as the network takes them.
        """
        return self.model.predict(inputs)


def _choose(
    model: UncertaintyModel, sums: LandmarkSums, held: Rows
) -> tuple[float, tuple[Calibration, Calibration]]:
    """The tau of the largest likelihood of the validation rows, each with its own calibrations."""
    seen, frame = _seen(model.mixtures[0], sums, held), _frame(model, held)
    found = []
    for decade in DECADES:
        tau = float(sums.level) * 10.0**decade
        rows = _held_out(sums, tau, seen, frame)
        calibrations = model.origin.likelihood.calibrate(rows, model.shape, None)
        found.append((float(held_out_loss(calibrations[0], rows)), tau, calibrations))
    _, tau, calibrations = min(found, key=lambda entry: entry[0])
    return tau, calibrations


def _seen(mixture: Mixture, sums: LandmarkSums, held: Rows) -> Projected:
    """The validation rows in the basis of the landmarks."""
    tangents = mixture.tangents
    places = chunks(len(held), chunk_rows(tangents))
    parts = [sums.project(tangents(held.take(index))) for index in places]
    return Projected(
        *(torch.cat([getattr(part, name) for part in parts]) for name in ("inside", "outside", "prior"))
    )


def _frame(model: UncertaintyModel, held: Rows) -> CalibrationRows:
    """The validation rows as the calibration wants them, with another GP's answers."""
    places = [(index, index.to(held.targets.device)) for index in chunks(len(held))]
    return CalibrationRows.cat(
        [calibration_rows(model.state, held.take(index), held.targets[there]) for index, there in places]
    )


def _held_out(sums: LandmarkSums, tau: float, rows: Projected, frame: CalibrationRows) -> CalibrationRows:
    """The validation rows with the sparse GP's answers at one tau."""
    found, scale = sums.posterior(tau).answer(rows), sums.scale(tau)
    unit = found.unit.clamp_min(0.0)[:, None]  # rounding; predictions warn about it

    def entries(values: Tensor) -> Tensor:
        return values.expand(found.residual_mean.shape).flatten().to(frame.residual)

    return replace(
        frame,
        residual_mean=entries(found.residual_mean),
        epistemic=entries(unit * scale),
        noise=entries(tau * scale),
        novelty=entries((unit / found.prior[:, None]).clamp_max(1.0)),
        log_kappa=torch.zeros_like(frame.log_kappa),
    )


def _expert(frame: Expert, sums: LandmarkSums, tau: float) -> Expert:
    """The sparse GP in the place of an expert."""
    scale = sums.scale(tau)
    posterior: Any = sums.posterior(tau)
    return replace(
        frame,
        rows=torch.empty(0, dtype=torch.int64),
        own=sums.rows.long(),
        posterior=posterior,
        scale=scale,
        noise=tau * scale,
        kappa=torch.ones_like(scale),
        jitter=scale.new_zeros(()),
    )
