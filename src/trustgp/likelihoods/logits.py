"""Base of the likelihoods of classes and labels: logits, temperatures and pooled novelty measures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..data.tensor_file import Reader
from ..data.trees import moved
from ..experts.mixture import LatentPrediction
from ..math import cross_entropy
from ..math.cross_entropy import NUM_POOLED, UsualNovelty
from ..math.quantiles import TAIL_LEVELS
from .base import Likelihood, ReferenceScores, Shape, common_fields, wide

MAX_NAMED = 8  # classes or labels in a text


class LogitLikelihood(Likelihood):
    """Base of likelihoods with logits; their calibrations are a temperature and a `UsualNovelty`."""

    default_outputs: ClassVar[str] = "pseudo"
    uses_witness: ClassVar[bool] = False
    uses_hidden: ClassVar[bool] = True
    common_prior: ClassVar[bool] = True
    uses_stated: ClassVar[bool] = False
    needs_held_out: ClassVar[bool] = True
    titles: ClassVar[tuple[str, ...]] = ("temperature", "usual novelty")
    kind: ClassVar[Any]  # class of the predictions

    def combined(self, results: Sequence[Any]) -> Any:
        """Logits of the mean probabilities of several networks."""
        usable = isinstance(results[0], Tensor)  # stated variances are refused later, as for one network
        return self.mean_logits(torch.stack(list(results))) if usable else results[0]

    def mean_logits(self, logits: Tensor) -> Tensor:
        """Logits of the mean probabilities of M networks, from their logits [M, n] or [M, n, C]."""
        return cross_entropy.mean_logits(logits)

    def output_combination(self, mix: Tensor, generator: torch.Generator) -> Tensor:
        """The combination [C, 1] of the logits that the experts of a kernel with the mix W [K, C] learn.

        A kernel of one combination ("pseudo", "separate") learns that combination. The kernel of all outputs
        ("shared") has one scale for all, so it learns s W z with random signs s: its mean square is on
        average that of W z.
        """
        if len(mix) == 1:
            return mix.T.clone()
        signs = torch.randint(0, 2, (1, len(mix)), generator=generator).double() * 2 - 1
        return (signs @ mix).T

    def recalibrate(self, rows: Any, shape: Shape, calibrations: Any) -> Any:
        """All calibrations fitted to held-out rows."""
        return self.calibrate(rows, shape, None)

    def score(self, measures: Tensor, calibrations: Any) -> Tensor:
        """Minus the logarithm of the share of held-out rows that are more novel; see `UsualNovelty`."""
        return calibrations[1](measures)

    def prediction(
        self,
        outputs: Tensor,
        raw: LatentPrediction,
        calibrations: Any,
        valid: Tensor | None = None,
        reference: ReferenceScores | None = None,
    ) -> Any:
        """Prediction for logits [n] or [n, C]; experts predict one combination of them (B = 1) or each."""
        measures = self.measures(raw, outputs)
        calibrations = moved(calibrations, lambda tensor: tensor.to(measures.device))
        spread = raw.epistemic.to(wide(outputs.dtype))
        # one variance for all logits of a row: an expanded view
        spread = spread.reshape(outputs.shape) if outputs.ndim == 1 else spread.expand(outputs.shape)
        nothing = spread.new_zeros(()).expand(outputs.shape)
        return self.kind(
            mean=outputs,
            epistemic=spread,
            aleatoric=nothing,
            excess=nothing,
            **common_fields(outputs, raw, self.score(measures, calibrations), valid, reference),
            **self.tempered(raw, calibrations[0]),
        )

    def measures(self, raw: LatentPrediction, outputs: Tensor) -> Tensor:
        """Novelty measures [n, 4]: the latent variance and its share of the prior variance, each a mean over
        the logits where they have kernels of their own; the logarithm of the distance of hidden vectors (0
        without them); and the logarithm of the entropy."""
        log_entropy = self.log_entropy(outputs.reshape(outputs.shape[0], -1))
        nearest = torch.zeros_like(log_entropy) if raw.nearest is None else raw.nearest[:, 0]
        own = raw.epistemic.mean(dim=1), raw.novelty.mean(dim=1)
        return torch.stack([*own, nearest, log_entropy], dim=1)

    def log_entropy(self, logits: Tensor) -> Tensor:
        """Logarithm of the entropy of softened probabilities, from logits [n, C], float64 [n]."""
        return cross_entropy.log_entropy(logits)

    def read_calibrations(self, reader: Reader, prefix: str, shape: Shape) -> Any:
        temperature, prefix = self.read_temperature(reader, f"{prefix}0.", shape), f"{prefix}1."
        variance, novelty = (reader.positive(f"{prefix}{name}") for name in ("variance", "novelty"))
        what = "is of an earlier form of the novelty score; fit the model again"
        reader.require("tails" in reader.matching(prefix), f"{prefix}novelty", what)
        tails = reader.take(f"{prefix}tails", torch.float64, 3, NUM_POOLED, len(TAIL_LEVELS))
        reader.require(tails[1:] >= 0, f"{prefix}tails", "must not decrease")
        return temperature, UsualNovelty(variance, novelty, tails)

    @abstractmethod
    def read_temperature(self, reader: Reader, prefix: str, shape: Shape) -> Any:
        """Temperature from a file, each tensor checked."""

    @abstractmethod
    def tempered(self, raw: LatentPrediction, temperature: Any) -> dict[str, Any]:
        """Fields of a prediction that its temperature determines."""


def named(numbers: Sequence[int]) -> str:
    """Text that lists the first class or label numbers."""
    return ", ".join(map(str, numbers[:MAX_NAMED])) + (", ..." if len(numbers) > MAX_NAMED else "")


def probability_warning(likelihood: str, signs: str, layer: str, repair: str) -> str:
    """Warning that a network's outputs look like probabilities."""
    return (
        f"the network's outputs look like probabilities: they {signs}. {likelihood}() needs logits, from "
        f"before the {layer}; leave that layer out, or pass select=lambda p: {repair}."
    )
