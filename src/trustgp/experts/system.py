"""The equations of one expert: exact where it holds all rows it sees, through landmarks where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..math.calibration import leave_groups_out, leave_one_out
from ..math.evidence import Evidence, Prior, factorise, maximise_evidence
from ..math.nystrom import low_rank, low_rank_evidence
from ..tangents.base import Features
from .posteriors import Posterior, make_posterior


@dataclass(frozen=True)
class LinearSystem:
    """m rows that an expert sees, r of them held.

    Args:
        features: Of the held rows, the expert's columns selected.
        columns: Those columns; empty: all.
        gram: K between the held rows, shape [r, r].
        cross: K between the held rows and all it sees, shape [r, m]; None: it holds all it sees.
        diag: k(x, x) of the rows it sees, shape [m].
        targets: Pseudo-targets t of the rows it sees, shape [m, B].
        residual: r of the rows it sees, shape [m, B].
    """

    features: Features
    columns: Tensor
    gram: Tensor
    cross: Tensor | None
    diag: Tensor
    targets: Tensor
    residual: Tensor


@dataclass(frozen=True)
class Solution:
    """What comes out of the equations.

    Args:
        tau: Noise ratio, a scalar.
        scale: s, shape [B].
        jitter: What had to be added to the diagonal besides tau, a scalar.
        posterior: What answers.
        errors: y - f - m of each row, the row left out, shape [m, B].
        unit: Variance of each row, left out, over s and without the noise, shape [m].
        without_groups: From values [m, K] and the group of each row [m]: errors [m, K] and `unit` [m] when
            the row's whole group is left out.
    """

    tau: Tensor
    scale: Tensor
    jitter: Tensor
    posterior: Posterior
    errors: Tensor
    unit: Tensor
    without_groups: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def solve(equations: LinearSystem, prior: Prior | None) -> Solution:
    """Evidence, posterior, and left-out rows.

    Args:
        equations: Of the expert.
        prior: The scale and noise ratio that all experts share; None: this one finds its own.
    """
    if equations.cross is None:
        return _exact(equations, prior)
    return _nystrom(equations, equations.cross, prior)


def _exact(equations: LinearSystem, prior: Prior | None) -> Solution:
    evidence = _evidence(equations.gram, equations.targets, prior)
    inverse = torch.cholesky_inverse(evidence.factor)
    errors, variances = leave_one_out(inverse, equations.residual)

    def without_groups(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found, spread = leave_groups_out(inverse, values, labels)
        return found, _unit(spread, evidence.tau)

    tau, weights = evidence.tau + evidence.jitter, inverse @ equations.residual
    return Solution(
        tau=evidence.tau,
        scale=evidence.scale,
        jitter=evidence.jitter,
        posterior=make_posterior(equations.features, equations.columns, evidence.factor, weights, tau),
        errors=errors,
        unit=_unit(variances, evidence.tau),
        without_groups=without_groups,
    )


def _nystrom(equations: LinearSystem, cross: Tensor, prior: Prior | None) -> Solution:
    kernel = low_rank(equations.gram, cross)
    if prior is None:
        tau, scale = low_rank_evidence(kernel, equations.targets, float(equations.diag.mean()))
    else:
        tau = prior.tau.to(cross)
        scale = prior.scale.to(cross).repeat(equations.targets.shape[1])
    # what the landmarks do not span is unknown wherever one asks, so of a left-out row, too
    outside = (equations.diag - kernel.rotated.square().sum(dim=1)).clamp_min(0.0)
    errors, variances = kernel.leave_one_out(tau, equations.residual)

    def without_groups(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found, spread = leave_groups_out(kernel.inverse(tau), values, labels)
        return found, _unit(spread, tau) + outside

    factor, weights = kernel.posterior(tau, equations.residual)
    return Solution(
        tau=tau,
        scale=scale,
        jitter=tau.new_zeros(()),
        posterior=make_posterior(equations.features, equations.columns, factor, weights),
        errors=errors,
        unit=_unit(variances, tau) + outside,
        without_groups=without_groups,
    )


def _unit(variances: Tensor, tau: Tensor) -> Tensor:
    """Of left-out rows, over s and without the noise; 1 / Q_ii >= tau but for rounding."""
    return (variances - tau).clamp_min(0.0)


def _evidence(gram: Tensor, targets: Tensor, prior: Prior | None) -> Evidence:
    """Scale, noise ratio and factor: by the expert's own evidence, or those that all experts share."""
    if prior is None:
        return maximise_evidence(gram, targets)
    factor, jitter = factorise(gram, float(prior.tau))
    tau, scale = prior.tau.to(gram), prior.scale.to(gram)
    return Evidence(tau, scale.repeat(targets.shape[1]), factor, gram.new_tensor(jitter))
