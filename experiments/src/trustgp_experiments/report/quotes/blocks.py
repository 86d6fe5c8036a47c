"""Which blocks there are: names on the pages, and the functions of stored results that write them."""

from functools import partial
from typing import Any

from ...core.registry import STUDIES
from . import benchmarks, cifar, detection, front, settings
from .pages import Block
from .stored import NotRun, Stored, bullets, grid, number, words

UNDECIDED, SEEN = ", alike with", "Looked at when choices were made"  # of findings


def verdicts(stored: Stored) -> str:
    """The findings of the study of classes that are better or worse than the best peer, or count."""
    found = stored.study("classification")["findings"]
    chosen = [one for one in found if UNDECIDED not in one and not one.startswith(SEEN)]
    same = sum(UNDECIDED in one and not one.startswith(SEEN) for one in found)
    return f"{bullets(chosen)}\n\nAlike with the best peer are {same} more."


def findings(stored: Stored, *, study: str, last: int = 0) -> str:
    """The sentences that a study made from its numbers, or the `last` of them, and where they come from."""
    result = stored.study(study)
    origin = result["provenance"]
    made = f"`{origin['command']}`, {origin['device']}, {origin['date']}, commit `{origin['commit'][:10]}`."
    return f"{bullets(result['findings'][-last:])}\n\nFrom {made}"


def table(
    stored: Stored,
    *,
    title: str | None = None,
    more: str | None = None,
    study: str = "classification",
    spread: bool = True,
) -> str:
    """A stored table of that title, or the first, mean and spread over seeds in a cell, and its note.
    `more` is the title of another with the same columns, whose rows follow."""
    tables = [one for one in stored.tables(study) if title in (None, one["title"])]
    if not tables:
        raise NotRun(f"study `{study}` in its present form")
    columns, rows = tables[0]["columns"], [*tables[0]["rows"]]
    rows += [row for one in stored.tables(study) if more == one["title"] for row in one["rows"]]
    cells = [[_cell(*pair, spread=spread) for pair in zip(row, columns, strict=True)] for row in rows]
    names = [", ".join(filter(None, (column["name"], column["unit"]))) for column in columns]
    about = tables[0]["note"] if spread else tables[0]["note"].replace("mean ± deviation", "mean")
    return f"{grid(names, cells)}\n\n{words(about)}".strip()


def _cell(cell: Any, column: dict[str, Any], *, spread: bool) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    values = cell[: 1 + spread] if isinstance(cell, list) else [cell]
    return " ± ".join(number(value, column["digits"]) for value in values)


NEW_PAIRS = "Novel images detected, on pairs with which nothing was chosen"
CLASSES = {
    "fashion": "Fashion-MNIST: test images like those that trained",
    "distorted": "NLL on distorted Fashion-MNIST",
    "told": f"{NEW_PAIRS}: AUROC",
    "table": "What it costs, and what it is worth",
}
UNTUNED = "Table 1 here, untuned, as in the paper"
FOLDERS = (*STUDIES, "tables", "distributed-cuda", "runtime-cuda")
BLOCKS: dict[str, Block] = {
    "readme.small": front.small,
    "results.table": front.table,
    "results.tally": front.tally,
    "results.loses": front.loses,
    "networks.large": benchmarks.networks,
    "classes.verdicts": verdicts,
    "classes.cifar": cifar.table,
    "classes.cifar-parts": cifar.parts,
    "speed.calls": benchmarks.calls,
    "speed.cpu": partial(benchmarks.over_network, study="runtime"),
    "speed.cuda": partial(benchmarks.over_network, study="runtime-cuda"),
    "speed.worth": benchmarks.worth,
    "paper.toy": partial(table, study="toy"),
    "paper.ablation": settings.observations,
    "paper.transfer": front.transfer,
    "paper.zero-shot": front.zero_shot,
    "paper.printed": partial(table, study="transfer", title="The paper's Table 1, as printed", spread=False),
    "paper.here": partial(table, study="transfer", title=UNTUNED, more="Table 1 here, tuned"),
    "paper.order": partial(findings, study="transfer", last=3),
    "paper.detection": detection.summary,
    "studies.sequences": front.sequences_tally,
    "studies.settings": settings.defaults,
    "detection.told": detection.told,
    "detection.right": detection.right,
    "detection.loses": detection.loses,
    "detection.times": detection.times,
    **{f"classification.{name}": partial(table, title=title) for name, title in CLASSES.items()},
    **{f"findings.{study}": partial(findings, study=study) for study in FOLDERS},
}
