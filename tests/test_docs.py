"""Every example in the documents runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (ROOT / "docs", ROOT / "experiments" / "docs")
PAGES = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted(folder.glob("*.md")))]
RUN = [page for page in PAGES if page.name != "compile.md"]  # tests/export/test_compiled.py runs that one


def python_blocks(page: Path) -> str:
    """The page's Python examples, in order."""
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = python_blocks(page)
    names: dict = {"__name__": "example"}
    try:
        exec(compile(code, str(page), "exec"), names)
    except ImportError as error:
        if error.name not in ("transformers", "pandas", "polars", "mcap") and "pip install" not in str(error):
            raise
        pytest.skip(f"the page needs an optional package: {error}")
    assert not code or "model" in names


def test_the_example_of_the_readme_prints_what_the_readme_shows(capsys):
    page = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"\n```\n(Prediction .*?)```", page, flags=re.DOTALL)
    exec(compile(python_blocks(ROOT / "README.md"), "README.md", "exec"), {"__name__": "example"})
    printed, shown = capsys.readouterr().out.split(), shown.split()
    assert len(printed) == len(shown)
    for one, other in zip(printed, shown, strict=True):
        if one != other:  # processors round differently
            assert float(one.strip(",")) == pytest.approx(float(other.strip(",")), rel=0.2, abs=0.05)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_local_link_and_picture_exists(page):
    links = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing
