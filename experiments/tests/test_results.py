"""The committed results are complete, and their tables and findings follow from their numbers."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

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
from trustgp_experiments.studies.detection import tables as detection
from trustgp_experiments.studies.distributed import study as distributed
from trustgp_experiments.studies.runtime import study as runtime
from trustgp_experiments.studies.scale.study import scale_findings, scale_grid, scale_tables
from trustgp_experiments.studies.sequence import study as sequence
from trustgp_experiments.studies.tables import study as tables
from trustgp_experiments.studies.toy import study as toy
from trustgp_experiments.studies.transfer import scores as transfer

RESULTS = Path(__file__).resolve().parents[1] / "results"
STUDIES = sorted(path.parent.name for path in RESULTS.glob("*/result.json"))
TIMED = {"scale", "distributed", "distributed-cuda", "runtime", "runtime-cuda"}  # seeds repeat a measurement


def stored(study: str) -> dict:
    return json.loads((RESULTS / study / "result.json").read_text())


def test_results_are_of_full_runs_and_name_their_origin():
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


def runs(numbers: dict, *axes: str) -> dict:
    """By case, the parts of all seeds."""
    return {tuple(run[axis] for axis in axes): run["seeds"] for run in numbers["runs"]}


def of_transfer(numbers, origin):
    grid = Grid.of(transfer.AXES, runs(numbers, "trained", "split"), read_tests)
    return transfer.tables(grid), transfer.findings(grid)


def of_tables(numbers, origin):
    grid = Grid.of(tables.AXES, runs(numbers, "table"), read_tests)
    return tables.tables(grid), tables.findings(grid)


def of_classification(numbers, origin):
    grid = Grid.of(classification.AXES, runs(numbers, "trained"), read_tests)
    costs = costs_grid(numbers["costs"])
    return classification.class_tables(grid, costs), class_findings(grid, costs)


def of_sequence(numbers, origin):
    cases = {(*case, sequence.SPLIT): seeds for case, seeds in runs(numbers, "trained").items()}
    grid = Grid.of(transfer.AXES, cases, read_tests)
    return sequence.sequence_tables(grid), sequence.findings(grid)


def of_ablation(numbers, origin):
    paper, ours = paper_axes(quick=False), our_axes(quick=False)
    grid = ablation.collect([*paper, *ours], numbers["seeds"])
    return ablation.tables(paper, ours, grid), ablation.findings(paper, ours, grid)


def of_bound(numbers, origin):
    grid = Grid.of(bound.AXES, {(data,): seeds for data, seeds in numbers["seeds"].items()}, bound._read)
    findings = [*(bound._finding(grid, data) for data in bound.DATA), *bound._on_components(grid)]
    return [bound._pivot(data).table(grid) for data in bound.DATA], findings


def of_toy(numbers, origin):
    grid = Grid.of(("variant",), {(): [{"variants": seed} for seed in numbers["seeds"]]}, toy._read)
    return [], [*jump_words(grid, toy.NAMES, toy.MEAN, toy.LARGEST), toy._on_the_gap(grid)]


def of_continuity(numbers, origin):
    seeds = [{**seed, "num_lines": origin["lines"]} for seed in numbers["seeds"]]
    grid = Grid.of(("quantity", "variant"), {(): seeds}, continuity._read)
    return [continuity.TABLE.table(grid)], continuity._findings(grid, seeds)


def of_scale(numbers, origin):
    grid = scale_grid(numbers["seeds"])
    return scale_tables(grid), scale_findings(grid, "cuda")


def of_distributed(numbers, origin):
    grid = distributed.times_grid(numbers["seeds"])
    return [distributed.TABLE.table(grid)], distributed.findings(grid, numbers["seeds"])


def of_detection(numbers, origin):
    return detection.tables(**numbers), detection.findings(**numbers)


def of_runtime(numbers, origin):
    entries, qualities = runtime.merged_networks(numbers["networks"])
    device = "cpu" if origin["device"] == "CPU" else "cuda"
    findings = runtime.findings(entries, qualities, numbers["skipped"])
    return runtime.tables(entries, qualities, device), findings


@pytest.mark.parametrize("study", STUDIES)
def test_stored_tables_and_findings_follow_from_the_stored_numbers(study):
    result = stored(study)
    make = globals()[f"of_{study.removesuffix('-cuda')}"]
    made, findings = make(result["numbers"], result["provenance"])
    made = json.loads(json.dumps([asdict(table) for table in made]))
    assert [table for table in result["tables"] if table["title"] in {one["title"] for one in made}] == made
    assert findings == result["findings"]


def test_the_page_of_all_results_can_be_made(tmp_path):
    page = write_report(RESULTS, tmp_path / "report.html").read_text()
    for result in read_results(RESULTS).values():
        assert result.title.split("?")[0] in page
