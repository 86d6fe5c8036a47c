r"""How large the error bar must be: leave-out errors, and the three numbers of the scale.

The scale at a row of novelty :math:`\nu \in [0, 1]` is

.. math:: (c \, \kappa^a)^{(1 - \nu^b) \min(1, \nu_0 / \nu)} :

near the data what leaving-out says, far away the evidence's own. Held-out rows say nothing about rows more
novel than themselves, so what is fitted to them fades beyond the novelty :math:`\nu_0` that they reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

STEADY = 20.0  # rows' worth of the experts' average in each expert's leave-one-out scale
REACH, LEAST_REACH = 0.95, 1e-6  # the quantile of held-out novelty up to which held-out rows speak
SPREAD = 1.0  # standard deviation of the pull towards the defaults, in logarithms
FARTHEST = 12.0  # that any of them may go, in logarithms: a line search tries steps without measure
LARGEST = 100.0  # scale, as a logarithm, likewise


@dataclass(frozen=True)
class Calibration:
    r"""The scale of the experts' variance, and what the experts and the witness say together.

    The experts expect the network to be off by m, with variance

    .. math:: V = (c \, \kappa^a)^{(1 - \nu^b) \min(1, \nu_0 / \nu)} (\mathrm{epistemic} + \sigma^2) ;

    the witness expects it to be off by h, with precision p (0 where there is none). Together they expect

    .. math:: \mu = (v m + g h) / (1 + g), \quad L V, \quad L = (1 + g) / (1 + g^2), \quad g = t p V .

    The distribution about :math:`f + z \mu` has variance :math:`L V + w (1 - z)^2 \mu^2 + \rho`, where rho is
    what n rows cannot rule out (see `unruled`).

    Args:
        fade: a, a scalar.
        onset: b, a scalar.
        level: c of each output, shape [C].
        excess: w, the weight of the expected error's square, a scalar.
        reach: nu_0, the novelty up to which held-out rows speak, a scalar; 1 without them.
        shift: z, the share of the expected error that is added to the network's output: 0, or 1 for the
            corrected mean, a scalar.
        weight: v, of the experts' residual mean, a scalar.
        trust: t of each output, in the witness, shape [C].
        rare: rho of each output, shape [C].
    """

    fade: Tensor
    onset: Tensor
    level: Tensor
    excess: Tensor
    reach: Tensor
    shift: Tensor
    weight: Tensor
    trust: Tensor
    rare: Tensor

    @classmethod
    def default(cls, num_outputs: int, *, shift: float, rare: Tensor | None = None) -> Calibration:
        """a = b = c = w = v = t = 1; rho = 0 unless it is given."""
        one = torch.ones((), dtype=torch.float64)
        level = torch.ones(num_outputs, dtype=torch.float64)
        rare = torch.zeros_like(level) if rare is None else rare
        return cls(one, one, level, one, one, torch.tensor(shift, dtype=torch.float64), one, level, rare)

    def scale(self, novelty: Tensor, log_kappa: Tensor, level: Tensor) -> Tensor:
        """(c kappa^a)^((1 - nu^b) min(1, nu_0 / nu)), elementwise."""
        known = (self.reach / novelty.clamp_min(torch.finfo(novelty.dtype).tiny)).clamp_max(1.0)
        strength = (1.0 - novelty**self.onset) * known
        return torch.exp((strength * (level.log() + self.fade * log_kappa)).clamp(-LARGEST, LARGEST))

    def to(self, device: torch.device) -> Calibration:
        return Calibration(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True)
class CalibrationRows:
    """Rows that a prediction has not seen, one entry per row and output, each of shape [L].

    Args:
        residual: y - f(x).
        residual_mean: m(x).
        epistemic: Before calibration.
        noise: sigma^2, before calibration.
        novelty: nu(x).
        log_kappa: Of the expert that answers.
        output: Which output the entry belongs to, int64.
        witness_mean: What the witness expects of y - f(x).
        witness_precision: How much that counts; 0: there is no witness.
    """

    residual: Tensor
    residual_mean: Tensor
    epistemic: Tensor
    noise: Tensor
    novelty: Tensor
    log_kappa: Tensor
    output: Tensor
    witness_mean: Tensor
    witness_precision: Tensor

    @classmethod
    def cat(cls, parts: list[CalibrationRows]) -> CalibrationRows:
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name).cpu() for part in parts]) for name in names})

    def __len__(self) -> int:
        return len(self.residual)


def leave_one_out(inverse: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    r"""Errors and unit variances when each row in turn is predicted from the others.

    .. math:: e_i = (Q r)_i / Q_{ii}, \qquad \mathrm{var}_i = s / Q_{ii}

    Args:
        inverse: Q = (K + tau I)^-1, shape [m, m].
        residual: r, shape [m, C].

    Returns:
        Errors [m, C] and variances over s [m], noise included.
    """
    diagonal = inverse.diagonal()
    return inverse @ residual / diagonal[:, None], 1.0 / diagonal


def leave_groups_out(inverse: Tensor, residual: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    r"""The same with whole groups left out together.

    .. math:: e_B = Q_{BB}^{-1} (Q r)_B, \qquad \mathrm{cov}_B = s \, Q_{BB}^{-1}

    Args:
        inverse: Q, shape [m, m].
        residual: r, shape [m, C].
        groups: Group of each row, shape [m].
    """
    weights = inverse @ residual
    errors, variances = torch.empty_like(residual), torch.empty_like(inverse[:, 0])
    for group in groups.unique():
        rows = (groups == group).nonzero().flatten()
        covariance = torch.linalg.inv(inverse[rows][:, rows])
        errors[rows] = covariance @ weights[rows]
        variances[rows] = covariance.diagonal()
    return errors, variances


def steady_log_kappa(log_kappa: Tensor, rows: Tensor) -> Tensor:
    r"""Leave-one-out scales pulled towards the experts' average, as if it came with `STEADY` rows.

    .. math:: (n_e \log\kappa_e + n_0 \overline{\log\kappa}) / (n_e + n_0)

    Args:
        log_kappa: Shape [M, B].
        rows: Own rows n_e of each expert, shape [M]; 0 takes the average.
    """
    weight = rows.to(log_kappa)[:, None]
    average = (weight * log_kappa).sum(dim=0) / weight.sum(dim=0)
    return (weight * log_kappa + STEADY * average) / (weight + STEADY)


def unruled(targets: Tensor) -> Tensor:
    r"""The second moment of errors that the training rows cannot rule out, rho, shape [C].

    .. math:: \rho = \frac{1/2}{n} \mathrm{var}(y)

    Where none of n rows was off by a full spread of the targets (a glitch of a sensor, a state that repeats
    with another answer), the rate of such rows is still half a row in n, by Jeffreys' rule. Without it, a
    prediction that is right to four digits n times would be certain of the fifth.

    Args:
        targets: y of the training rows, shape [n, C].
    """
    if len(targets) < 2:
        return torch.zeros(targets.shape[1], dtype=torch.float64)
    return targets.double().var(dim=0).cpu() / (2 * len(targets))


def pooled(
    calibration: Calibration,
    variance: Tensor,
    shift: Tensor,
    witness_mean: Tensor,
    witness_precision: Tensor,
    trust: Tensor,
) -> tuple[Tensor, Tensor]:
    r"""The error that experts and witness expect together, mu, and the share L of V that is left.

    Both have seen the same noise, so their errors go together: precisions must not be added. This is
    covariance intersection, the mean :math:`\omega / V + (1 - \omega) t p` of the precisions with the weights
    :math:`\omega = 1 / (1 + g)` of the means: two equal opinions are worth one, and of two unequal ones the
    surer prevails. Without a witness it is the experts' own word.

    Args:
        calibration: Gives v.
        variance: V of the experts, already scaled.
        shift, witness_mean, witness_precision: m, h and p, of the same shape.
        trust: t, of the same shape.
    """
    heard = witness_precision > 0  # where an expert knows nothing V is infinite, and 0 * inf no number
    gain = torch.where(heard, trust * witness_precision * torch.where(heard, variance, 0.0), 0.0)
    expected = (calibration.weight * shift + gain * witness_mean) / (1.0 + gain)
    return expected, (1.0 + gain) / (1.0 + gain.square())


def held_out_loss(calibration: Calibration, rows: CalibrationRows) -> Tensor:
    """Mean negative log likelihood of held-out rows as they usually are: without rho, so that no other number
    makes up for it."""
    level, trust = calibration.level[rows.output], calibration.trust[rows.output]
    scaled = calibration.scale(rows.novelty, rows.log_kappa, level) * (rows.epistemic + rows.noise)
    expected, left = pooled(
        calibration, scaled, rows.residual_mean, rows.witness_mean, rows.witness_precision, trust
    )
    rest = 1.0 - calibration.shift
    variance = scaled * left + calibration.excess * rest.square() * expected.square()
    error = rows.residual - calibration.shift * expected
    return 0.5 * (torch.log(2 * math.pi * variance) + error.square() / variance).mean()


def fit_calibration(
    rows: CalibrationRows, num_outputs: int, *, corrected: bool, rare: Tensor | None = None
) -> Calibration:
    """a, b, c, w, t (and v where it is not the same as w) by maximum likelihood on held-out rows.

    Each logarithm is pulled towards its default with a fixed strength, which counts for little as soon as
    there are a few hundred rows and keeps the numbers sane when there are few.
    """
    start = Calibration.default(num_outputs, shift=1.0 if corrected else 0.0, rare=rare)
    ordered = rows.novelty.sort().values
    reach = ordered[min(len(ordered) - 1, int(REACH * len(ordered)))].clamp_min(LEAST_REACH)
    free = torch.zeros(2 * num_outputs + 4, dtype=torch.float64, requires_grad=True)
    # about the network's own output, without a witness, v^2 and w are one number
    apart = corrected or bool((rows.witness_precision > 0).any())

    def current() -> Calibration:
        steps = free.clamp(-FARTHEST, FARTHEST)
        positive = steps[:-1].exp()
        level = positive[3 : 3 + num_outputs]
        trust = positive[3 + num_outputs :]
        weight = start.weight + steps[-1] if apart else start.weight
        fitted = (positive[0], positive[1], level, positive[2], reach, start.shift, weight, trust)
        return Calibration(*fitted, start.rare)

    optimiser = torch.optim.LBFGS([free], max_iter=200, line_search_fn="strong_wolfe")

    def penalised() -> Tensor:
        return held_out_loss(current(), rows) + 0.5 * (free / SPREAD).square().sum() / len(rows)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = penalised()
        loss.backward()
        return loss

    with torch.enable_grad():
        before = float(optimiser.step(closure).detach())
    if not float(penalised().detach()) <= before:  # worse, or not a number
        return start
    found = current()
    return Calibration(*(getattr(found, field.name).detach() for field in fields(found)))
