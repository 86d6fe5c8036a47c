"""The committed results are whole, and what the README quotes is what they say."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from trustgp.data.quantities import parse_bytes
from trustgp_experiments.core.borders import jump_words
from trustgp_experiments.core.cases import read_tests
from trustgp_experiments.core.grid import Grid
from trustgp_experiments.report.page import read_results, write_report
from trustgp_experiments.studies.ablation import study as ablation
from trustgp_experiments.studies.ablation.axes import our_axes, paper_axes
from trustgp_experiments.studies.bound import study as bound
from trustgp_experiments.studies.classification import scores as classification
from trustgp_experiments.studies.continuity import study as continuity
from trustgp_experiments.studies.sequence import study as sequence
from trustgp_experiments.studies.toy import study as toy
from trustgp_experiments.studies.transfer import scores as transfer

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
if not RESULTS.is_dir():
    pytest.skip("results are in the repository, not in the sdist", allow_module_level=True)
TIMED = {
    "scale",
    "distributed",
    "distributed-cuda",
    "runtime",
    "runtime-cuda",
}  # of these, seeds repeat a measurement of time
ONCE = {"detection"}  # of detectors that were trained once
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
    } <= set(STUDIES)


def test_results_are_of_full_runs_with_three_seeds_and_say_where_they_come_from():
    wrong = []
    for study in STUDIES:
        result = stored(study)
        origin = result["provenance"]
        facts = {
            "a full run": origin["quick"] is False,
            "of a known command": origin["command"].startswith(f"trustgp study {result['study']} --seeds"),
            "enough seeds": len(origin["seeds"]) >= (1 if study in TIMED | ONCE else 3),
            "a commit": re.fullmatch(r"[0-9a-f]{40}", origin["commit"]),
            "figures": all((RESULTS / study / f["file"]).stat().st_size > 1000 for f in result["figures"]),
        }
        wrong += [f"{study}: not {fact}" for fact, holds in facts.items() if not holds]
    assert wrong == []


def test_tables_and_findings_of_stored_results_follow_from_their_numbers():
    """What the code of today makes of the stored numbers is what the page shows."""
    found = {
        "transfer": _transfer(),
        "classification": (classification.class_tables(_classes()), None),
        "sequence": _sequence(),
        "ablation": _ablation(),
        "bound": _bound(),
        "toy": (None, _toy()),
        "continuity": _continuity(),
    }
    wrong = []
    for study, (tables, findings) in found.items():
        result = stored(study)
        shown = {table["title"]: table for table in result["tables"]}
        for table in json.loads(json.dumps([asdict(table) for table in tables or ()])):
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
    return transfer.tables(grid), None


def _classes():
    return Grid.of(classification.AXES, runs("classification", "trained"), read_tests)


def _sequence():
    cases = {(*case, sequence.SPLIT): seeds for case, seeds in runs("sequence", "trained").items()}
    grid = Grid.of(transfer.AXES, cases, read_tests)
    return sequence.sequence_tables(grid), [claim.sentence for claim in sequence.claims(grid)]


def _ablation():
    paper, ours = paper_axes(quick=False), our_axes(quick=False)
    grid = ablation.collect([*paper, *ours], stored("ablation")["numbers"]["seeds"])
    sentences = [sentence for _, sentence in ablation.verdicts_of(paper, grid).values()]
    return ablation.tables(paper, ours, grid), [*sentences, *ablation.on_our_axes(ours, grid)]


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


def test_the_readme_quotes_the_transfer_study():
    table = json.loads((RESULTS / "transfer" / "result.json").read_text())["tables"][0]
    columns = [column["name"] for column in table["columns"]]
    values = {row[0]: dict(zip(columns, row, strict=True)) for row in table["rows"]}
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if "sarcos, random" in line)
    names = [cell.strip() for cell in lines[start].strip("|").split("|")][1:]
    quoted = 0
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        method, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for name, cell in zip(names, cells, strict=True):
            assert cell == f"{values[method][name][0]:.2f}"
            quoted += 1
    assert quoted >= 40


def test_the_pages_quote_the_benchmark_of_many_rows():
    page, readme = ((ROOT / name).read_text() for name in ("docs/large.md", "README.md"))
    wanted = []
    for name in ("scale-cuda-shared", "scale-cuda-separate", "scale-cpu"):
        result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        nll = result["nll"]
        wanted.append((page, f"{nll['trustgp']:.3f}, {nll['network + noise']:.3f} |"))
        wanted.append((page, f"| {result['fit_seconds']:.0f} s |"))
        if name == "scale-cuda-shared":
            wanted.append((readme, f"{result['fit_seconds']:.0f} seconds on one H200"))
    assert [text for where, text in wanted if text not in where] == []


def test_the_page_of_small_models_quotes_its_benchmark():
    result = json.loads((ROOT / "benchmarks" / "results" / "small.json").read_text())
    page, tests = (ROOT / "docs" / "small.md").read_text(), result["test"]
    assert result["quick"] is False
    for name, found in tests.items():
        own, corrected = found["own"], found.get("corrected", {"nll": None, "mse": None})
        cells = [f"{found['nbytes'] / 2**20:.1f}", f"{found['row over ensemble']:.2f}"]
        cells += ["" if one["nll"] is None else f"{one['nll']:.3f}" for one in (own, corrected)]
        cells += ["" if one["mse"] is None else f"{one['mse']:.5f}" for one in (own, corrected)]
        cells += [f"{own['auroc x 2']:.4f}", f"{own['auroc novelty']:.4f}" if "corrected" in found else ""]
        assert f"| {name} | {' | '.join(cells)} | {own['auroc']:.4f} |".replace("|  |", "| |") in page
    for row in result["frontier"]:
        figures = f"{row['nll']:.3f} | {row['corrected']:.3f} | {row['auroc']:.4f}"
        assert f"| {row['name']} | {figures} | {row['nbytes'] / 2**20:.1f} | " in page
    assert f"`{result['chosen']}`" in page
    assert tests["tuned"]["nbytes"] <= parse_bytes(result["budget"][-1], name="budget")


def test_the_readme_and_the_page_quote_the_detection_study():
    numbers = json.loads((RESULTS / "detection" / "result.json").read_text())["numbers"]
    told, right = (numbers["worlds"]["scenes"][key] for key in ("told", "right"))
    readme, page = ((ROOT / name).read_text() for name in ("README.md", "docs/detection.md"))
    for method in told:
        best = [max(s["auroc"] for s in told[method][t].values()) for t in ("novel things", "flight")]
        edges = right["scenes, flight"][method]["box_nll"]
        if method != "temperature scaling":
            assert f"| {method} | {best[0]:.3f} | {best[1]:.3f} | {edges:.2f} |" in readme
        for test in told[method].values():
            assert f"{test['entropy']['auroc']:.3f}" in page
    traced = numbers["times"]["trustgp, traced().predict"]
    assert f"`traced().predict` {traced['over']:.2f}" in page
    assert f"the traced model is {traced['under']:.1f} times faster" in page
    assert f"| {traced['over']:.2f} |" in readme


def test_the_readme_quotes_the_classification_study():
    result = json.loads((RESULTS / "classification" / "result.json").read_text())
    inside, outside, distorted = (
        _by_method(result, title)
        for title in (
            "Fashion-MNIST: test images like those that trained",
            "Trained on Fashion-MNIST: is MNIST told from it?",
            "NLL on distorted Fashion-MNIST",
        )
    )
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| Fashion-MNIST"))
    methods = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        method, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        scores = [v[0] for name, v in outside[method].items() if name.startswith("AUROC") and v is not None]
        near = inside[method]
        expected = (near["NLL"][0], near["ECE"][0], distorted[method]["rotated 30"][0], max(scores))
        assert cells == [f"{v:.{digits}f}" for v, digits in zip(expected, (3, 2, 2, 3), strict=True)]
        methods.append(method)
    assert methods == list(inside)


def _by_method(result: dict, title: str) -> dict[str, dict]:
    table = next(table for table in result["tables"] if table["title"] == title)
    columns = [column["name"] for column in table["columns"]]
    return {row[0]: dict(zip(columns, row, strict=True)) for row in table["rows"]}
