"""The paper's four observations about its settings: each a rule on numbers, and its verdict in words."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from ...core.claim import Check, Claim

LITTLE = 0.05  # nats per torque that count as a small cost
GAIN = 0.01  # nats per torque, on average and with the same sign in every seed, that count as a help


@dataclass(frozen=True)
class Curve:
    """One kind of prediction along an axis whose settings grow; for each setting one number a seed."""

    kind: str
    labels: Sequence[str]  # of the settings
    nll: Sequence[Sequence[float]]
    work: Sequence[Sequence[float]]  # of the factorisations

    @property
    def means(self) -> list[float]:
        """Of the NLL over seeds."""
        return [fmean(values) for values in self.nll]


@dataclass(frozen=True)
class Observation:
    """What the paper saw."""

    claim: str
    axes: Sequence[str]  # on which it is judged
    rule: Callable[[Curve], Check]  # when it holds on one of them
    rule_words: str  # for the protocol


def costs_little(curve: Curve) -> Check:
    """No doubling of the number costs more than `LITTLE`, and the work falls from the first to the last."""
    counts, means = [float(label) for label in curve.labels], curve.means
    steps = [
        (later - earlier) / math.log2(more / fewer)
        for (earlier, later), (fewer, more) in zip(pairwise(means), pairwise(counts), strict=True)
    ]
    less_work = fmean(curve.work[0]) / fmean(curve.work[-1])
    because = (
        f"{means[0]:.2f} with {curve.labels[0]}, {means[-1]:.2f} with {curve.labels[-1]}, at worst "
        f"{max(steps):+.3f} a doubling, work divided by {less_work:.3g}"
    )
    return Check(curve.kind, max(steps) <= LITTLE and less_work > 1, because)


def helps_up_to_a_point(curve: Curve) -> Check:
    """The best setting helps against the smallest, and the last step gains no more than `GAIN`."""
    means = curve.means
    best = min(range(len(means)), key=means.__getitem__)
    last = means[-2] - means[-1]
    because = (
        f"{curve.labels[0]} is {means[0] - means[best]:.3f} above the best, {curve.labels[best]}; the last "
        f"step gains {last:.3f}"
    )
    return Check(curve.kind, _helps(curve.nll[0], curve.nll[best]) and last <= GAIN, because)


def moderate_hardly_hurts(curve: Curve) -> Check:
    """Against the last setting, unpruned, the one before costs at most `LITTLE` and the first costs more."""
    means = curve.means
    moderate, extreme = means[-2] - means[-1], means[0] - means[-1]
    because = f"{curve.labels[-2]} costs {moderate:.3f}, {curve.labels[0]} costs {extreme:.3f}"
    return Check(curve.kind, moderate <= LITTLE < extreme, because)


def helps(curve: Curve) -> Check:
    """The largest setting helps against the smallest."""
    means = curve.means
    because = f"{means[0]:.3f} with {curve.labels[0]}, {means[-1]:.3f} with {curve.labels[-1]}"
    return Check(curve.kind, _helps(curve.nll[0], curve.nll[-1]), because)


OBSERVATIONS = (
    Observation(
        "more experts cost little accuracy, while the work falls",
        ("experts",),
        costs_little,
        f"no doubling of their number raises the NLL by more than {LITTLE}, and the work of the "
        "factorisations (the sum over experts of their rows cubed) falls from the fewest to the most",
    ),
    Observation(
        "a larger subset for the gate helps, up to a point",
        ("subset",),
        helps_up_to_a_point,
        f"the best size helps against the smallest, and the last doubling gains no more than {GAIN}",
    ),
    Observation(
        "moderate pruning hardly hurts, extreme pruning does",
        ("stage_one", "stage_two"),
        moderate_hardly_hurts,
        f"against what is not pruned, the mildest pruning costs at most {LITTLE} and the hardest more",
    ),
    Observation(
        "a larger active fraction helps",
        ("fraction",),
        helps,
        "the largest share of active rows helps against the smallest",
    ),
)


def judge(
    observation: Observation, curves: Mapping[str, Sequence[Curve]], titles: Mapping[str, str]
) -> tuple[str, str]:
    """The verdict, and a sentence with the numbers behind it; curves and titles are by axis."""
    found = {axis: [observation.rule(curve) for curve in curves[axis]] for axis in observation.axes}
    claim = Claim(observation.claim, [check for checks in found.values() for check in checks])
    count = f" ({claim.held} of {len(claim.checks)})" if claim.verdict == "confirmed in part" else ""
    sentence = f"That {claim.statement}, as the paper observed, is {claim.verdict}{count}."
    for axis, checks in found.items():
        lines = (f"{c.where} {'holds' if c.holds else 'fails'} ({c.because})" for c in checks)
        sentence += f" {titles[axis].capitalize()}: {'; '.join(lines)}."
    return claim.verdict, sentence


def _helps(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether the NLL falls in every seed, and by `GAIN` on average."""
    gains = [b - a for b, a in zip(before, after, strict=True)]
    return min(gains) > 0 and fmean(gains) >= GAIN
