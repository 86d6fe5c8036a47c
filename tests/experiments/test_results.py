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


def half(found, digits=3):
    """A figure with half of its interval."""
    return f"{found['mean']:.{digits}f} ± {(found['high'] - found['low']) / 2:.{digits}f}"


def test_the_readme_quotes_the_detection_study():
    numbers = json.loads((RESULTS / "detection" / "result.json").read_text())["numbers"]
    scenes, times, readme = numbers["worlds"]["scenes"], numbers["times"], (ROOT / "README.md").read_text()
    silent = ("temperature scaling", "energy")
    for method in (m for m in scenes["told"] if m not in silent and "what was seen" not in m):
        novel, flight = (
            max(scenes["told"][method][test].values(), key=lambda one: one["auroc"]["mean"])
            for test in ("novel things", "flight")
        )
        edges = scenes["right"]["scenes, flight"][method]["box_nll"]["mean"]
        over = f"{times[method]['over']:.2f}" if method in times else "1" if method == "softmax" else ""
        cells = (
            f"{half(novel['auroc'])} | {100 * novel['caught 0.05']['mean']:.0f} % | {half(flight['auroc'])}"
        )
        assert f"| {method} | {cells} | {edges:.2f} | {over} |" in readme
    near = {
        m: scenes["right"]["scenes, familiar"][m]["box_nll"]["mean"] for m in ("ensemble of 3", "trustgp")
    }
    assert f"({near['ensemble of 3']:.2f} against {near['trustgp']:.2f})" in readme
    assert f"`predict` is {times['trustgp']['under']:.1f} times faster than MC-dropout" in readme


def test_the_page_quotes_the_detection_study():
    numbers = json.loads((RESULTS / "detection" / "result.json").read_text())["numbers"]
    scenes, cells = (numbers["worlds"][name] for name in ("scenes", "cells"))
    page = (ROOT / "docs/detection.md").read_text()
    for method, tests in scenes["told"].items():
        for score, one in tests["novel things"].items():
            shares = [100 * one[key]["mean"] for key in ("caught 0.01", "caught 0.05", "confident")]
            other = cells["told"].get(method, {}).get("raccoons")
            last = "" if other is None else f"{other[score]['auroc']['mean']:.3f}"
            middle = " | ".join(f"{share:.0f} %" for share in shares)
            row = f"{half(one['auroc'])} | {middle} | {half(tests['flight'][score]['auroc'])} | {last} |"
            assert f"| {method} | {score} | {row}" in page
    near, far = (scenes["right"][f"scenes, {name}"] for name in ("familiar", "flight"))
    for method, one in near.items():
        two, pair = far[method], lambda key, f, two, one=one: f"{f(one[key])} | {f(two[key])}"
        row = [
            pair("box_nll", lambda x: f"{x['mean']:.3f}", two),
            pair("within 0.95", lambda x: f"{100 * x['mean']:.1f} %", two),
            f"{100 * two['all four']['mean']:.0f} %",
            pair("class_nll", lambda x: f"{x['mean']:.3f}", two),
            pair("dece", lambda x: f"{100 * x['mean']:.1f} %", two),
        ]
        assert f"| {method} | {' | '.join(row)} |" in page
    own, asked = numbers["times"]["trustgp"], scenes["told"]["trustgp"]["novel things"]["latent variance"]
    assert f"`predict` {own['over']:.2f} times" in page
    assert f"`predict` is {own['under']:.1f} times faster than MC-dropout" in page
    wide = asked["auroc"]
    assert f"missed: {wide['mean']:.3f} ({wide['low']:.3f} to {wide['high']:.3f})" in page


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
