"""The committed results are whole, and what the README quotes is what they say."""

import json
import re
from pathlib import Path

import pytest

from trustgp.studies.report import read_results, write_report

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
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


@pytest.mark.parametrize("study", STUDIES)
def test_results_are_of_full_runs_with_three_seeds_and_say_where_they_come_from(study):
    result = json.loads((RESULTS / study / "result.json").read_text())
    origin = result["provenance"]
    assert origin["quick"] is False
    assert len(origin["seeds"]) >= (1 if study in TIMED | ONCE else 3)
    assert re.fullmatch(r"[0-9a-f]{40}", origin["commit"])
    for figure in result["figures"]:
        assert (RESULTS / study / figure["file"]).stat().st_size > 1000


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


@pytest.mark.parametrize("name", ["scale-cuda-shared", "scale-cuda-separate", "scale-cpu"])
def test_the_pages_quote_the_benchmark_of_many_rows(name):
    result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    page = (ROOT / "docs" / "large.md").read_text()
    nll = result["nll"]
    assert f"{nll['trustgp']:.3f}, {nll['network + noise']:.3f} |" in page
    assert f"| {result['fit_seconds']:.0f} s |" in page
    if name == "scale-cuda-shared":
        assert f"{result['fit_seconds']:.0f} seconds on one H200" in (ROOT / "README.md").read_text()


def test_the_page_of_small_models_quotes_its_benchmark_and_they_beat_the_ensemble():
    result = json.loads((ROOT / "benchmarks" / "results" / "small.json").read_text())
    page, tests = (ROOT / "docs" / "small.md").read_text(), result["test"]
    assert result["quick"] is False
    for name, found in tests.items():
        own, corrected = found["own"], found.get("corrected", {"nll": None, "mse": None})
        cells = [f"{found['nbytes'] / 2**20:.1f}"]
        cells += ["" if one["nll"] is None else f"{one['nll']:.3f}" for one in (own, corrected)]
        cells += ["" if one["mse"] is None else f"{one['mse']:.5f}" for one in (own, corrected)]
        assert f"| {name} | {' | '.join(cells)} | {own['auroc']:.4f} |".replace("|  |", "| |") in page
    for row in result["frontier"]:
        figures = (
            f"{row['nll']:.3f} | {row['corrected']:.3f} | {row['auroc']:.4f} | {100 * row['moved']:.1f} %"
        )
        assert f"| {row['name']} | {figures} | {row['nbytes'] / 2**20:.1f} | " in page
    assert f"`{result['chosen']}`" in page
    assert tests["tuned"]["nbytes"] <= 64 * 2**20
    assert tests["tuned"]["corrected"]["nll"] < tests["ensemble of 5"]["own"]["nll"]


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
    own = told["trustgp"]["novel things"]["latent variance"]["auroc"]
    others = [s["auroc"] for m, t in told.items() if m != "trustgp" for s in t["novel things"].values()]
    assert own >= 0.9
    assert own > max(others)


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
