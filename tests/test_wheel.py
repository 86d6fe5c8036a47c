"""The wheel contains the library and nothing else."""

import re
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_BYTES = 600_000


@pytest.mark.nightly
@pytest.mark.parametrize("repository", ["", "https://example.org/trustgp"])
def test_a_wheel_contains_only_the_library_and_its_metadata_is_complete(tmp_path, monkeypatch, repository):
    """Builds one, as a release does: 20 seconds."""
    monkeypatch.setenv("TRUSTGP_REPOSITORY", repository)
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
        text = archive.read(metadata).decode()
    assert "trustgp-experiments" not in text
    check_metadata(message_from_string(text), repository)
    packages = {name.split("/")[0] for name in names}
    assert {name for name in packages if not name.endswith(".dist-info")} == {"trustgp"}
    files = {Path(name).suffix for name in names if name.startswith("trustgp/")}
    assert files == {".py", ".pyi", ".typed"}
    assert "trustgp/py.typed" in names


def check_metadata(metadata: Message, repository: str) -> None:
    """What a package index shows: authors, versions of Python, addresses, and links that lead somewhere."""
    assert metadata["Metadata-Version"] == "2.4"
    assert metadata["Author"] == "The trustgp authors"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert metadata["Description-Content-Type"] == "text/markdown"
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    names = {"Source", "Issues", "Documentation", "Changelog", "Security"}
    assert addresses.keys() == (names if repository else set())
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\((\S+?)\)", page)
    links = re.findall(r"\]\((\S+?)\)", str(metadata.get_payload()))
    assert len(links) == (len(targets) if repository else sum("://" in target for target in targets))
    for link in [*links, *addresses.values()]:
        assert link.startswith("https://"), link
        local = re.sub(f"^{re.escape(repository)}/(blob|raw)/v{metadata['Version']}/", "", link)
        assert "://" in local or (ROOT / local.split("#")[0]).exists(), link
