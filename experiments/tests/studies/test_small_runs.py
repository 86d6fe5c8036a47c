"""Facts that hold of every study: one small run of each, see conftest.py."""

import importlib
import json

import pytest
from studies.conftest import patch_study

from trustgp_experiments.core.registry import STUDIES, run_study
from trustgp_experiments.core.result import read_result
from trustgp_experiments.report.page import write_report

# rows so few that an error bar may be no better than one constant noise, which `fit` then reports
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
NIGHTLY = ("detection",)  # renders pictures and runs three detectors: more than a minute
NAMES = [pytest.param(n, marks=pytest.mark.nightly) if n in NIGHTLY else n for n in STUDIES]


def part_times(folder):
    return {file.name: file.stat().st_mtime_ns for file in (folder / "parts").glob("*.json")}


@pytest.mark.parametrize("name", NAMES)
def test_a_small_run_is_whole_resumes_and_its_tables_follow_from_its_numbers(name, small_run, tmp_path):
    """Would catch a study that cannot run, or whose numbers its tables and findings do not follow from."""
    out, result = small_run(name)
    folder = out / name
    stored = read_result(folder / "result.json")
    assert all((folder / figure.file).stat().st_size > 2000 for figure in stored.figures)
    assert stored.provenance["quick"] is True
    assert stored.findings
    module = importlib.import_module(f"trustgp_experiments.studies.{name}.study")
    tables, findings = module.summarise(stored.numbers)
    assert json.loads(json.dumps([table.rows for table in tables])) == [table.rows for table in stored.tables]
    assert findings == stored.findings
    before = part_times(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch_study(name, patch)
        again = run_study(name, out, quick=True, seeds=len(stored.provenance["seeds"]))
    assert part_times(folder) == before  # read, not computed again
    assert json.loads(json.dumps(again.numbers)) == stored.numbers
    assert result.title in write_report(out, tmp_path / "report.html").read_text()


@pytest.mark.parametrize("name", ["sequence", "toy"])
def test_a_lost_part_is_computed_again_with_the_same_numbers(name, small_run):
    """Would catch randomness that does not come from the seed."""
    out, result = small_run(name)
    parts = sorted((out / name / "parts").glob("*-0-*.json"))
    parts[-1].unlink()
    kept = part_times(out / name)
    with pytest.MonkeyPatch.context() as patch:
        patch_study(name, patch)
        again = run_study(name, out, quick=True, seeds=len(result.provenance["seeds"]))
    assert kept.items() <= part_times(out / name).items()
    assert without_times(again.numbers) == without_times(result.numbers)


def without_times(value):
    """The numbers that a rerun must give again."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if not key.endswith("_seconds")}
    return [without_times(inner) for inner in value] if isinstance(value, list | tuple) else value
