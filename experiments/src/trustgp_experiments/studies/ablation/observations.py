"""The paper's observations about its settings: each a rule on numbers, and its verdict in words.

The paper measured the variance that the evidence gives, so the plain one decides. The rule's result for our
own predictions, which are calibrated, is reported beside the verdict and does not count.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from ...core.claim import Check, Claim

SMALL_COST = 0.05  # nats per torque
GAIN = 0.01  # nats per torque, on average and with the same sign in every seed, that count as a help
STAGES = ("stage_one", "stage_two")  # of pruning
JUDGED = "plain"  # the kind of prediction by which the paper is judged


@dataclass(frozen=True)
class SettingCurve:
    """One kind of prediction along an axis whose settings grow; for each setting one number per seed."""

    kind: str
    labels: Sequence[str]  # of the settings
    nll: Sequence[Sequence[float]]
    work: Sequence[Sequence[float]]  # of the factorisations

    @property
    def means(self) -> list[float]:
        return [fmean(values) for values in self.nll]


@dataclass(frozen=True)
class Observation:
    """An observation of the paper, with the rule that judges it."""

    claim: str
    axes: Sequence[str]  # on which it is judged
    rule: Callable[[SettingCurve], Check]  # when it holds on one of them; study.md has it in words


def grows(curve: SettingCurve) -> Check:
    """Check that the NLL rises to the last setting in every seed, by `GAIN` on average; no step falls so."""
    means = curve.means
    falls = max(earlier - later for earlier, later in pairwise(means))
    less_work = fmean(curve.work[0]) / fmean(curve.work[-1])
    because = f"{means[0]:.2f} with {curve.labels[0]}, {means[-1]:.2f} with {curve.labels[-1]}"
    because += f", work divided by {less_work:.3g}"
    return Check(curve.kind, _helps(curve.nll[-1], curve.nll[0]) and falls < GAIN, because)


def hardly_matters(curve: SettingCurve) -> Check:
    """Check that the best and the worst setting differ by no more than `SMALL_COST`."""
    means = curve.means
    best, worst = (pick(range(len(means)), key=means.__getitem__) for pick in (min, max))
    gap = means[worst] - means[best]
    because = f"best {curve.labels[best]}, worst {curve.labels[worst]}, {gap:.3f} apart"
    return Check(curve.kind, gap <= SMALL_COST, because)


def moderate_hardly_hurts(curve: SettingCurve) -> Check:
    """Check that, over the unpruned last setting, the one before costs up to `SMALL_COST`, the first more."""
    means = curve.means
    moderate, extreme = means[-2] - means[-1], means[0] - means[-1]
    because = f"{curve.labels[-2]} costs {moderate:.3f}, {curve.labels[0]} costs {extreme:.3f}"
    return Check(curve.kind, moderate <= SMALL_COST < extreme, because)


def helps(curve: SettingCurve) -> Check:
    """Check that the last, largest setting helps against the first, smallest one."""
    means = curve.means
    because = f"{means[0]:.3f} with {curve.labels[0]}, {means[-1]:.3f} with {curve.labels[-1]}"
    return Check(curve.kind, _helps(curve.nll[0], curve.nll[-1]), because)


def _helps(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether the NLL falls in every seed, and by `GAIN` on average."""
    gains = [b - a for b, a in zip(before, after, strict=True)]
    return min(gains) > 0 and fmean(gains) >= GAIN


OBSERVATIONS = (
    Observation("the NLL grows with the number of experts", ("experts",), grows),
    Observation("the size of the gate's subset has no significant influence", ("subset",), hardly_matters),
    Observation("moderate pruning hardly hurts, extreme pruning does", STAGES, moderate_hardly_hurts),
    Observation("a larger active fraction helps", ("fraction",), helps),
)


def judge(
    observation: Observation, curves: Mapping[str, Sequence[SettingCurve]], titles: Mapping[str, str]
) -> str:
    """Verdict with the numbers behind it; curves and titles are by axis."""
    checks = {axis: [observation.rule(curve) for curve in curves[axis]] for axis in observation.axes}
    claim = Claim(observation.claim, [c for cases in checks.values() for c in cases if c.where == JUDGED])
    count = f" ({claim.count} of {len(claim.checks)})" if claim.verdict == "confirmed in part" else ""
    sentence = f"That {claim.statement}, as the paper observed, is {claim.verdict}{count}."
    for axis, cases in checks.items():
        paper = "; ".join(f"{c.where}: {c.because}" for c in cases if c.where == JUDGED)
        verbs = {True: "holds", False: "does not hold"}
        ours = "; ".join(f"{c.where} {verbs[c.holds]} ({c.because})" for c in cases if c.where != JUDGED)
        sentence += f" {titles[axis].capitalize()}, {paper}." + (f" Of our own: {ours}." if ours else "")
    return sentence
