"""One prior for all experts of a kernel: found on a few of them, before any is solved."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.chunking import evenly
from ..executors.base import Executor
from ..math.evidence import Prior, pooled_evidence
from .expert import Expert, Problem, Task
from .features import features_at

PRIOR_SUBSET = 16  # experts, evenly spread, on whose rows it is found
PRIOR_ROWS = 400  # of each of them, evenly spread
# Noise ratios, over the kernel's mean diagonal, among which the evidence decides. It says how noisy a label
# is, which a few rows that the network gets wholly wrong decide; what tells foreign rows apart is the same
# within these bounds (docs/classification.md), and worse far outside.
LOWEST, HIGHEST = 1e-2, 1e-1


def agree_on_prior(problem: Problem, tasks: list[Task], executor: Executor) -> Prior:
    """The scale and the noise ratio of the largest marginal likelihood on rows of several experts together.

    An expert's own evidence is about its own rows only: where they are easy its noise ratio falls to next to
    nothing, and with it the variance that it gives to foreign rows. For telling rows apart by their variance,
    the experts must use one measure.
    """
    filled = [task for task in tasks if len(task.own)]
    chosen = [filled[int(i)] for i in evenly(len(filled), PRIOR_SUBSET)]

    @torch.no_grad()
    def gram_and_targets(task: Task) -> tuple[Tensor, Tensor]:
        rows = task.own[evenly(len(task.own), PRIOR_ROWS)]
        columns = problem.tangents.columns(problem.rows.take(rows))
        features = features_at(problem.tangents, problem.rows, rows, columns, problem.known)
        return features.gram(features), problem.linear_part(rows, columns) + problem.residual_at(rows)

    found = dict(executor.run(gram_and_targets, chosen))
    return pooled_evidence([found[i] for i in range(len(chosen))], lowest=LOWEST, highest=HIGHEST)


def prior_of(experts: tuple[Expert, ...]) -> Prior:
    """The prior that these experts share."""
    first = next(expert for expert in experts if not expert.failed)
    scale = first.scale[0]
    return Prior(tau=first.noise[0] / scale, scale=scale)
