"""Where peers are ahead of trustgp beyond the interval over seeds, from all studies with peers."""

from collections import Counter

from ...datasets import IMAGE_SETS
from .comparisons import CORRECTED, IN_DOMAIN, OURS, WITNESS, Group, Place, groups, stored_cases
from .stored import Stored, bullets, listed, percent

MAX_NAMED = 4  # peers
LOW, HIGH = 0.90, 0.985  # what a 95 % interval should cover


def block(stored: Stored) -> str:
    """Sentences for each group of places, and one about coverage."""
    sentences = [*map(lost, groups(stored)), _coverage(stored)]
    return bullets(sentence for sentence in sentences if sentence)


def lost(group: Group) -> str:
    """Sentence on the number of places where each peer is ahead, and where by most; empty if none is."""
    ahead = [(peer, gap, at) for at in group.places for peer, gap in at[0].ahead(at[1], group.key)]
    parts = [case.against(OURS, WITNESS, group.key, test) for case, test in group.places]
    witness = sum(part is not None and part.verdict == "worse" for part in parts)
    if not ahead and not witness:
        return ""
    texts = []
    if ahead:
        counts = Counter(one[0] for one in ahead).most_common(MAX_NAMED)
        most = [f"`{name}` in {count}" for name, count in counts]
        peer, gap, place = max(ahead, key=lambda one: abs(one[1].mean))
        texts = [f"{listed(most)}, by most `{peer}` by {abs(gap.mean):.{group.digits}f} ({_named(place)})"]
    texts += [f"the witness alone, a part of trustgp, in {witness}"] if witness else []
    return f"**{group.what}** ({len(group.places)} cases): better are {'; '.join(texts)}."


def _named(place: Place) -> str:
    case, test = place
    data, _, eight = next(iter(case.about.values())).partition("-")
    name = IMAGE_SETS.get(data, data) + (" of eight classes" if eight else "")
    return name if test == IN_DOMAIN else f"{name}, tested on {test}"


def _coverage(stored: Stored) -> str:
    """Sentence on the cases in which the 95 % interval covers too little or too much; empty if none."""
    found, off = [case for study in ("transfer", "tables") for case in stored_cases(stored, study)], []
    for method in (OURS, CORRECTED):
        shares = [(case.name, case.mean(method, "coverage")) for case in found]
        off += [f"{n} {percent(s)} ({method})" for n, s in shares if s is not None and not LOW <= s <= HIGH]
    bounds = f"less than {100 * LOW:.0f} % or more than {100 * HIGH:.1f} %"
    return f"The 95 % interval covers {bounds} in: {listed(off)}." if off else ""
