"""The committed results are whole; what pages quote of them is tried in `test_quotes.py`."""

import json
import re
from dataclasses import asdict
from pathlib import Path

from trustgp_experiments.core.borders import jump_words
from trustgp_experiments.core.cases import costs_grid, read_tests
from trustgp_experiments.core.grid import Grid
from trustgp_experiments.report.page import read_results, write_report
from trustgp_experiments.studies.ablation import study as ablation
from trustgp_experiments.studies.ablation.axes import our_axes, paper_axes
from trustgp_experiments.studies.bound import study as bound
from trustgp_experiments.studies.classification import tables as classification
from trustgp_experiments.studies.classification.findings import class_findings
from trustgp_experiments.studies.continuity import study as continuity
from trustgp_experiments.studies.sequence import study as sequence
from trustgp_experiments.studies.tables import study as tables
from trustgp_experiments.studies.toy import study as toy
from trustgp_experiments.studies.transfer import scores as transfer

RESULTS = Path(__file__).resolve().parents[1] / "results"
TIMED = {
    "scale",
    "distributed",
    "distributed-cuda",
    "runtime",
    "runtime-cuda",
}  # of these, seeds repeat a measurement of time

STUDIES = sorted(path.parent.name for path in RESULTS.glob("*/result.json"))


def test_a_full_run_of_every_study_of_the_paper_is_there():
    assert {
        "toy",
        "ablation",
        "transfer",
        "continuity",
        "bound",
        "classification",
        "sequence",
        "scale",
        "detection",
        "tables",
    } <= set(STUDIES)


def test_results_are_of_full_runs_with_three_seeds_and_say_where_they_come_from():
    wrong = []
    for study in STUDIES:
        result = stored(study)
        origin = result["provenance"]
        facts = {
            "a full run": origin["quick"] is False,
            "of a known command": origin["command"].startswith(f"trustgp study {result['study']} --seeds"),
            "enough seeds": len(origin["seeds"]) >= (1 if study in TIMED else 3),
            "a commit": re.fullmatch(r"[0-9a-f]{40}", origin["commit"]),
            "figures": all((RESULTS / study / f["file"]).stat().st_size > 1000 for f in result["figures"]),
        }
        wrong += [f"{study}: not {fact}" for fact, holds in facts.items() if not holds]
    assert wrong == []


def test_tables_and_findings_of_stored_results_follow_from_their_numbers():
    """What the code of today makes of the stored numbers is what the page shows."""
    found = {
        "transfer": _transfer(),
        "classification": _classes(),
        "sequence": _sequence(),
        "ablation": _ablation(),
        "bound": _bound(),
        "toy": (None, _toy()),
        "continuity": _continuity(),
        "tables": _tables(),
    }
    wrong = []
    for study, (made, findings) in found.items():
        result = stored(study)
        shown = {table["title"]: table for table in result["tables"]}
        for table in json.loads(json.dumps([asdict(table) for table in made or ()])):
            wrong += [] if shown[table["title"]] == table else [f"{study}: table {table['title']}"]
        if findings is not None and findings != result["findings"]:
            wrong.append(f"{study}: findings")
    assert wrong == []


def runs(study: str, *axes: str) -> dict:
    """By case, the parts of all seeds."""
    return {tuple(run[axis] for axis in axes): run["seeds"] for run in stored(study)["numbers"]["runs"]}


def stored(study: str) -> dict:
    return json.loads((RESULTS / study / "result.json").read_text())


def _transfer():
    grid = Grid.of(transfer.AXES, runs("transfer", "trained", "split"), read_tests)
    return transfer.tables(grid), transfer.findings(grid)


def _tables():
    grid = Grid.of(tables.AXES, runs("tables", "table"), read_tests)
    return tables.tables(grid), tables.findings(grid)


def _classes():
    grid = Grid.of(classification.AXES, runs("classification", "trained"), read_tests)
    alone = costs_grid(stored("classification")["numbers"]["costs"])
    return classification.class_tables(grid, alone), class_findings(grid, alone)


def _sequence():
    cases = {(*case, sequence.SPLIT): seeds for case, seeds in runs("sequence", "trained").items()}
    grid = Grid.of(transfer.AXES, cases, read_tests)
    return sequence.sequence_tables(grid), sequence.findings(grid)


def _ablation():
    paper, ours = paper_axes(quick=False), our_axes(quick=False)
    grid = ablation.collect([*paper, *ours], stored("ablation")["numbers"]["seeds"])
    return ablation.tables(paper, ours, grid), ablation.findings(paper, ours, grid)


def _bound():
    parts = {(data,): seeds for data, seeds in stored("bound")["numbers"]["seeds"].items()}
    grid = Grid.of(bound.AXES, parts, bound._read)
    findings = [*(bound._finding(grid, data) for data in bound.DATA), *bound._on_components(grid)]
    return [bound._pivot(data).table(grid) for data in bound.DATA], findings


def _toy():
    parts = [{"variants": seed} for seed in stored("toy")["numbers"]["seeds"]]
    grid = Grid.of(("variant",), {(): parts}, toy._read)
    return [*jump_words(grid, toy.NAMES, toy.MEAN, toy.LARGEST), toy._on_the_gap(grid)]


def _continuity():
    result = stored("continuity")
    seeds = [{**seed, "num_lines": result["provenance"]["lines"]} for seed in result["numbers"]["seeds"]]
    grid = Grid.of(("quantity", "variant"), {(): seeds}, continuity._read)
    return [continuity.TABLE.table(grid)], continuity._findings(grid, seeds)


def test_the_page_of_all_results_can_be_made(tmp_path):
    page = write_report(RESULTS, tmp_path / "report.html").read_text()
    for result in read_results(RESULTS).values():
        assert result.title.split("?")[0] in page
