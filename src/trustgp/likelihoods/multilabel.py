r"""Several labels a row: targets are 0 or 1 for each label, outputs are logits, each label has a sigmoid.

Experts learn one combination of the logits from the Newton steps :math:`(y - p) / (p (1 - p) + \epsilon)` of
each, and share one prior. Their posterior variance v is the latent variance of the logits. A label c has

.. math:: p_c = \mathrm{sigmoid}(z_c / T_c), \qquad T_c = \sqrt{b_c + \lambda v} ,

with lambda shared by all labels, and b_c pulled to a common one where held-out rows are few. No
temperature moves z = 0, so the labels with p > 1/2 are the network's. With lambda = 0 each label has one T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli
from torch.nn.functional import softplus

from ..data.chunking import evenly
from ..data.tensor_file import Reader
from ..data.user_warnings import warn_user
from ..experts.mixture import LatentPrediction
from ..math import cross_entropy
from ..math.cross_entropy import SLOPE, UsualNovelty
from ..math.held_out import HeldOutRows
from ..math.predictive import PredictiveDistribution
from ..math.search import MAX_LOG_STEP, minimise_from_zero, with_gradient
from ..tangents.network import as_matrix
from .base import Shape, wide
from .batch import ranks_of
from .logits import LogitLikelihood, named, probability_warning
from .prediction import Prediction

LABEL_STD = 0.5  # standard deviation of the prior of log b_c about the common one
MIN_COMPARED = 20  # fewest rows for a warning about the outputs
# Fit of temperatures: most logits of evenly spread rows, rows that are used in any case, and most steps.
MAX_LOGITS, MIN_FIT_ROWS, MAX_STEPS = 2**20, 500, 50


@dataclass(frozen=True, repr=False)
class LabelPrediction(Prediction):
    """Logits, the probability of each label, and the latent variance of the logits.

    `mean` is the network's logits, to the bit, shape [n, C], or [n] for one label. `epistemic`, which is also
    `variance`, is their latent variance. `aleatoric` and `excess` are 0: noise is part of the probabilities.

    Examples:
        >>> there = labels.predict(inputs).probabilities > 0.5
    """

    ARRAYS: ClassVar[tuple[str, ...]] = (
        *("labels", "probabilities", "mean", "variance", "temperature", "entropy"),
        *("novelty", "score", "expert", "valid"),
    )
    RECORDED: ClassVar[tuple[str, ...]] = ()
    EXPORTED: ClassVar[tuple[str, ...]] = ("probabilities", "labels")

    temperature: Tensor = field(kw_only=True)  # T of each row and label, float64, shape [n, C]

    @property
    def variance(self) -> Tensor:
        """The latent variance of the logits, the same as `epistemic`."""
        return self.epistemic

    @property
    def probabilities(self) -> Tensor:
        """Probability of each label, sigmoid(z / T), shape [n, C]; 1/2 in rows that are not `valid`."""
        return self.tempered_logits.sigmoid()

    @property
    def tempered_logits(self) -> Tensor:
        """Logits over temperatures, z / T, shape [n, C]; 0 in rows that are not `valid`."""
        logits, valid = as_matrix(self.mean.to(wide(self.mean.dtype))), self.valid[:, None]
        return torch.where(valid, logits, 0.0) * torch.where(valid, 1.0 / self.temperature, 0.0).to(logits)

    @property
    def labels(self) -> Tensor:
        """Which labels the network predicts, z > 0, shape [n, C] bool."""
        return as_matrix(self.mean) > 0

    @property
    def entropy(self) -> Tensor:
        """Entropy of all labels together, in nats, shape [n], float64."""
        p = self.probabilities.double()
        return (torch.special.entr(p) + torch.special.entr(1.0 - p)).sum(dim=1)

    @property
    def classes(self) -> Tensor:
        raise AttributeError("a row has several labels, and no one class; use `labels`.")

    @property
    def distribution(self) -> Bernoulli:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Distribution of each label, with `probabilities`, in float64."""
        return Bernoulli(logits=self.tempered_logits.double(), validate_args=len(self) > 0)

    def log_prob(self, targets: Tensor) -> Tensor:
        """Log probability of each label, in nats, float64, shape [n, C]."""
        return self.distribution.log_prob(as_matrix(targets).to(self.mean.device, torch.float64))

    def sample(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw k samples of the labels, bool [k, n, C]."""
        p = self.probabilities
        return torch.bernoulli(p.expand(k, *p.shape), generator=generator).bool()

    @property
    def _real(self) -> PredictiveDistribution:
        raise TypeError("a label has no interval; use `probabilities`.")

    def _counted(self, outputs: int) -> str:
        return "1 label" if outputs == 1 else f"{outputs:,} labels"

    def _lines(self) -> list[list[str]]:
        p, (title, ranks) = self.probabilities, ranks_of(self)
        lines = [["", "labels", "least sure", title]]
        sure = torch.maximum(p, 1.0 - p).amin(dim=1)
        for i, (on, least, rank) in enumerate(zip(self.labels, sure, ranks, strict=True)):
            names = named(on.nonzero().flatten().tolist())
            lines.append([str(i), names or "none", f"{float(least):.3f}", rank])
        return lines


@dataclass(frozen=True)
class LabelRows(HeldOutRows):
    """Held-out rows with labels."""

    logits: Tensor  # z [n, C]
    targets: Tensor  # 0 or 1 [n, C]
    variances: Tensor  # of the logits [n, C], or one for all logits [n, 1], float64
    measures: Tensor  # of novelty [n, 4], float64


@dataclass(frozen=True)
class LabelTemperature:
    """Temperatures as a function of latent variances."""

    base: Tensor  # b of each label [C]
    slope: Tensor  # lambda, a scalar

    @classmethod
    def default(cls, labels: int) -> LabelTemperature:
        """Default temperatures: b = 1, lambda = pi / 8."""
        one = torch.ones(labels, dtype=torch.float64)
        return cls(one, SLOPE * one[0])

    def __call__(self, variances: Tensor) -> Tensor:
        """Temperatures T [n, C] from variances v [n, C] or [n, 1], float64; infinite where v is."""
        return (self.base + self.slope * variances).sqrt()

    @classmethod
    def fit(cls, rows: LabelRows, *, seen: bool) -> LabelTemperature:
        """Maximum a posteriori fit, never less likely than its start: b = 1, or, on rows that the network was
        trained on (`seen`), which do not show its overconfidence, `overfit_base`, which is not refitted."""
        labels = rows.logits.shape[1]
        rows = rows.subset(evenly(len(rows), max(MIN_FIT_ROWS, MAX_LOGITS // labels)))
        spread = torch.full((labels + 2,), LABEL_STD, dtype=torch.float64)
        spread[:2] = torch.tensor([cross_entropy.SLOPE_STD, LABEL_STD])  # for lambda and the common b
        free = torch.full_like(spread, 0.0 if seen else 1.0)
        free[0] = 1.0

        usual = label_nll(rows, torch.ones_like(rows.variances)).mean()
        start = cross_entropy.overfit_base(usual) if seen else torch.ones_like(usual)

        def temperature(steps: Tensor) -> LabelTemperature:
            steps = free * steps.clamp(-MAX_LOG_STEP, MAX_LOG_STEP)
            return cls(start * (steps[1] + steps[2:]).exp(), SLOPE * steps[0].exp())

        def loss(steps: Tensor) -> Tensor:
            nll = label_nll(rows, temperature(steps)(rows.variances)).sum()
            return (nll + 0.5 * (steps / spread).square().sum()) / len(rows)

        best = minimise_from_zero(with_gradient(loss), len(spread), max_iter=MAX_STEPS, tolerance=1e-9)
        return temperature(torch.zeros_like(spread) if best is None else torch.from_numpy(best))


def label_nll(rows: LabelRows, temperature: Tensor) -> Tensor:
    """Negative log likelihood of each label at these temperatures, shape [n, C], float64."""
    return softplus((1.0 - 2.0 * rows.targets) * rows.logits.double() / temperature)


Learnt = tuple[LabelTemperature, UsualNovelty]


@dataclass(frozen=True)
class MultiLabel(LogitLikelihood):
    """Targets are 0 or 1 for each of C labels, any number of them 1; the network returns C logits.

    Examples:
        >>> labels = trustgp.fit(tagger, (inputs, tags), likelihood=trustgp.MultiLabel(), progress=False)
    """

    conformal_refusal: ClassVar[str] = "labels have no conformal sets; use `probabilities` of model.predict."
    kind: ClassVar[Any] = LabelPrediction

    def mean_logits(self, logits: Tensor) -> Tensor:
        """Logits of the mean probability of each label over several networks."""
        return cross_entropy.mean_logits(logits.flatten(1)).reshape(logits.shape[1:])

    def check(self, num_outputs: int, targets: Tensor, *, name: str) -> None:
        """Raise unless the targets are 0 or 1 for each of the network's C logits."""
        if targets.shape[1] != num_outputs:
            one = targets.shape[1] == 1
            hint = " One class number a row: likelihood=Classification()." if one else ""
            raise ValueError(
                f"{name} targets have shape {list(targets.shape)}, and the network has {num_outputs} logits; "
                f"several labels need a 0 or 1 for each logit, [n, {num_outputs}].{hint}"
            )
        wrong = ((targets != 0) & (targets != 1)).nonzero()
        if len(wrong):
            row, label = wrong[0].tolist()
            raise ValueError(
                f"{name} targets are neither 0 nor 1 in {len(wrong)} of {targets.numel()} places, first "
                f"{targets[row, label].item():g} in row {row}, label {label}. Probabilities as targets are "
                "not supported: pass targets > 0.5."
            )

    def warn(self, num_outputs: int, targets: Tensor) -> None:
        """Warn of labels that no training row, or every one, has."""
        counts = targets.double().sum(dim=0)
        constant = ((counts == 0) | (counts == len(targets))).nonzero().flatten().tolist()
        if constant and len(targets) > 1:
            warn_user(
                f"{len(constant)} of {num_outputs} labels are the same in all training rows "
                f"({named(constant)}): their probabilities are the network's alone."
            )

    def output_warning(self, outputs: Tensor, targets: Tensor) -> str:
        """Warning where outputs look like probabilities: logits in [0, 1] would predict every label."""
        inside = bool(((outputs >= 0) & (outputs <= 1)).all()) and bool((targets == 0).any())
        if not inside or len(outputs) < MIN_COMPARED:
            return ""
        return probability_warning("MultiLabel", "all lie between 0 and 1", "sigmoid", "p.logit(eps=1e-6)")

    def pruning_targets(self, outputs: Callable[[], Tensor], targets: Tensor) -> Tensor:
        """Targets z - R, for which half the squared error has the gradient of the cross entropy."""
        logits = outputs().double()
        return logits - (logits.sigmoid() - targets.to(logits))

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The Newton step of each logit, float64, shape [n, C]; see `math.cross_entropy`."""
        labels = targets.to(outputs.device).flatten()
        return cross_entropy.newton_step(outputs.reshape(-1, 1), labels).reshape(outputs.shape)

    def calibration_rows(self, outputs: Tensor, raw: LatentPrediction, targets: Tensor) -> LabelRows:
        targets = targets.to(outputs.device).double()
        return LabelRows(outputs, targets, raw.epistemic, self.measures(raw, outputs))

    def calibrate(self, rows: Any, shape: Shape, targets: Any, *, seen: bool = False, **_: Any) -> Learnt:
        """Fit the temperatures and the usual novelty; the training targets are not used."""
        if rows is None:
            return LabelTemperature.default(shape.outputs), UsualNovelty.default()
        return LabelTemperature.fit(rows, seen=seen), UsualNovelty.fit(rows.measures)

    def log_entropy(self, logits: Tensor) -> Tensor:
        """Logarithm of the softened entropy of all labels together, float64 [n]."""
        each = cross_entropy.log_entropy(logits.reshape(-1, 1)).exp()
        return each.reshape(logits.shape).sum(dim=1).log()

    def tempered(self, raw: LatentPrediction, temperature: LabelTemperature) -> dict[str, Any]:
        """Temperature T of each row and label, by field name."""
        return {"temperature": temperature(raw.epistemic)}

    def read_temperature(self, reader: Reader, prefix: str, shape: Shape) -> LabelTemperature:
        base = reader.positive(f"{prefix}base", shape.outputs)
        return LabelTemperature(base, reader.positive(f"{prefix}slope"))
