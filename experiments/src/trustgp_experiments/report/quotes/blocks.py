"""Blocks by their names on the pages, with the functions that write them from stored results."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...core.registry import STUDIES
from . import benchmarks, cifar, detection, front, losses, published, sentences, settings
from .comparisons import OURS
from .pages import Block
from .stored import NotRun, Stored, bullets, grid, number, words

UNDECIDED = ", alike with"  # of a finding
ELSEWHERE = ("Looked at when choices were made", "ECE, trustgp", "AUROC on new pairs")  # in the report
SPREAD = re.compile(r" ± [\d.]+")
DEVIATION = re.compile(r"ean ± (standard )?deviation")


def verdicts(stored: Stored) -> str:
    """Findings of the classification study that are better or worse than the best peer, and tallies; without
    spreads, which the intervals of differences take into account."""
    found = stored.study("classification")["findings"]
    chosen = [SPREAD.sub("", one) for one in found if UNDECIDED not in one and not one.startswith(ELSEWHERE)]
    same = sum(UNDECIDED in one and not one.startswith(ELSEWHERE) for one in found)
    return f"{bullets(chosen)}\n\nAlike with the best peer are {same} more."


def findings(stored: Stored, *, study: str, last: int = 0) -> str:
    """Sentences that a study made from its numbers, or the `last` of them, and their origin."""
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
    methods: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> str:
    """Stored table with this title, or the first one, with mean and spread over seeds in a cell, and a note.
    `more` is the title of another table with the same columns, whose rows follow; `methods` and `columns` are
    those that a page shows, all of them by default."""
    tables = [one for one in stored.tables(study) if title in (None, one["title"])]
    if not tables:
        raise NotRun(f"study `{study}` in its present form")
    rows = [*tables[0]["rows"]]
    rows += [row for one in stored.tables(study) if more == one["title"] for row in one["rows"]]
    rows = [row for row in rows if not methods or row[0] in methods]
    kept = [
        (place, column)
        for place, column in enumerate(tables[0]["columns"])
        if place == 0 or not columns or column["name"] in columns
    ]
    cells = [[_cell(row[place], column, spread=spread) for place, column in kept] for row in rows]
    names = [", ".join(filter(None, (column["name"], column["unit"]))) for _, column in kept]
    about = tables[0]["note"] if spread else DEVIATION.sub("ean", tables[0]["note"])
    return f"{grid(names, cells)}\n\n{words(about)}".strip()


def control(stored: Stored) -> str:
    """Table of tracking errors in closed loop, and the findings in which another method has a lower one."""
    lost = [one for one in stored.study("control")["findings"] if "worse in 0" not in one]
    whole = table(stored, study="control", title="Tracking error by share of alarms", spread=False)
    return f"{whole}\n\n{bullets(lost)}".strip()


def _cell(cell: Any, column: dict[str, Any], *, spread: bool) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    values = cell[: 1 + spread] if isinstance(cell, list) else [cell]
    return " ± ".join(number(value, column["digits"]) for value in values)


NEW_PAIRS = "Novel images detected, on pairs with which nothing was chosen"
LIKELY = ("softmax", "temperature scaling", "MC-dropout 20", "ensemble of 5", "Laplace last layer")
LIKELY += ("Laplace KFAC, evidence", "trustgp paper form", OURS)
NOVEL = ("MC-dropout 20", "ensemble of 5", "Laplace KFAC, evidence", "energy", "relative Mahalanobis")
NOVEL += ("kNN, cosine", "kNN, Euclidean", "DDU density", "ViM", "trustgp paper form", OURS)
FAMILIAR, COSTS = "Fashion-MNIST: test images like those that trained", "What it costs, and what it is worth"
PROPER, SHIFTS = ("NLL", "ECE", "accuracy"), ("rotated 15", "rotated 45", "rotated 90", "noisy 0.2")
PAID = ("fit s", "more training s", "MiB", "ms/image", "NLL", "mean AUROC")
COSTED = (*LIKELY, "kNN, cosine", "DDU density")
likely = partial(table, methods=LIKELY)
CLASSES = {  # tables of the page on classes, and what it shows of them
    "fashion": partial(likely, title=FAMILIAR, columns=PROPER),
    "distorted": partial(likely, title="NLL on distorted Fashion-MNIST", columns=SHIFTS, spread=False),
    "told": partial(table, title=f"{NEW_PAIRS}: AUROC", methods=NOVEL, spread=False),
    "table": partial(table, title=COSTS, methods=COSTED, columns=PAID),
}
UNTUNED = "Table 1 here, untuned, as in the paper"
FOLDERS = (*STUDIES, "tables", "distributed-cuda")
BLOCKS: dict[str, Block] = {
    "readme.small": front.small,
    "results.sentences": sentences.block,
    "results.table": front.table,
    "results.tally": front.tally,
    "results.loses": losses.block,
    "results.published": published.table,
    "results.control": control,
    "networks.large": benchmarks.networks,
    "classes.verdicts": verdicts,
    "classes.cifar": cifar.table,
    "classes.cifar-parts": cifar.parts,
    "speed.calls": benchmarks.calls,
    "speed.cpu": benchmarks.over_network,
    "speed.cuda": benchmarks.small_networks,
    "paper.toy": partial(table, study="toy", spread=False),
    "paper.ablation": settings.observations,
    "paper.transfer": front.transfer,
    "paper.zero-shot": front.zero_shot,
    "paper.printed": partial(table, study="transfer", title="The paper's Table 1, as printed", spread=False),
    "paper.here": partial(table, study="transfer", title=UNTUNED, more="Table 1 here, tuned", spread=False),
    "paper.order": partial(findings, study="transfer", last=3),
    "paper.detection": detection.summary,
    "studies.sequences": front.sequences_tally,
    "studies.settings": settings.defaults,
    "detection.told": detection.told,
    "detection.right": detection.right,
    "detection.loses": detection.loses,
    **{f"classification.{name}": made for name, made in CLASSES.items()},
    **{f"findings.{study}": partial(findings, study=study) for study in FOLDERS},
}
