"""A gate and its experts, for one kernel: inputs in, latent predictions out."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from ..data.chunking import map_chunks
from ..data.trees import Inputs, count, take
from ..math.calibration import CalibrationRows, steady_log_kappa
from ..tangents.base import Features, TangentMap
from .expert import Expert
from .features import amplitudes, chunk_rows
from .gate import Gate, nearest_two
from .posteriors import narrowed_alike
from .shrink import Sizes


@dataclass(frozen=True)
class LatentPrediction:
    """Answers for n rows and the B outputs of a mixture, before calibration, all float64.

    Args:
        epistemic, noise, log_kappa, residual_mean: Shape [n, B].
        novelty: Epistemic over prior variance, shape [n, B].
        expert: Which expert of each gate answered, shape [n, G], int64.
        witness_mean: What the witness expects of y - f(x), shape [n, B].
        witness_precision: How much that counts, shape [n, B]; 0 without a witness.
    """

    epistemic: Tensor
    noise: Tensor
    log_kappa: Tensor
    residual_mean: Tensor
    novelty: Tensor
    expert: Tensor
    witness_mean: Tensor
    witness_precision: Tensor

    @classmethod
    def cat(cls, parts: list[LatentPrediction], dim: int = 0) -> LatentPrediction:
        """Several lots of rows, one after another."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name) for part in parts], dim) for name in names})

    @classmethod
    def join(cls, parts: list[LatentPrediction]) -> LatentPrediction:
        """The same rows, the outputs of several mixtures side by side."""
        return cls.cat(parts, dim=1)

    def finite(self) -> Tensor:
        """Which rows have a finite answer, shape [n]."""
        answers = (self.epistemic, self.residual_mean, self.witness_mean)
        return torch.stack([torch.isfinite(value).all(dim=1) for value in answers]).all(dim=0)

    def take(self, rows: Tensor) -> LatentPrediction:
        """The answers for some of the rows."""
        return LatentPrediction(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def spread(self, rows: Tensor) -> LatentPrediction:
        """These answers at the True places of `rows` [n]; elsewhere: nothing known, infinite variance."""
        blank = {"epistemic": torch.inf, "novelty": 1.0, "expert": -1}
        spread = {}
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            full = value.new_full((len(rows), value.shape[1]), blank.get(name, 0.0))
            full[rows] = value
            spread[name] = full
        return LatentPrediction(**spread)

    def calibration_rows(self, residual: Tensor, outputs: Tensor) -> CalibrationRows:
        """These rows as held-out rows, one entry per row and output."""
        size = residual.shape
        return CalibrationRows(
            residual=residual.flatten(),
            residual_mean=self.residual_mean.flatten(),
            epistemic=self.epistemic.flatten(),
            noise=self.noise.flatten(),
            novelty=self.novelty.flatten(),
            log_kappa=self.log_kappa.flatten(),
            output=outputs.to(residual.device).expand(size).flatten(),
            witness_mean=self.witness_mean.flatten(),
            witness_precision=self.witness_precision.flatten(),
        )


@dataclass(frozen=True)
class Mixture:
    """One kernel's gate and experts.

    Args:
        tangents: Makes features.
        gate: Sends a row to an expert.
        experts: M of them.
        outputs: Which outputs of the network they serve, shape [B].
        neighbours: Of each expert.
        bound: Share of squared kernel mass between experts, a scalar.
    """

    tangents: TangentMap
    gate: Gate
    experts: tuple[Expert, ...]
    outputs: Tensor
    neighbours: tuple[tuple[int, ...], ...]
    bound: Tensor

    @cached_property
    def log_kappa(self) -> Tensor:
        """Leave-one-out scales of the experts, steadied where an expert has few rows, shape [M, B]."""
        kappa = torch.stack([expert.kappa for expert in self.experts])
        own = torch.stack([expert.own for expert in self.experts])
        return steady_log_kappa(kappa.log(), own.to(kappa.device))

    def shrink(self, sizes: Sizes) -> Mixture:
        """With smaller experts and a smaller gate; no training rows are needed."""
        lots = [e.posterior.features for e in self.experts if e.posterior.features is not None]
        pack = sizes.packer(lots)
        experts = [expert.shrink(sizes, pack) for expert in self.experts]
        if sizes.half:
            posteriors = narrowed_alike([expert.posterior for expert in experts])
            experts = [replace(e, posterior=p) for e, p in zip(experts, posteriors, strict=True)]
        return replace(self, experts=tuple(experts), gate=self.gate.shrink(sizes))

    @torch.no_grad()
    def raw(self, inputs: Inputs, features: Features | None = None) -> LatentPrediction:
        """Answers of the experts that the gate chooses, chunk by chunk.

        Of many rows, those of an expert stand together, so that it is asked once and not in every chunk. That
        takes their features twice: not where gradients are written out, which are dearer than the answers.

        Args:
            inputs: Of the rows.
            features: Theirs, where they are known.
        """
        if features is not None:
            return self._answers(features, self._labels(features))
        size, n = chunk_rows(self.tangents), count(inputs)
        every = torch.arange(n)
        if n <= size or self.tangents.num_columns(expert=False) is not None:
            parts = map_chunks(lambda rows: self._at_once(take(inputs, rows)), every, size)
            return parts[0] if len(parts) == 1 else LatentPrediction.cat(parts)
        labels = torch.cat(
            map_chunks(lambda rows: self._labels(self.tangents(take(inputs, rows))), every, size)
        )
        order = labels.argsort(stable=True)
        parts = map_chunks(
            lambda rows: self._answers(self.tangents(take(inputs, rows)), labels[rows]), order, size
        )
        return LatentPrediction.cat(parts).take(order.argsort())

    def _at_once(self, inputs: Inputs) -> LatentPrediction:
        features = self.tangents(inputs)
        return self._answers(features, self._labels(features))

    def _labels(self, features: Features) -> Tensor:
        """Which expert answers for each row, shape [n]."""
        return nearest_two(self.gate.embed(features), self.gate.centroids)[0]

    def _answers(self, features: Features, labels: Tensor) -> LatentPrediction:
        order = labels.argsort(stable=True)
        sizes = torch.bincount(labels, minlength=len(self.experts)).tolist()
        parts = [
            self._answer(expert, features.take(rows))
            for expert, rows in enumerate(order.split(sizes))
            if len(rows)
        ]
        return LatentPrediction.cat(parts).take(order.argsort())

    def _answer(self, index: int, features: Features) -> LatentPrediction:
        expert = self.experts[index]
        answer = expert.posterior(features)
        unit = torch.where(torch.isfinite(answer.unit), answer.unit, torch.nan)  # an overflow is no answer
        if bool((unit < 0).any()):
            warnings.warn(
                f"expert {index}: {int((unit < 0).sum())} of {len(unit)} variances fell below zero by "
                f"rounding (lowest {float((unit / answer.prior).min()):.1e} of the prior) and were set to 0.",
                stacklevel=2,
            )
            unit = unit.clamp_min(0.0)
        known = answer.prior > 0
        novelty = torch.where(known, unit / torch.where(known, answer.prior, 1.0), 1.0)
        size = answer.residual_mean.shape
        return LatentPrediction(
            epistemic=unit[:, None] * self._amplitudes(expert, features) * expert.scale,
            noise=expert.noise.expand(size),
            log_kappa=self.log_kappa[index].expand(size),
            residual_mean=answer.residual_mean,
            novelty=novelty.clamp_max(1.0)[:, None].expand(size),
            expert=torch.full_like(unit, index, dtype=torch.int64)[:, None],
            witness_mean=torch.zeros_like(answer.residual_mean),
            witness_precision=torch.zeros_like(answer.residual_mean),
        )

    def _amplitudes(self, expert: Expert, features: Features) -> Tensor:
        blended = len(expert.scale) < len(self.outputs)
        return amplitudes(self.tangents, features.select(expert.columns), blended=blended)
