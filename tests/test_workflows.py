"""The workflows: pinned actions, minimal permissions, versions as in pyproject.toml."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # which pytest brings
yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install pyyaml")

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github" / "workflows"
if not FOLDER.is_dir():
    pytest.skip("the workflows are in the repository, not in the source archive", allow_module_level=True)
FILES = {file.name: file for file in sorted(FOLDER.glob("*.yml"))}
FLOWS = {name: yaml.safe_load(file.read_text(encoding="utf-8")) for name, file in FILES.items()}
JOBS = [(name, key, job) for name, flow in FLOWS.items() for key, job in flow["jobs"].items()]
PINNED = re.compile(r"\s*(?:- )?uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*\n?")
# Jobs with permission to write; all others may read the code only.
WRITERS = {
    ("docs.yml", "deploy"): {"pages": "write", "id-token": "write"},
    ("release.yml", "publish"): {"id-token": "write", "attestations": "write"},
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_action_of_the_three_workflows_has_one_pin_with_its_version():
    assert set(FILES) == {"docs.yml", "release.yml", "tests.yml"}
    for name, file in FILES.items():
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if "uses:" in line]
        assert lines, name
        assert [line for line in lines if not PINNED.fullmatch(line)] == [], name
    pins = {step["uses"] for *_, job in JOBS for step in job["steps"] if "uses" in step}
    actions = [pin.split("@")[0] for pin in pins]
    assert sorted(set(actions)) == sorted(actions)


def test_jobs_have_minimal_permissions():
    for flow in FLOWS.values():
        assert flow["permissions"] == {}
    for name, key, job in JOBS:
        assert job["permissions"] == WRITERS.get((name, key), {"contents": "read"}), (name, key)
    for name, key in WRITERS:  # jobs that publish build nothing and run no command
        steps = FLOWS[name]["jobs"][key]["steps"]
        assert all("run" not in step for step in steps)
        assert not any(step["uses"].startswith("actions/checkout@") for step in steps)


def test_no_workflow_gives_permissions_to_code_of_strangers():
    for name, flow in FLOWS.items():
        events = flow[True]  # YAML reads `on` as a truth value
        assert set(events) <= {"push", "pull_request", "release"}, name
        assert "secrets." not in FILES[name].read_text(encoding="utf-8")
    for name, key, job in JOBS:
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, (name, key)
            assert "${{" not in step.get("run", ""), (name, key)  # values come from the environment


def test_the_matrix_is_what_the_project_supports():
    matrix = FLOWS["tests.yml"]["jobs"]["test"]["strategy"]["matrix"]
    assert {system.split("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}
    (tested,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert matrix["torch"] == [tested]
    oldest = FLOWS["tests.yml"]["jobs"]["oldest"]["steps"]
    (least,) = [step["with"]["python-version"] for step in oldest if "setup-python" in step.get("uses", "")]
    assert PROJECT["requires-python"] == f">={least}"
    assert [step["run"] for step in oldest if "run" in step] == ["make test-oldest"]
    supported = [one.split(" :: ")[-1] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert supported == [least, *matrix["python"]]
    minors = [int(version.split(".")[1]) for version in supported]
    assert minors == list(range(minors[0], 13 + 1))


def test_the_oldest_versions_that_are_tested_are_the_bounds_of_the_project():
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = PROJECT["optional-dependencies"]
    bounds = dict(one.split(">=") for one in [*PROJECT["dependencies"], *extras["plots"], *extras["export"]])
    assert tested.keys() == bounds.keys()
    assert {name: f"{bound}.0"[: len(tested[name])] for name, bound in bounds.items()} == tested
