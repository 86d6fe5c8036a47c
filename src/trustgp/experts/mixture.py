"""A gate and its experts, for one kernel: inputs in, latent predictions out."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from ..data.chunking import map_chunks
from ..data.trees import Inputs, count, moved, take
from ..math.calibration import CalibrationRows
from ..tangents.base import Features, TangentMap
from .expert import Expert
from .features import amplitudes, chunk_rows
from .gate import Gate, nearest_two
from .posteriors import Sizes, log_kappas, with_posteriors


@dataclass(frozen=True)
class LatentPrediction:
    """Answers for n rows and the B outputs of a mixture, before calibration, float64, each [n, B]."""

    epistemic: Tensor
    noise: Tensor
    log_kappa: Tensor
    residual_mean: Tensor
    novelty: Tensor  # epistemic over prior variance
    expert: Tensor  # which expert of each gate answered, int64 [n, G]
    witness_mean: Tensor  # what the witness expects of y - f(x)
    witness_precision: Tensor  # how much that counts; 0 without a witness

    @classmethod
    def cat(cls, parts: list[LatentPrediction], dim: int = 0) -> LatentPrediction:
        """Several lots of rows one after another; with dim=1 the outputs of several mixtures side by side."""
        return cls(**{name: torch.cat([getattr(part, name) for part in parts], dim) for name in _NAMES})

    def finite(self) -> Tensor:
        """Which rows have a finite answer, shape [n]."""
        answers = (self.epistemic, self.residual_mean, self.witness_mean)
        return torch.stack([torch.isfinite(value).all(dim=1) for value in answers]).all(dim=0)

    def take(self, rows: Tensor) -> LatentPrediction:
        """The answers for some of the rows."""
        return moved(self, lambda value: value[rows])

    def spread(self, rows: Tensor) -> LatentPrediction:
        """These answers at the True places of `rows` [n]; elsewhere: nothing known, infinite variance."""
        blank = {"epistemic": torch.inf, "novelty": 1.0, "expert": -1}
        spread = {}
        for name in _NAMES:
            value = getattr(self, name)
            spread[name] = value.new_full((len(rows), value.shape[1]), blank.get(name, 0.0))
            spread[name][rows] = value
        return LatentPrediction(**spread)

    def calibration_rows(self, residual: Tensor, outputs: Tensor) -> CalibrationRows:
        """These rows as held-out rows, one entry per row and output."""
        values = {name: getattr(self, name) for name in _NAMES if name != "expert"}
        return CalibrationRows.of(outputs, residual=residual, **values)


_NAMES = [field.name for field in fields(LatentPrediction)]


@dataclass(frozen=True)
class Mixture:
    """One kernel's gate and experts."""

    tangents: TangentMap  # makes features
    gate: Gate  # sends a row to an expert
    experts: tuple[Expert, ...]  # M of them
    outputs: Tensor  # which outputs of the network they serve [B]
    neighbours: tuple[tuple[int, ...], ...]  # of each expert
    bound: Tensor  # share of squared kernel mass between experts, a scalar

    @cached_property
    def log_kappa(self) -> Tensor:
        """Leave-one-out scales of the experts, steadied where an expert has few rows, shape [M, B]."""
        return log_kappas(self.experts)

    def shrink(self, sizes: Sizes) -> Mixture:
        """With smaller experts and a smaller gate; no training rows are needed."""
        lots = [e.posterior.features for e in self.experts if e.posterior.features is not None]
        pack = sizes.packer(lots)
        experts = [expert.shrink(sizes, pack) for expert in self.experts]
        experts = with_posteriors(experts, [expert.posterior for expert in experts], sizes)
        return replace(self, experts=tuple(experts), gate=self.gate.shrink(sizes))

    @torch.no_grad()
    def raw(self, inputs: Inputs, features: Features | None = None) -> LatentPrediction:
        """Answers of the experts that the gate chooses, chunk by chunk.

        Of many rows, those of an expert stand together, so that it is asked once and not in every chunk. That
        takes their features twice: not where gradients are written out, which are dearer than the answers.
        Features that are known are not made.
        """
        if features is not None:
            return self._answers(features)
        size, n = chunk_rows(self.tangents), count(inputs)
        every = torch.arange(n)
        if n <= size or self.tangents.num_columns(expert=False) is not None:
            parts = map_chunks(lambda rows: self._answers(self.tangents(take(inputs, rows))), every, size)
            return parts[0] if len(parts) == 1 else LatentPrediction.cat(parts)
        labels = torch.cat(
            map_chunks(lambda rows: self._labels(self.tangents(take(inputs, rows))), every, size)
        )
        order = labels.argsort(stable=True)
        parts = map_chunks(
            lambda rows: self._answers(self.tangents(take(inputs, rows)), labels[rows]), order, size
        )
        return LatentPrediction.cat(parts).take(order.argsort())

    def _labels(self, features: Features) -> Tensor:
        """Which expert answers for each row, shape [n]."""
        return nearest_two(self.gate.embed(features), self.gate.centroids)[0]

    def _answers(self, features: Features, labels: Tensor | None = None) -> LatentPrediction:
        labels = self._labels(features) if labels is None else labels
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
        size, blended = answer.residual_mean.shape, len(expert.scale) < len(self.outputs)
        columns = features.select(expert.posterior.columns)
        amplitude = amplitudes(self.tangents, columns, blended=blended)
        return LatentPrediction(
            epistemic=unit[:, None] * amplitude * expert.scale,
            noise=expert.noise.expand(size),
            log_kappa=self.log_kappa[index].expand(size),
            residual_mean=answer.residual_mean,
            novelty=novelty.clamp_max(1.0)[:, None].expand(size),
            expert=torch.full_like(unit, index, dtype=torch.int64)[:, None],
            witness_mean=torch.zeros_like(answer.residual_mean),
            witness_precision=torch.zeros_like(answer.residual_mean),
        )
