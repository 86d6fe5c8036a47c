"""What today's code makes of the stored numbers of time, memory and detection is what the page shows."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from trustgp_experiments.studies.detection import tables as detection
from trustgp_experiments.studies.distributed import study as distributed
from trustgp_experiments.studies.runtime import study as runtime
from trustgp_experiments.studies.scale.study import scale_findings, scale_grid, scale_tables

RESULTS = Path(__file__).resolve().parents[1] / "results"


def of_scale(numbers, device):
    grid = scale_grid(numbers["seeds"])
    return scale_tables(grid), scale_findings(grid, device)


def of_distributed(numbers, device):
    grid = distributed.times_grid(numbers["seeds"])
    return [distributed.TABLE.table(grid)], distributed.findings(grid, numbers["seeds"])


def of_detection(numbers, device):
    return detection.tables(**numbers), detection.findings(**numbers)


def of_runtime(numbers, device):
    entries, qualities = runtime.merged_networks(numbers["networks"])
    return runtime.tables(entries, qualities, device), runtime.findings(
        entries, qualities, numbers["skipped"]
    )


@pytest.mark.parametrize(
    ("name", "make", "device"),
    [
        ("scale", of_scale, "cuda"),
        ("distributed", of_distributed, "cpu"),
        ("distributed-cuda", of_distributed, "cuda"),
        ("detection", of_detection, "cpu"),
        ("runtime", of_runtime, "cpu"),
        ("runtime-cuda", of_runtime, "cuda"),
    ],
)
def test_stored_tables_and_findings_follow_from_the_stored_numbers(name, make, device):
    stored = json.loads((RESULTS / name / "result.json").read_text())
    tables, findings = make(stored["numbers"], device)
    assert json.loads(json.dumps([asdict(table) for table in tables])) == stored["tables"]
    assert findings == stored["findings"]
