"""The committed results are whole and follow from their numbers; `test_quotes.py` compares pages."""

import importlib
import json
import re
from pathlib import Path

import pytest

from trustgp_experiments.core.registry import STUDIES
from trustgp_experiments.core.storage import NUMBERS, read_numbers
from trustgp_experiments.report.page import read_results, write_report

RESULTS = Path(__file__).resolve().parents[1] / "results"
TIMED = {"scale", "distributed", "runtime"}  # of these, seeds repeat a measurement of time
LIMIT = 200_000  # bytes of a study, figures apart
STORED = sorted(path.parent.name for path in RESULTS.glob("*/result.json"))


def stored(name: str) -> dict:
    return json.loads((RESULTS / name / "result.json").read_text())


def test_results_are_of_full_runs_with_three_seeds_and_have_their_origin():
    assert set(STUDIES) <= set(STORED)
    wrong = []
    for name in STORED:
        result = stored(name)
        origin = result["provenance"]
        facts = {
            "a full run": origin["quick"] is False,
            "of a known command": origin["command"].startswith(f"trustgp study {result['study']} --seeds"),
            "enough seeds": len(origin["seeds"]) >= (1 if result["study"] in TIMED else 3),
            "a commit": re.fullmatch(r"[0-9a-f]{40}", origin["commit"]),
            "figures": all((RESULTS / name / f["file"]).stat().st_size > 1000 for f in result["figures"]),
        }
        wrong += [f"{name}: not {fact}" for fact, holds in facts.items() if not holds]
    assert wrong == []


@pytest.mark.parametrize("name", STORED)
def test_a_summary_is_small_and_its_findings_are_what_the_code_makes_of_its_numbers(name):
    result = stored(name)
    assert sum((RESULTS / name / file).stat().st_size for file in ("result.json", NUMBERS)) <= LIMIT
    study = importlib.import_module(f"trustgp_experiments.studies.{result['study']}.study")
    tables, findings = study.summarise(read_numbers(RESULTS / name))
    assert all(table.rows for table in tables)
    assert findings == result["findings"]


def test_the_page_of_all_results_can_be_made(tmp_path):
    page = write_report(RESULTS, tmp_path / "report.html").read_text()
    for result in read_results(RESULTS).values():
        assert result.title.split("?")[0] in page
