"""A finding: a statement, the cases it is judged on with their numbers, and a sentence made from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev


def mean_spread(values: Sequence[float]) -> list[float]:
    """Mean and standard deviation over seeds, as a table's cell."""
    return [fmean(values), pstdev(values)]


def words(cell: Sequence[float], digits: int = 2) -> str:
    """Mean and spread as text: "1.22 ± 0.05"."""
    return " ± ".join(f"{value:.{digits}f}" for value in cell)


def change(before: Sequence[float], after: Sequence[float], digits: int = 2) -> str:
    """From the numbers of some seeds to those of another setting on the same seeds, in words."""
    pairs = list(zip(before, after, strict=True))
    verb = f"falls in {sum(b < a for a, b in pairs)} of {len(pairs)} seeds"
    if all(b < a for a, b in pairs):
        verb = "falls in every seed"
    elif all(b > a for a, b in pairs):
        verb = "grows in every seed"
    return f"{verb}, from {words(mean_spread(before), digits)} to {words(mean_spread(after), digits)}"


@dataclass(frozen=True)
class Check:
    """One case of a claim, whether the statement is true of it, and by which numbers, in words."""

    where: str
    holds: bool
    because: str = ""

    def __str__(self) -> str:
        return f"{self.where} ({self.because})" if self.because else self.where


@dataclass(frozen=True)
class Claim:
    """What a study says of its numbers, true or not: the sentence tells in how many cases it holds."""

    statement: str
    checks: Sequence[Check]

    @property
    def held(self) -> int:
        """Cases in which it holds."""
        return sum(check.holds for check in self.checks)

    @property
    def lost(self) -> list[Check]:
        """Cases in which it does not."""
        return [check for check in self.checks if not check.holds]

    @property
    def verdict(self) -> str:
        """In a word or three."""
        return "confirmed" if not self.lost else "confirmed in part" if self.held else "contradicted"

    @property
    def sentence(self) -> str:
        """In how many cases it holds, and in which it does not, with their numbers."""
        end = f"; not in: {'; '.join(map(str, self.lost))}." if self.lost else "."
        return f"{self.statement}: in {self.held} of {len(self.checks)} cases{end}"


def at_most(
    where: str,
    ours: float,
    theirs: float,
    *,
    slack: float = 0.0,
    strict: bool = False,
    form: str = ".4g",
    of: str = "",
    rival: str = "",
) -> Check:
    """Whether our number, of which lower is better, is no higher than another, or by no more than `slack`.

    Where it is `strict`, a tie is no win. In the words, numbers have a `form`; what they are `of`, and whose
    the second is (`rival`), is said where the statement does not say so.
    """
    holds = ours < theirs + slack if strict else ours <= theirs + slack
    named = f"{of} {ours:{form}} against {theirs:{form}}".lstrip()
    return Check(where, holds, f"{named} of {rival}" if rival else named)


def within(where: str, share: float, lowest: float, highest: float, *, of: str = "") -> Check:
    """Whether a share lies between two bounds; it is told in percent, after what it is of."""
    return Check(where, lowest <= share <= highest, f"{of} {100 * share:.1f} %".lstrip())
