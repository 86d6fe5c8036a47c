"""A gate and its experts, for one kernel: inputs in, latent predictions out."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..data.chunking import map_chunks
from ..data.trees import Inputs, count, moved, take
from ..math.calibration import MAX_VARIANCE, MIN_SUPPORT, steady_log_kappa
from ..math.held_out import CalibrationRows
from ..tangents.base import Features, TangentMap
from ..tangents.replay import Branch
from .blocks import by_owner
from .expert import Expert
from .features import amplitudes, chunk_rows
from .gate import Gate, nearest
from .hidden import HiddenRows
from .posteriors import LatentMoments
from .stack import SpanStack
from .whole import WholePosterior


@dataclass(frozen=True)
class LatentPrediction:
    """Predictions for n rows and the B outputs of a mixture, before calibration, float64, each [n, B]."""

    epistemic: Tensor
    noise: Tensor
    log_kappa: Tensor
    residual_mean: Tensor
    novelty: Tensor  # epistemic over prior variance
    expert: Tensor  # index of the expert, of each gate, int64 [n, G]
    witness_mean: Tensor  # of y - f(x)
    witness_precision: Tensor  # 0 without a witness
    log_leverage: Tensor  # of the posterior of all rows; 0 without one
    log_noise: Tensor  # log of the noise of the rows nearby; 0 without a witness
    log_stated: Tensor  # log of the variance that the network states; 0 where it states none
    # log novelty and distance of the witness [n, 2], or log distance of hidden vectors [n, 1]; None: neither
    nearest: Tensor | None = None
    # of outputs in the posterior of all rows [n, C^2], or of differences of leading logits; None: unknown
    covariance: Tensor | None = None

    @classmethod
    def cat(cls, parts: list[LatentPrediction], dim: int = 0) -> LatentPrediction:
        """Concatenate chunks of rows; with dim=1 the outputs of several mixtures."""
        if len(parts) == 1:
            return parts[0]
        values: Any = {name: [getattr(part, name) for part in parts] for name in _NAMES}
        whole: Any = {k: torch.cat(v, dim) for k, v in values.items() if v[-1] is not None}
        return cls(**whole if dim == 0 else whole | {"nearest": parts[0].nearest})  # of the first mixture

    def with_fields(self, values: dict[str, Tensor]) -> LatentPrediction:
        """Prediction with some values replaced; `replace` would take as long as ten operations on a row."""
        return LatentPrediction(**vars(self) | values) if values else self

    def finite(self) -> Tensor:
        """Mask of the finite rows [n]."""
        return torch.isfinite(self._checked().sum(dim=1))

    def all_finite(self) -> bool:
        """Whether the sum over all rows is finite: a quick sufficient test."""
        total: Any = self._checked().sum().tolist()
        return math.isfinite(total)

    def _checked(self) -> Tensor:
        values = [getattr(self, name) for name in CHECKED]
        return torch.cat([value for value in values if value is not None], dim=1)

    def take(self, rows: Tensor) -> LatentPrediction:
        """The predictions of these rows."""
        return moved(self, lambda value: value[rows])

    def spread(self, rows: Tensor) -> LatentPrediction:
        """These predictions where the mask `rows` [n] is True; infinite variance elsewhere."""
        blank = {"epistemic": torch.inf, "novelty": 1.0, "expert": -1}
        spread = {}
        for name in _NAMES:
            if (value := getattr(self, name)) is not None:
                spread[name] = value.new_full((len(rows), value.shape[1]), blank.get(name, 0.0))
                spread[name][rows] = value
        return LatentPrediction(**spread)

    def masked(self, zeros: Tensor) -> tuple[LatentPrediction, Tensor]:
        """Prediction with blanks in invalid rows, as in `spread`, and the mask of valid rows [n], without
        reading a value; `zeros` [n, 1] are NaN where inputs or outputs are not finite."""
        blank = {"epistemic": torch.inf, "novelty": 1.0, "expert": -1}
        values = {name: value for name in _NAMES if (value := getattr(self, name)) is not None}
        first = {k: v[:, :1] if v.shape[1] > 1 and v.stride(1) == 0 else v for k, v in values.items()}
        checked = [k for k in CHECKED if k in values]
        names = [*checked, *(k for k in values if k not in blank and k not in checked)]
        widths, table = [first[k].shape[1] for k in names], torch.cat([first[k] for k in names], dim=1)
        tested = table[:, : sum(widths[: len(checked)])] * 0.0  # of NaN and infinities it is not 0
        valid = tested.sum(dim=1, keepdim=True) + zeros == 0
        parts = torch.where(valid, table, 0.0).split(widths, dim=1)
        made = dict(zip(names, parts, strict=True))
        made |= {k: torch.where(valid, first[k], v) for k, v in blank.items()}
        return LatentPrediction(**{k: v.expand_as(values[k]) for k, v in made.items()}), valid[:, 0]

    def measures(self) -> Tensor:
        """Logarithms of novelty measures: `nearest` [n, K], or share of the prior and variance [n, 2]."""
        if self.nearest is not None:
            return self.nearest
        variance = (self.epistemic + self.noise).clamp(MIN_VARIANCE, MAX_VARIANCE)
        own = self.novelty.mean(dim=1).clamp_min(MIN_SUPPORT), variance.log().mean(dim=1).exp()
        return torch.stack(own, dim=1).log()

    def calibration_rows(self, residual: Tensor, outputs: Tensor, target: Tensor) -> CalibrationRows:
        """These rows as held-out rows, one entry per row and output."""
        own = (name for name in _NAMES if name not in ("expert", "nearest", "covariance"))
        values = {name: getattr(self, name) for name in own}
        values |= {"target": target, "measures": self.measures()}
        return CalibrationRows.of(outputs, residual=residual, **values)


CHECKED = ("epistemic", "residual_mean", "witness_mean", "log_stated", "covariance")  # must be finite
MIN_VARIANCE = 1e-300  # its logarithm is finite
_NAMES = [field.name for field in fields(LatentPrediction)]


@dataclass(frozen=True)
class Mixture:
    """Gate and experts of one kernel."""

    tangents: TangentMap  # makes features
    gate: Gate  # sends a row to an expert
    experts: tuple[Expert, ...]  # M of them
    outputs: Tensor  # which outputs of the network they serve [B]
    neighbours: tuple[tuple[int, ...], ...]  # of each expert
    bound: Tensor  # share of squared kernel mass between experts, a scalar
    whole: WholePosterior | None = None  # of all rows, for each output
    hidden: HiddenRows | None = None  # of training rows, for the novelty of classes

    @cached_property
    def log_kappa(self) -> Tensor:
        """Leave-one-out scales of the experts, steadied where an expert has few rows, shape [M, B]."""
        kappa = torch.stack([expert.kappa for expert in self.experts])
        return steady_log_kappa(kappa.log(), torch.stack([e.own for e in self.experts]).to(kappa.device))

    @property
    def directions(self) -> int:
        """Largest number of directions that an expert keeps; 0: experts keep rows."""
        return max(expert.posterior.directions for expert in self.experts)

    def truncate(self, rank: int | None) -> Mixture:
        """Mixture with at most `rank` directions in each expert; None: all."""
        return replace(
            self, experts=tuple(replace(e, posterior=e.posterior.truncate(rank)) for e in self.experts)
        )

    @torch.no_grad()
    def raw(self, inputs: Inputs, features: Features | None = None) -> LatentPrediction:
        """Predictions of the experts that the gate chooses, in chunks.

        Many rows are sorted by expert, so that each expert predicts once and not in every chunk. That takes
        their features twice, which does not pay for explicit gradients. `features`, if passed, are used.
        """
        if features is not None:
            return self._predict(features)
        size, n = chunk_rows(self.tangents), count(inputs)
        every = torch.arange(n)
        if n <= size or self.tangents.num_columns(expert=False) is not None:
            parts = map_chunks(lambda rows: self._predict(self.tangents(take(inputs, rows))), every, size)
            return LatentPrediction.cat(parts)
        labels = torch.cat(
            map_chunks(lambda rows: self.labels(self.tangents(take(inputs, rows))), every, size)
        )
        order = labels.argsort(stable=True)
        parts = map_chunks(
            lambda rows: self._predict(self.tangents(take(inputs, rows)), labels[rows]), order, size
        )
        return LatentPrediction.cat(parts).take(order.argsort())

    @cached_property
    def numbers(self) -> Tensor:
        """Scale, noise and leave-one-out scale of each expert, shape [M, 3, B]."""
        columns = [torch.stack([getattr(e, name) for e in self.experts]) for name in ("scale", "noise")]
        return torch.stack([*columns, self.log_kappa], dim=1)

    @cached_property
    def stack(self) -> SpanStack | None:
        """The experts in stacked tensors; None where they keep rows."""
        return SpanStack.of([expert.posterior for expert in self.experts])

    def labels(self, features: Features) -> Tensor:
        """The expert of each row, shape [n]."""
        if len(self.experts) == 1:
            return torch.zeros(len(features), dtype=torch.int64, device=self.tangents.network.device)
        return nearest(self.gate.embed(features), self.gate.centroids)

    def _predict(self, features: Features, labels: Tensor | None = None) -> LatentPrediction:
        with Branch(self.tangents.network.device) as branch:
            own = self._statistics(features)
        labels = self.labels(features) if labels is None else labels
        moments, amplitude = (self._looped if self.stack is None else self.stacked)(features, labels)
        branch.join()
        return self.latent(labels, moments, amplitude, own)

    def stacked(
        self, features: Any, labels: Tensor, moments: LatentMoments | None = None
    ) -> tuple[LatentMoments, Tensor | None]:
        """Moments of n rows, the passed ones if any, corrected for failed experts; and amplitudes where a
        kernel serves several outputs."""
        assert self.stack is not None
        kept = self.stack.select(features, labels)
        moments = self.stack(kept, labels) if moments is None else moments
        several, failed = len(self.tangents.mix) > 1, self.stack.failed
        sizes = amplitudes(self.tangents, kept, blended=self.blended) if several else None
        if failed is not None:  # which have no columns, and do not reduce the gradient at all
            failed, prior = failed[labels], features.diag()
            unit, norms = (torch.where(failed, prior, one) for one in (moments.unit, moments.prior))
            moments = LatentMoments(unit, norms, moments.residual_mean)
            if sizes is not None:
                whole = amplitudes(self.tangents, features, blended=self.blended)
                sizes = torch.where(failed[:, None], whole, sizes)
        return moments, sizes

    def _looped(self, features: Features, labels: Tensor) -> tuple[LatentMoments, Tensor | None]:
        """Moments and amplitudes as from `stacked`, for experts that keep rows: one after another."""

        def own(expert: int, rows: Any) -> tuple[Tensor, ...]:
            return self._moments(expert, features if isinstance(rows, slice) else features.take(rows))

        unit, prior, mean, *sizes = by_owner(own, labels, len(self.experts))
        return LatentMoments(unit, prior, mean), sizes[0] if sizes else None

    @property
    def blended(self) -> bool:
        """Whether the experts learn combinations of the outputs."""
        return len(self.experts[0].scale) < len(self.outputs)

    def _statistics(self, features: Any) -> dict[str, Tensor]:
        """Fields that do not depend on the expert: the leverage, and the distance of hidden vectors."""
        own = {} if self.whole is None else self.whole.latent(features.by_output)
        return own | ({} if self.hidden is None else {"nearest": self.hidden(features.hidden)})

    def _moments(self, index: int, features: Features) -> tuple[Tensor, ...]:
        """Variance over s [n], prior [n] and residual mean [n, B] of one expert; amplitudes where a kernel
        serves several outputs."""
        expert = self.experts[index]
        moments = expert.posterior(features)
        unit = moments.unit
        if expert.posterior.signed and bool((unit < 0).any()):
            warnings.warn(
                f"expert {index}: {int((unit < 0).sum())} of {len(unit)} variances fell below zero by "
                f"rounding (lowest {float((unit / moments.prior).min()):.1e} of the prior), now 0.",
                stacklevel=2,
            )
            unit = unit.clamp_min(0.0)
        values = unit, moments.prior, moments.residual_mean
        if len(self.tangents.mix) == 1:
            return values
        columns = features.select(expert.posterior.columns)
        return *values, amplitudes(self.tangents, columns, blended=self.blended)

    @cached_property
    def _limits(self) -> tuple[Tensor, Tensor]:
        """Scalars 0 and 1 on the device of `numbers`."""
        return self.numbers.new_zeros(()), self.numbers.new_ones(())

    def latent(
        self, labels: Tensor, moments: LatentMoments, amplitude: Tensor | None, own: dict[str, Tensor]
    ) -> LatentPrediction:
        """Latent prediction from the moments of the experts `labels` [n] and fields `own` of the rows."""
        zero, one = self._limits
        unit, mean = moments.unit, moments.residual_mean
        scale, noise, log_kappa = self.numbers.index_select(0, labels).unbind(dim=1)
        # at most 1; `fmin` turns 0 / 0 into 1: without a gradient a row is novel
        novelty = torch.fmin(unit / moments.prior, one)
        values = {
            "epistemic": unit[:, None] * (scale if amplitude is None else amplitude * scale),
            "noise": noise,
            "log_kappa": log_kappa,
            "residual_mean": mean,
            "novelty": novelty[:, None].expand_as(mean),
            "expert": labels[:, None],
        }
        names = ("witness_mean", "witness_precision", "log_leverage", "log_noise", "log_stated")
        return LatentPrediction(**(dict.fromkeys(names, zero.expand_as(mean)) | values | own))
