r"""How large the error bar must be: leave-out errors, the three numbers of the scale, held-out quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

STEADY = 20.0  # rows' worth of the experts' average in each expert's leave-one-out scale
REACH, LEAST_REACH = 0.95, 1e-6  # the quantile of held-out novelty up to which held-out rows speak
SPREAD = 1.0  # standard deviation of the pull towards the defaults, in logarithms
FARTHEST = 12.0  # that any of them may go, in logarithms: a line search tries steps without measure
# A network that meets every target exactly would otherwise claim to be certain everywhere.
LEAST_KAPPA = 1e-6
LARGEST = 100.0  # scale, as a logarithm, likewise
ROUNDING = 1e-9  # (n + 1) * level in floats may lie this much above a whole number


@dataclass(frozen=True)
class Calibration:
    r"""The scale of the experts' variance, and what the experts and the witness say together.

    The experts expect the network to be off by m, with variance

    .. math:: V = (c \, \kappa^a)^{(1 - \nu^b) \min(1, \nu_0 / \nu)} (\mathrm{epistemic} + \sigma^2) :

    near the data, at novelty nu = 0, what leaving-out says, far away, at 1, the evidence's own. Held-out rows
    say nothing about rows more novel than themselves, so what is fitted to them fades beyond the novelty nu_0
    that they reach. The witness expects it to be off by h, with precision p (0: none). Together they expect

    .. math:: \mu = (v m + g h) / (1 + g), \quad L V, \quad L = (1 + g) / (1 + g^2), \quad g = t p V .

    The distribution about :math:`f + z \mu` has variance :math:`L V + w (1 - z)^2 \mu^2 + \rho`, where rho is
    what n rows cannot rule out (see `unruled`).
    """

    fade: Tensor  # a, a scalar
    onset: Tensor  # b, a scalar
    level: Tensor  # c of each output [C]
    excess: Tensor  # w, the weight of the expected error's square, a scalar
    reach: Tensor  # nu_0, the novelty up to which held-out rows speak, a scalar; 1 without them
    shift: Tensor  # z, the share of the expected error that is added to f: 0, or 1 for the corrected mean
    weight: Tensor  # v, of the experts' residual mean, a scalar
    trust: Tensor  # t of each output, in the witness [C]
    rare: Tensor  # rho of each output [C]

    @classmethod
    def default(cls, num_outputs: int, *, shift: float, rare: Tensor | None = None) -> Calibration:
        """a = b = c = w = v = t = 1; rho = 0 unless it is given."""
        one = torch.ones((), dtype=torch.float64)
        level = torch.ones(num_outputs, dtype=torch.float64)
        rare = torch.zeros_like(level) if rare is None else rare
        return cls(one, one, level, one, one, torch.tensor(shift, dtype=torch.float64), one, level, rare)

    def folded(self, device: torch.device, dtype: torch.dtype) -> tuple[Any, Tensor, Tensor]:
        """The same on a device, scalars as plain numbers, log c, and rho in a precision; made once."""
        known = self.__dict__.setdefault("_folded", {})
        if (device, dtype) not in known:
            values = {field.name: getattr(self, field.name) for field in fields(self)}
            found = {k: v.to(device) if v.ndim else float(v) for k, v in values.items()}
            cast = found["level"].log(), found["rare"].to(dtype)  # pyright: ignore
            known[device, dtype] = Calibration(**found), *cast  # pyright: ignore
        return known[device, dtype]

    def scale(self, novelty: Tensor, log_kappa: Tensor, log_level: Tensor) -> Tensor:
        """(c kappa^a)^((1 - nu^b) min(1, nu_0 / nu)), elementwise, from log c."""
        strength = (1.0 - novelty**self.onset) / (novelty / self.reach).clamp_min(1.0)
        return torch.exp((strength * (log_level + self.fade * log_kappa)).clamp(-LARGEST, LARGEST))


@dataclass(frozen=True)
class HeldOutRows:
    """Tensors, each with as many entries."""

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name).cpu() for part in parts]) for name in names})

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))


@dataclass(frozen=True)
class CalibrationRows(HeldOutRows):
    """Rows that a prediction has not seen, one entry per row and output, each of shape [L]."""

    residual: Tensor  # y - f(x)
    residual_mean: Tensor  # m(x)
    epistemic: Tensor  # before calibration
    noise: Tensor  # sigma^2, before calibration
    novelty: Tensor  # nu(x)
    log_kappa: Tensor  # of the expert that answers
    output: Tensor  # which output the entry belongs to, int64
    witness_mean: Tensor  # what the witness expects of y - f(x)
    witness_precision: Tensor  # how much that counts; 0: there is no witness

    @classmethod
    def of(cls, outputs: Tensor, *, residual: Tensor, **values: Tensor) -> CalibrationRows:
        """From residuals [n, B] of the outputs [B], and values that are as large or broadcast to that."""
        entries = {"residual": residual, "output": outputs.to(residual.device), **values}
        return cls(**{name: value.expand(residual.shape).flatten() for name, value in entries.items()})


def leave_one_out(inverse: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    r"""Errors [m, C] and variances over s [m], noise included, when each row is predicted from the others.

    .. math:: e_i = (Q r)_i / Q_{ii}, \qquad \mathrm{var}_i = s / Q_{ii},

    where Q = (K + tau I)^-1 is `inverse` [m, m] and r `residual` [m, C].
    """
    diagonal = inverse.diagonal()
    return inverse @ residual / diagonal[:, None], 1.0 / diagonal


def leave_groups_out(inverse: Tensor, residual: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    r"""The same with whole groups, of each row [m], left out together.

    .. math:: e_B = Q_{BB}^{-1} (Q r)_B, \qquad \mathrm{cov}_B = s \, Q_{BB}^{-1}
    """
    weights = inverse @ residual

    def left(rows: Tensor) -> tuple[Tensor, Tensor]:
        covariance = torch.linalg.inv(inverse[rows][:, rows])
        return covariance @ weights[rows], covariance.diagonal()

    return by_group(left, residual, groups)


def by_group(
    left: Callable[[Tensor], tuple[Tensor, Tensor]], residual: Tensor, groups: Tensor
) -> tuple[Tensor, Tensor]:
    """What `left` says of the rows of each group, errors and variances, in the places of these rows."""
    errors, variances = torch.empty_like(residual), torch.empty_like(residual[:, 0])
    sizes = groups.unique(return_counts=True)[1].tolist()
    for rows in groups.argsort(stable=True).split(sizes):
        errors[rows], variances[rows] = left(rows)
    return errors, variances


def steady_log_kappa(log_kappa: Tensor, rows: Tensor) -> Tensor:
    r"""Leave-one-out scales pulled towards the experts' average, as if it came with `STEADY` rows.

    .. math:: (n_e \log\kappa_e + n_0 \overline{\log\kappa}) / (n_e + n_0),

    shape [M, B], with `rows` n_e of each expert [M]; 0 takes the average.
    """
    weight = rows.to(log_kappa)[:, None]
    average = (weight * log_kappa).sum(dim=0) / weight.sum(dim=0)
    return (weight * log_kappa + STEADY * average) / (weight + STEADY)


def reached(novelty: Tensor) -> Tensor:
    """nu_0, a scalar: the novelty up to which held-out rows, of these novelties [n], speak."""
    ordered = novelty.sort().values
    return ordered[min(len(ordered) - 1, int(REACH * len(ordered)))].clamp_min(LEAST_REACH)


def unruled(targets: Tensor) -> Tensor:
    r"""The second moment of errors that training rows with targets y [n, C] cannot rule out, rho, shape [C].

    .. math:: \rho = \frac{1/2}{n} \mathrm{var}(y)

    Where none of n rows was off by a full spread of the targets (a glitch of a sensor, a state that repeats
    with another answer), the rate of such rows is still half a row in n, by Jeffreys' rule. Without it, a
    prediction that is right to four digits n times would be certain of the fifth.
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
    surer prevails. Without a witness it is the experts' own word. V is the `variance` of the experts, already
    scaled, m, h and p `shift`, `witness_mean` and `witness_precision`, t `trust`, all of the same shape.
    """
    # where nothing is known V is infinite, and 0 * inf no number
    gain = (trust * witness_precision * variance).nan_to_num(0.0)
    more = 1.0 + gain
    return (calibration.weight * shift + gain * witness_mean) / more, more / (1.0 + gain.square())


def held_out_loss(calibration: Calibration, rows: CalibrationRows) -> Tensor:
    """Mean negative log likelihood of held-out rows as they usually are: without rho, so that no other number
    makes up for it."""
    level, trust = calibration.level[rows.output], calibration.trust[rows.output]
    scaled = calibration.scale(rows.novelty, rows.log_kappa, level.log()) * (rows.epistemic + rows.noise)
    said = (rows.residual_mean, rows.witness_mean, rows.witness_precision)
    expected, left = pooled(calibration, scaled, *said, trust)
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
    reach = reached(rows.novelty)
    # about the network's own output, without a witness, v^2 and w are one number
    apart = corrected or bool((rows.witness_precision > 0).any())

    def at(free: Tensor) -> Calibration:
        steps = free.clamp(-FARTHEST, FARTHEST)
        positive = steps[:-1].exp()
        (fade, onset, excess), (level, trust) = positive[:3], positive[3:].chunk(2)
        weight = start.weight + steps[-1] if apart else start.weight
        return Calibration(fade, onset, level, excess, reach, start.shift, weight, trust, start.rare)

    def penalised(free: Tensor) -> Tensor:
        return held_out_loss(at(free), rows) + 0.5 * (free / SPREAD).square().sum() / len(rows)

    found = least_from_zero(penalised, 2 * num_outputs + 4, max_iter=200)
    return start if found is None else at(found)


def least_from_zero(loss: Callable[[Tensor], Tensor], size: int, **options: Any) -> Tensor | None:
    """Where a loss of `size` numbers is least, by L-BFGS from 0; None if that is worse, or no number."""
    free = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([free], line_search_fn="strong_wolfe", **options)

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(free)
        value.backward()
        return value

    with torch.enable_grad():
        before = float(optimiser.step(closure).detach())
    return free.detach() if float(loss(free).detach()) <= before else None


def check_share(name: str, value: float, example: float) -> None:
    """Refuse what does not lie strictly between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name}={value}; it must lie strictly between 0 and 1, for example {example}.")


def needed_rows(level: float) -> int:
    """The fewest held-out rows of which the largest score is high enough: level (n + 1) <= n."""
    return math.ceil(level / (1.0 - level) - ROUNDING)


def held_out_quantile(scores: Tensor, level: float) -> Tensor:
    r"""The score that a new row stays at or below with probability at least `level`, in (0, 1), [] or [C].

    The k-th smallest of the n held-out scores, where k is (n + 1) level, rounded up. A new row that is
    exchangeable with them is equally likely to take any of the n + 1 places among them, so this
    holds for every n and whatever the scores are (Vovk et al. 2005). Infinite where k > n: too few rows.
    The scores, [n] or [n, C], must be of rows that were not used to make what scores them.
    """
    check_share("level", level, 0.9)
    k = math.ceil((len(scores) + 1) * level - ROUNDING)
    if k > len(scores):
        return scores.new_full(scores.shape[1:], torch.inf)
    return scores.sort(dim=0).values[k - 1]


def merge_groups(points: Tensor, weights: Tensor, *, least: float) -> Tensor:
    """The smallest group joins the one nearest to it, until none weighs less than `least`, or one is left.

    From points [M, q] and weights [M] comes the group of each, numbered from 0 in the order of their first
    points, int64, shape [M].
    """
    groups = torch.arange(len(points))
    while True:
        names = groups.unique()
        mass = torch.stack([weights[groups == g].sum() for g in names])
        small = int(mass.argmin())
        if len(names) == 1 or float(mass[small]) >= least:
            break
        shares = torch.stack([(groups == g).to(points.dtype) for g in names])
        centres = shares @ points / shares.sum(dim=1, keepdim=True)
        apart = (centres - centres[small]).square().sum(dim=1)
        apart[small] = torch.inf
        groups[groups == names[small]] = names[int(apart.argmin())]
    first = {int(g): i for i, g in enumerate(dict.fromkeys(groups.tolist()))}
    return torch.tensor([first[g] for g in groups.tolist()])
