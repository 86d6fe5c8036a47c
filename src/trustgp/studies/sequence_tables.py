"""Tables and findings of the sequence study."""

from __future__ import annotations

from .base import Column, Table
from .transfer_findings import CORRECTED, ENSEMBLE, HIGHEST, LOWEST, OURS, verdict
from .transfer_rows import IN_DOMAIN
from .transfer_tables import MEASURES, Cells, average, cell_of, methods_of, tests_of, trainings_of

NOISE = "network + noise"
SPLIT = "unseen"  # the only one here


def sequence_tables(cells: Cells) -> list[Table]:
    """The headline, then everything by arm.

    Args:
        cells: From `collect`.
    """
    return [_headline(cells), *(_everything(cells, trained) for trained, _ in trainings_of(cells))]


def _headline(cells: Cells) -> Table:
    columns = [Column("method", digits=-1)]
    places = [(t, test) for t, split in trainings_of(cells) for test in tests_of(cells, t, split)]
    for trained, test in places:
        near = test == IN_DOMAIN
        columns.append(
            Column(trained if near else f"{trained} on {test}", digits=3 if near else 2, better="low")
        )
    rows = [
        [method, *(cell_of(cells, (trained, SPLIT, test, method), "nll") for trained, test in places)]
        for method in methods_of(cells)
    ]
    note = "A column that names one arm is of new motions of that arm; the others are zero shot."
    return Table("NLL per torque", columns, rows, note=note)


def _everything(cells: Cells, trained: str) -> Table:
    columns = [Column("tested on", digits=-1), Column("method", digits=-1), *MEASURES.values()]
    rows = [
        [test, method, *(cell_of(cells, (trained, SPLIT, test, method), key) for key in MEASURES)]
        for test in tests_of(cells, trained, SPLIT)
        for method in methods_of(cells)
    ]
    return Table(f"Every measure: trained on {trained}", columns, rows, block="tested on")


def sequence_findings(cells: Cells) -> list[str]:
    """One sentence each, made from the numbers.

    Args:
        cells: From `collect`.
    """
    near = [(trained, SPLIT, IN_DOMAIN) for trained, _ in trainings_of(cells)]
    far = [
        (trained, SPLIT, test)
        for trained, _ in trainings_of(cells)
        for test in tests_of(cells, trained, SPLIT)
        if test != IN_DOMAIN
    ]
    return [
        _better(
            cells, near, OURS, NOISE, "nll", "On new motions trustgp has a lower NLL than constant noise"
        ),
        _better(cells, near, OURS, ENSEMBLE, "nll", "On new motions it has a lower NLL than five networks"),
        _better(cells, near, CORRECTED, NOISE, "mse", "The corrected mean has a lower mse than the network"),
        _better(
            cells, far, OURS, ENSEMBLE, "nll", "On other arms trustgp has a lower NLL than five networks"
        ),
        _covered(cells, near),
    ]


def _better(
    cells: Cells, places: list[tuple[str, str, str]], ours: str, theirs: str, key: str, claim: str
) -> str:
    lost = []
    for place in places:
        mine, other = (average(cells[*place, method][key]) for method in (ours, theirs))
        if not mine < other:
            lost.append(f"{_words(place)} ({mine:.4g} against {other:.4g})")
    return verdict(claim, len(places), lost)


def _covered(cells: Cells, places: list[tuple[str, str, str]]) -> str:
    lost = []
    for place in places:
        share = average(cells[*place, OURS]["coverage"])
        if not LOWEST <= share <= HIGHEST:
            lost.append(f"{_words(place)} ({100 * share:.1f} %)")
    claim = f"covers {100 * LOWEST:.0f} to {100 * HIGHEST:.1f} %"
    return verdict(f"On new motions the 95 % interval of trustgp {claim}", len(places), lost)


def _words(place: tuple[str, str, str]) -> str:
    trained, _, test = place
    return trained if test == IN_DOMAIN else f"{trained} on {test}"
