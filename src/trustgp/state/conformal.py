"""Split conformal prediction on top of a fitted model: coverage that holds for finitely many rows.

A score measures how unusual a target is for a row. The limit is the k-th smallest score of n validation rows,
k = (n + 1) level rounded up; the interval or set of a new row has all targets with scores up to the limit. If
that row is exchangeable with the validation rows, its target lies inside with probability at least `level`,
however bad the network and the model are. Each group of neighbouring experts has its own limit
(Mondrian), and the guarantee holds within each group, as the groups come from the training rows alone.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.batches import Unpack
from ..data.chunking import chunks
from ..data.rows import Rows
from ..data.torch_modes import cpu_default
from ..data.trees import Inputs
from ..data.user_warnings import warn_user
from ..likelihoods.prediction import ClassPrediction, Prediction
from ..math.quantiles import check_share, held_out_quantile, merge_groups, needed_rows
from ..tangents.network import as_matrix
from .model_state import FittedModel, ModelState, Provenance, read_like

MIN_LEVEL = 1e-12  # of an interval; closer to 1 than this it holds all targets
MIN_GROUP_FACTOR = 20  # least expected rows of a group of experts, over the rows that a limit needs


@dataclass(frozen=True)
class _Conformal:
    """Base of intervals and sets; they take the same inputs as `model.predict`."""

    model: FittedModel  # the model that predicts
    level: float  # guaranteed coverage; for intervals, that of each output
    groups: Tensor  # group of each expert, shape [M]
    limits: Tensor  # q of each group [G], for intervals of each output [G, C]; infinite with too few rows
    counts: Tensor  # validation rows of each group, shape [G]
    origin: Provenance  # of the model for which the limits hold

    @cpu_default()
    def _answer(self, inputs: Inputs) -> tuple[Prediction, Tensor]:
        """The prediction, and the limit of each row, [n] or [n, C]."""
        if self.model.state.provenance != self.origin:
            warn_user(
                f"the model was updated after its conformal limits had been found: level={self.level} is no "
                "longer promised. Call model.conformal(validation) again."
            )
        p = self.model.predict(inputs)
        return p, self.limits.to(p.mean.device)[_group(p, self.groups)]


class ConformalIntervals(_Conformal):
    r"""Intervals of the level q_g at which those of `Prediction.interval` covered :math:`y` on validation
    rows as often as requested, for each output. Made by `UncertaintyModel.conformal`.

    Examples:
        >>> lower, upper = model.conformal(unseen, level=0.8).interval(inputs)
    """

    def interval(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, in the shape of the network's output; infinite where nothing is known."""
        p, limit = self._answer(inputs)
        limit = limit.reshape(p.mean.shape)
        inside = limit.clamp(min=MIN_LEVEL, max=1.0 - MIN_LEVEL)
        half = torch.where(limit < 1.0 - MIN_LEVEL, p.distribution.half_width(inside), torch.inf)
        half = torch.where(as_matrix(p.valid), as_matrix(half), torch.inf).reshape(limit.shape)
        mean, half = torch.where(torch.isfinite(p.mean), p.mean, 0.0), half.to(p.mean.dtype)
        return mean - half, mean + half


class ConformalSets(_Conformal):
    r"""Sets of the classes almost as probable as the best one: :math:`\log p_{max} - \log p_c \le q_g`.

    A set always holds the predicted class, and grows to all classes where the probabilities are flat: on rows
    unlike the training rows. (Sets of p_c above a limit are as small, but empty there; sets by the sum of the
    largest probabilities need random numbers, or hold far too many classes of a confident network.)

    Examples:
        >>> members = classes.conformal(unseen_kinds, level=0.8).sets(inputs)  # [n, C], bool
    """

    def sets(self, inputs: Inputs) -> Tensor:
        """Mask of the classes in the set of each row, shape [n, C] bool."""
        p, limit = self._answer(inputs)
        assert isinstance(p, ClassPrediction)
        return class_scores(p) <= limit[:, None]


@cpu_default()
def conformal(
    model: FittedModel, validation: Any, *, level: float = 0.9, unpack: Unpack | None = None
) -> ConformalIntervals | ConformalSets:
    """Conformal intervals or sets from validation rows; see `UncertaintyModel.conformal`."""
    check_share("level", level, 0.9)
    state = model.state
    if state.likelihood.conformal_refusal:
        raise TypeError(state.likelihood.conformal_refusal)
    rows = read_like(state, validation, name="validation", unpack=unpack)
    state.likelihood.check(state.shape.outputs, rows.targets, name="validation")
    needed = needed_rows(level)
    if len(rows) < needed:
        raise ValueError(
            f"level={level} takes at least {needed} validation rows, and there are {len(rows)}; pass more, "
            "or lower the level."
        )
    groups = _groups(state, len(rows), needed)
    parts = [_scored(model, rows, index) for index in chunks(len(rows))]
    place = torch.cat([_group(p, groups).cpu() for p, _ in parts])
    scores = torch.cat([score for _, score in parts])  # [n, C], or [n] for classes
    members = [scores[place == g] for g in range(int(groups.max()) + 1)]
    limits = torch.stack([held_out_quantile(own, level) for own in members])
    counts = torch.tensor([len(own) for own in members])
    if bool((counts < needed).any()):
        warn_user(
            f"{int((counts < needed).sum())} of {len(counts)} groups of experts have fewer than {needed} "
            f"validation rows: at level={level} their intervals or sets hold everything. Pass more rows, "
            "or rows spread like the training rows."
        )
    kind = ConformalSets if limits.ndim == 1 else ConformalIntervals
    return kind(model, level, groups, limits, counts, state.provenance)


def class_scores(p: ClassPrediction) -> Tensor:
    """Score log p_max - log p_c of every class, float64, shape [n, C]; 0 in rows that are not valid."""
    logits = p.tempered_logits.double()
    return logits.amax(dim=1, keepdim=True) - logits


def _scored(model: FittedModel, rows: Rows, index: Tensor) -> tuple[Prediction, Tensor]:
    """Prediction and scores of the targets: [n] for classes, [n, C] for numbers, on the CPU."""
    inputs, targets = rows.batch(index)
    p = model.predict(inputs)
    targets = targets.to(p.mean.device)
    if isinstance(p, ClassPrediction):
        return p, class_scores(p).gather(1, targets.long()).squeeze(1).cpu()
    off = (targets.double() - as_matrix(p.mean).double()).abs()
    level = as_matrix(p.distribution.within(off.reshape(p.mean.shape)))
    # every interval holds the targets of rows that are not valid
    return p, torch.where(p.valid[:, None], level, 0.0).cpu()


def _groups(state: ModelState, rows: int, needed: int) -> Tensor:
    """Group of each expert, shape [M]: neighbours are merged until each group can expect enough validation
    rows. Only training rows decide: groups chosen by the validation rows would void the guarantee."""
    mixture, *others = state.mixtures
    if others:  # a gate for each output: a row has no single expert
        return torch.zeros(1, dtype=torch.int64)
    own = torch.stack([expert.own for expert in mixture.experts]).double().cpu()
    return merge_groups(mixture.gate.centroids.cpu(), rows * own / own.sum(), least=MIN_GROUP_FACTOR * needed)


def _group(p: Prediction, groups: Tensor) -> Tensor:
    """Group of each row, shape [n]; rows without an expert belong to that of the first expert."""
    if p.expert.ndim == 2:
        return torch.zeros(len(p), dtype=torch.int64, device=p.mean.device)
    return groups.to(p.mean.device)[p.expert.clamp_min(0)]
