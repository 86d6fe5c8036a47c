"""Findings: paired differences over seeds, and statements with the cases in which they hold."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from scipy.special import stdtr, stdtrit

LEVEL = 0.95  # of the interval of a difference


def stdev(values: Sequence[float]) -> float:
    """Standard deviation of a sample (n - 1), in floats; `statistics.stdev` is the slow part of a summary."""
    mean = fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def mean_spread(values: Sequence[float]) -> list[float]:
    """Mean and sample standard deviation over seeds (n - 1; 0 for one seed), as a table's cell."""
    return [fmean(values), stdev(values) if len(values) > 1 else 0.0]


@dataclass(frozen=True)
class Difference:
    """Paired difference over seeds, our numbers minus theirs: mean and 95 % interval by Student's t."""

    mean: float
    low: float
    high: float
    lower_is_better: bool = True
    p: float = 1.0  # two-sided p-value of no difference
    holm: float | None = None  # p corrected for the number of rivals; None: not corrected

    @property
    def verdict(self) -> str:
        """Verdict: "better" or "worse" where the interval excludes 0, else "alike"."""
        if not (self.low > 0 or self.high < 0):
            return "alike"
        return "better" if (self.high < 0) == self.lower_is_better else "worse"

    @property
    def strict(self) -> str:
        """The verdict after Holm's correction."""
        assert self.holm is not None, "correct the differences first"
        return self.verdict if self.holm < 1.0 - LEVEL else "alike"

    def words(self, digits: int = 2) -> str:
        """Mean and interval as text: "-0.31 (-0.42 to -0.20)"."""
        return f"{self.mean:+.{digits}f} ({self.low:+.{digits}f} to {self.high:+.{digits}f})"


def paired(
    ours: Sequence[float], theirs: Sequence[float], *, overlap: float = 0.0, lower_is_better: bool = True
) -> Difference:
    r"""Difference, ours minus theirs, on the same seeds; one seed gives no interval: its verdict is "alike".

    Seeds that draw their test rows from one table share training rows, so that differences are not
    independent. With test rows / training rows as :math:`\rho` (`overlap`) the interval is that of Nadeau and
    Bengio (2003), :math:`\bar d \pm t_{n-1} s \sqrt{1/n + \rho}`.
    """
    ours_infinite, theirs_infinite = (sum(map(math.isinf, side)) for side in (ours, theirs))
    if ours_infinite or theirs_infinite:  # larger than any finite cost; by how much is undefined
        end = math.inf * (ours_infinite - theirs_infinite) if ours_infinite != theirs_infinite else 0.0
        return Difference(end, end, end, lower_is_better, p=0.0 if end else 1.0)
    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, n = fmean(gaps), len(gaps)
    if n < 2:
        return Difference(mean, -math.inf, math.inf, lower_is_better)
    error = stdev(gaps) * math.sqrt(1 / n + overlap)
    half = float(stdtrit(n - 1, 0.5 + LEVEL / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean) / error)) if error else float(mean == 0)
    return Difference(mean, mean - half, mean + half, lower_is_better, p)


def correct(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    r"""Correct the p-values of several rivals in one case by Holm's step-down method.

    .. math:: \tilde p_{(k)} = \max_{j \le k} \min(1, (m - j + 1) \, p_{(j)})
    """
    largest, corrected = 0.0, {}
    for place, (rival, one) in enumerate(sorted(differences.items(), key=lambda item: item[1].p)):
        largest = max(largest, min(1.0, (len(differences) - place) * one.p))
        corrected[rival] = replace(one, holm=largest)
    return {rival: corrected[rival] for rival in differences}


def counts(verdicts: Sequence[str]) -> str:
    """Numbers of "worse", "alike" and "better" verdicts as text: "1 / 2 / 5"."""
    return " / ".join(str(verdicts.count(verdict)) for verdict in ("worse", "alike", "better"))


def tally(differences: Sequence[Difference]) -> str | None:
    """Counts by the intervals, then after Holm's correction: "1 / 2 / 5 (0 / 4 / 4)"; None without a case."""
    verdicts, strict = ([getattr(one, kind) for one in differences] for kind in ("verdict", "strict"))
    return f"{counts(verdicts)} ({counts(strict)})" if differences else None


def versus(differences: Mapping[str, Difference], digits: int = 2) -> str:
    """Numbers of worse, alike and better cases as text, and each loss with its size, the largest first."""
    verdicts = [difference.verdict for difference in differences.values()]
    lost = [case for case, difference in differences.items() if difference.verdict == "worse"]
    lost.sort(key=lambda case: -abs(differences[case].mean))
    losses = "; ".join(f"{case} by {differences[case].words(digits)}" for case in lost)
    alike, better = (verdicts.count(verdict) for verdict in ("alike", "better"))
    ends = f"alike in {alike}, better in {better} of {len(verdicts)} cases"
    return f"worse in {len(lost)}{f' ({losses})' if losses else ''}, {ends}"


def words(cell: Sequence[float], digits: int = 2) -> str:
    """Mean and spread as text: "1.22 ± 0.05"."""
    return " ± ".join(f"{value:.{digits}f}" for value in cell)


@dataclass(frozen=True)
class Check:
    """One case of a claim, whether the statement is true of it, and its numbers in words."""

    where: str
    holds: bool
    because: str = ""

    def __str__(self) -> str:
        return f"{self.where} ({self.because})" if self.because else self.where


@dataclass(frozen=True)
class Claim:
    """A statement about a study's numbers, true or not, with the cases it is checked on."""

    statement: str
    checks: Sequence[Check]

    @property
    def count(self) -> int:
        return sum(check.holds for check in self.checks)

    @property
    def verdict(self) -> str:
        """Verdict in one to three words."""
        if self.count == len(self.checks):
            return "confirmed"
        return "confirmed in part" if self.count else "contradicted"

    @property
    def sentence(self) -> str:
        """Sentence with the number of cases in which the claim holds, and the failed ones with numbers."""
        failed = "; ".join(str(check) for check in self.checks if not check.holds)
        end = f"; not in: {failed}." if failed else "."
        return f"{self.statement}: in {self.count} of {len(self.checks)} cases{end}"


def within(where: str, share: float, lowest: float, highest: float) -> Check:
    """Check that a share lies between two bounds; it is printed in percent."""
    return Check(where, lowest <= share <= highest, f"{100 * share:.1f} %")
