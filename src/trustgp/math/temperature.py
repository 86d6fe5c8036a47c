r"""How sure may a classifier be? One temperature for each row, which grows with its latent variance v.

.. math:: p = \mathrm{softmax}(z / T), \qquad T = \sqrt{T_0^2 + \lambda_e v}

T_0 = 1 and lambda = pi / 8 is MacKay's approximation of the average of softmax(z) over Gaussian logits of
variance v. Held-out rows say how large v is in truth (lambda, for all rows and for those of each expert e),
and whether the network is too sure even where v is small (T_0: plain temperature scaling is lambda = 0). All
logits of a row are divided by the same number, so the predicted class stays what it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .cross_entropy import two_sided

SLOPE = math.pi / 8
BASE_SPREAD = 0.5  # standard deviation of the pull of log T_0^2 towards 0
SLOPE_SPREAD = 3.0  # ... of log lambda towards log(pi / 8); what v is worth is known to powers of ten only
EXPERT_SPREAD = 0.5  # ... of an expert's log lambda towards that of all
ENOUGH = 100  # held-out rows from which an expert has a lambda of its own
FARTHEST = 12.0  # that any logarithm may go: a line search tries steps without measure
MOST_NUMBERS = 2**22  # logits from which the three are found; of more rows, as many evenly spread
FEWEST_ROWS = 1000  # of them that are used in any case


@dataclass(frozen=True)
class Temperature:
    """What turns a latent variance into a temperature.

    Args:
        base: T_0^2, a scalar.
        slope: lambda of all rows, a scalar.
        slopes: lambda of the rows of each expert, shape [M].
    """

    base: Tensor
    slope: Tensor
    slopes: Tensor

    @classmethod
    def default(cls, num_experts: int) -> Temperature:
        """T_0 = 1, lambda = pi / 8."""
        slope = torch.tensor(SLOPE, dtype=torch.float64)
        return cls(torch.ones_like(slope), slope, slope.repeat(num_experts))

    def __call__(self, variance: Tensor, expert: Tensor) -> Tensor:
        """T of each row, shape [n]; infinite where the variance is.

        Args:
            variance: v, shape [n], float64.
            expert: Which expert answered, shape [n]; below 0 where none did.
        """
        slopes = torch.where(expert < 0, self.slope, self.slopes[expert.clamp_min(0)])
        return (self.base + slopes * variance).sqrt()

    def to(self, device: torch.device) -> Temperature:
        return Temperature(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True)
class ClassCalibrationRows:
    """Rows with known classes that the experts have not seen.

    Args:
        logits: z, shape [n, C]; C = 1: of the second of two classes.
        labels: Class numbers, shape [n].
        variance: v, shape [n], float64.
        expert: Which expert answered, shape [n].
    """

    logits: Tensor
    labels: Tensor
    variance: Tensor
    expert: Tensor

    @classmethod
    def cat(cls, parts: list[ClassCalibrationRows]) -> ClassCalibrationRows:
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name).cpu() for part in parts]) for name in names})

    def __len__(self) -> int:
        return len(self.labels)

    def some(self) -> ClassCalibrationRows:
        """These rows, or evenly spread ones where there are more than it takes."""
        most = max(FEWEST_ROWS, MOST_NUMBERS // self.logits.shape[1])
        if len(self) <= most:
            return self
        chosen = torch.linspace(0, len(self) - 1, most, dtype=torch.float64).round().long()
        return ClassCalibrationRows(
            **{field.name: getattr(self, field.name)[chosen] for field in fields(self)}
        )


def tempered_nll(rows: ClassCalibrationRows, temperature: Tensor) -> Tensor:
    """Negative log likelihood of each row's label at these temperatures, shape [n], float64."""
    cooled = two_sided(rows.logits.double()) / temperature[:, None]
    return torch.logsumexp(cooled, dim=1) - cooled.gather(1, rows.labels[:, None]).squeeze(1)


def fit_temperature(rows: ClassCalibrationRows, num_experts: int, *, seen: bool, local: bool) -> Temperature:
    r"""T_0, lambda and each expert's lambda by maximum likelihood, the logarithms pulled as said above.

    Args:
        rows: Held-out rows.
        num_experts: M.
        seen: Whether the network was trained on these rows. They then say nothing about how much too sure
            it is, and T_0 stays 1.
        local: Whether experts may have a lambda of their own.
    """
    rows = rows.some()
    spread = torch.tensor([BASE_SPREAD, SLOPE_SPREAD], dtype=torch.float64)
    free = torch.tensor([0.0 if seen else 1.0, 1.0], dtype=torch.float64)

    def shared(steps: Tensor) -> tuple[Tensor, Tensor]:
        base, slope = (free * steps.clamp(-FARTHEST, FARTHEST)).exp()
        return base, SLOPE * slope

    def loss(steps: Tensor) -> Tensor:
        base, slope = shared(steps)
        fit = tempered_nll(rows, (base + slope * rows.variance).sqrt()).sum()
        return (fit + 0.5 * (steps / spread).square().sum()) / len(rows)

    base, slope = shared(_least(loss, 2))
    slopes = slope.repeat(num_experts)
    if local:
        slopes = slopes * _own_slopes(rows, base, slope, num_experts)
    return Temperature(base, slope, slopes)


def _own_slopes(rows: ClassCalibrationRows, base: Tensor, slope: Tensor, num_experts: int) -> Tensor:
    """What each expert's lambda is to that of all, shape [M]; 1 where it has too few rows."""
    counts = torch.bincount(rows.expert, minlength=num_experts)
    free = (counts >= ENOUGH).double()

    def factors(steps: Tensor) -> Tensor:
        return (free * steps.clamp(-FARTHEST, FARTHEST)).exp()

    def loss(steps: Tensor) -> Tensor:
        own = slope * factors(steps)[rows.expert]
        fit = tempered_nll(rows, (base + own * rows.variance).sqrt()).sum()
        return (fit + 0.5 * (steps / EXPERT_SPREAD).square().sum()) / len(rows)

    return factors(_least(loss, num_experts))


def _least(loss, size: int) -> Tensor:
    """Where a loss of `size` numbers is least, from 0; never worse than there."""
    steps = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [steps], max_iter=100, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(steps)
        value.backward()
        return value

    with torch.enable_grad():
        before = float(optimiser.step(closure).detach())
        after = float(loss(steps).detach())
    return steps.detach() if after <= before else torch.zeros_like(steps).detach()
