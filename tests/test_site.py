"""The site is built strictly and is readable; its gallery runs examples, caches them, and names failures."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trustgp

pytest.importorskip("material", reason='mkdocs-material is not installed: pip install "trustgp[docs]"')
ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "docs" / "gallery").glob("*.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site without the results of the gallery's examples, which `make docs` runs."""
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"TRUSTGP_GALLERY": "none", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_public_name_is_in_the_reference_and_no_private_one(site):
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").rglob("*.html"))
    named = set(re.findall(r'<h\d id="(trustgp\.[\w.]+)"', pages))
    assert {f"trustgp.{name}" for name in trustgp.__all__} <= named
    assert [name for name in named if "._" in name] == []


def test_formulas_and_pages_need_no_other_site_and_every_picture_exists(site):
    scores = (site / "api" / "scores" / "index.html").read_text(encoding="utf-8")
    assert scores.count("<math") >= 6
    assert "math::" not in scores
    texts = {page: page.read_text(encoding="utf-8") for page in site.rglob("index.html")}
    loaded = [one for text in texts.values() for one in re.findall(r"<(?:script|img|link)\b[^>]*>", text)]
    assert [one for one in loaded if re.search(r'(?:src|stylesheet"[^>]* href)="https?:', one)] == []
    named = {page: re.findall(r'<img [^>]*src="([^":]+)"', text) for page, text in texts.items()}
    pictures = [page.parent / name for page, names in named.items() for name in names]
    assert pictures
    assert [str(picture) for picture in pictures if not picture.exists()] == []


@pytest.fixture(scope="module")
def gallery():
    """The hook as a module."""
    spec = importlib.util.spec_from_file_location("gallery_hook", ROOT / "docs" / "hooks" / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_examples_of_the_gallery_are_short_state_their_limits_and_are_in_the_navigation(gallery):
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in EXAMPLES:
        example = gallery.parse(path)
        assert "**When not to" in example.cells[-1]["text"], path.name
        lines = [line for cell in example.cells for line in cell["code"].splitlines() if line.strip()]
        assert len(lines) < 40, path.name
        assert f"gallery/{path.stem}.md" in navigation


SCRIPT = '''"""A title.

Text.
"""

# %%
# Prose, **with** a mark.
# Its second line.

from trustgp.plots import figure  # code

print("printed", __name__)
with figure("one_line.png", width=1, height=1) as page:
    page.subplots()

# %%
raise_it = {fails}
if raise_it:
    raise KeyError("on purpose")
'''


def test_an_example_becomes_a_page_and_is_not_run_again_until_it_changes(gallery, tmp_path, monkeypatch):
    path, cache = tmp_path / "good.py", tmp_path / "cache"
    path.write_text(SCRIPT.format(fails=False))
    first = gallery.run(path, cache=cache)
    page = gallery.page(first)
    prose = "Prose, **with** a mark.\nIts second line."
    assert page.startswith(f"# A title\n\nText.\n\n{prose}\n\n```python\nfrom")
    assert "printed __main__\n" in page
    assert "![one line](good-1.png)" in page
    assert (first.folder / "good-1.png").read_bytes().startswith(b"\x89PNG")
    assert gallery.cards([first]).count("good.md") == 1
    monkeypatch.setattr(gallery, "run_in", lambda *_: "was run")
    assert gallery.run(path, cache=cache) == first
    path.write_text(path.read_text(encoding="utf-8") + "\n# changed\n")
    assert gallery.run(path, cache=cache).error == "was run"


def test_an_example_that_fails_or_does_not_end_is_named(gallery, tmp_path, monkeypatch, caplog):
    (tmp_path / "bad.py").write_text(SCRIPT.format(fails=True))
    monkeypatch.setattr(gallery, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("TRUSTGP_GALLERY", "bad")
    result = gallery.all_examples(tmp_path)
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "gallery/bad.py failed" in record.getMessage()
    assert "line 19" in gallery.page(result["bad"])
    assert list((tmp_path / "cache").iterdir()) == []  # a partial result is not cached
    (tmp_path / "long.py").write_text('"""Long."""\n\n# %%\nimport threading\n\nthreading.Event().wait()\n')
    result = gallery.run(tmp_path / "long.py", cache=tmp_path / "cache", longest=0.5)
    assert result.error == "not over after 0.5 seconds"
    with pytest.raises(ValueError, match=r"no example is called \['bad'\]; there are \['cpp', 'text'\]"):
        gallery.chosen(["cpp", "text"])
