"""The wheel contains the library and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_BYTES = 600_000


@pytest.mark.nightly
def test_a_wheel_contains_only_the_library_and_is_small(tmp_path):
    """Builds one, as a release does: 20 seconds."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("hatchling is not installed, and cannot be downloaded")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size <= MAX_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        assert b"trustgp-experiments" not in archive.read(metadata)
    packages = {name.split("/")[0] for name in names}
    assert {name for name in packages if not name.endswith(".dist-info")} == {"trustgp"}
    files = {Path(name).suffix for name in names if name.startswith("trustgp/")}
    assert files == {".py", ".pyi", ".typed"}
