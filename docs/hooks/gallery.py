"""Turns each docs/gallery/*.py into a page: its text, its code, what it prints and the pictures it writes.

An example is a plain script. Its docstring begins with the title; a line `# %%` begins a cell, whose text is
the comment that follows at once. Each runs in a process and a folder of its own. What came out is kept in
.cache/gallery, under a hash of the example and of the library's source, so that a second build is quick.

    TRUSTGP_GALLERY=none             pages without output: for who writes text, and for the tests
    TRUSTGP_GALLERY=regression,text  only these run

An example that fails is a warning with its name, which ends a strict build; its page shows the traceback.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
FOLDER, CACHE = ROOT / "docs" / "gallery", ROOT / ".cache" / "gallery"
SOURCES = (ROOT / "src", ROOT / "experiments" / "src")
RUNNER = Path(__file__).with_name("run_example.py")
LONGEST = 1200  # seconds for one example on a busy machine; most take ten
log = logging.getLogger("mkdocs.hooks.gallery")


@dataclass(frozen=True)
class Example:
    """A script, cut into cells; after a run each has its output and its pictures."""

    name: str
    title: str
    text: str  # what follows the title in the docstring
    cells: list[dict]  # text, line, code; output, pictures
    folder: Path | None = None  # of the pictures; None: it was not run
    error: str | None = None

    @property
    def pictures(self) -> list[dict[str, str]]:
        """All of them, in order."""
        return [picture for cell in self.cells for picture in cell.get("pictures", [])]


def parse(path: Path) -> Example:
    """Title, text and cells of a script."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docstring = ast.get_docstring(tree)
    if not docstring:
        raise ValueError(f"{path.name} has no docstring: its first line is the title of the page.")
    title, _, text = docstring.partition("\n")
    lines = source.splitlines()
    first = tree.body[0].end_lineno or 0
    starts = [first, *(place for place, line in enumerate(lines) if line.startswith("# %%")), len(lines)]
    cells = [cell(lines, start, stop) for start, stop in pairwise(starts)]
    cells = [one for one in cells if one["text"] or one["code"]]
    return Example(path.stem, title.rstrip("."), text.strip(), cells)


def cell(lines: list[str], start: int, stop: int) -> dict:
    """The comment at its head, without the signs, and the code below."""
    inner = lines[start:stop]
    marked = bool(inner) and inner[0].startswith("# %%")
    count = len(list(takewhile(lambda line: line.startswith("#"), inner))) if marked else 0
    prose = [line.removeprefix("#").removeprefix(" ") for line in inner[1:count]]
    blank = len(list(takewhile(lambda line: not line.strip(), inner[count:])))
    code = "\n".join(inner[count + blank :]).rstrip()
    return {"text": "\n".join(prose).strip(), "line": start + count + blank + 1, "code": code}


def key(path: Path) -> str:
    """A hash of all that the result depends on: the example, the library, what runs it, torch."""
    sources = [path, RUNNER, *sorted(file for root in SOURCES for file in root.rglob("*.py"))]
    found = hashlib.sha256(importlib.metadata.version("torch").encode())
    for source in sources:
        found.update(f"\0{source.name}\0".encode() + source.read_bytes())
    return found.hexdigest()[:16]


def run(path: Path, *, cache: Path | None = None, longest: float = LONGEST) -> Example:
    """The example with its output and pictures; from the cache, where that is of the same files."""
    example = parse(path)
    cache = cache or CACHE
    kept = cache / f"{path.stem}-{key(path)}"
    if not kept.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{path.stem}-", suffix=".part", dir=cache))
        try:
            error = run_in(made, path, example.cells, longest)
            if error is not None:
                return replace(example, error=error)
            for old in cache.glob(f"{path.stem}-{16 * '?'}"):
                shutil.rmtree(old)
            made.rename(kept)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    cells = json.loads((kept / "result.json").read_text())["cells"]
    return replace(example, cells=cells, folder=kept)


def run_in(made: Path, path: Path, cells: list[dict], longest: float) -> str | None:
    """Runs the cells in a process, and leaves result.json and pictures in the folder. The error, or None."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, SOURCES), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as place:
        try:
            done = subprocess.run(
                [sys.executable, str(RUNNER), str(path)], cwd=place, env=environment, input=json.dumps(cells),
                capture_output=True, text=True, timeout=longest,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"not over after {longest:g} seconds"
        result = Path(place) / "result.json"
        if not result.exists():
            return f"ended with status {done.returncode}:\n{done.stderr[-2000:]}"
        if error := json.loads(result.read_text())["error"]:
            return error
        for file in [result, *Path(place).glob(f"{path.stem}-*.png")]:
            shutil.copy(file, made)
    return None


def chosen(names: list[str]) -> list[str]:
    """Those that TRUSTGP_GALLERY asks for: all of them, none, or names."""
    wanted = os.environ.get("TRUSTGP_GALLERY", "all")
    if wanted in ("all", "none"):
        return names if wanted == "all" else []
    if unknown := set(wanted.split(",")) - set(names):
        raise ValueError(
            f"TRUSTGP_GALLERY={wanted}: no example is called {sorted(unknown)}; there are {names}."
        )
    return wanted.split(",")


def all_examples(folder: Path = FOLDER) -> dict[str, Example]:
    """Every example, run where it is asked for, a few at a time."""
    paths = {path.stem: path for path in sorted(folder.glob("*.py"))}
    wanted, done = chosen(list(paths)), []

    def one(name: str) -> Example:
        if name not in wanted:
            return parse(paths[name])
        example = run(paths[name])
        done.append(name)
        log.info("gallery: %s, %d of %d", name, len(done), len(wanted))
        if example.error:
            log.warning("gallery/%s.py failed: %s", name, example.error)
        return example

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return dict(zip(paths, pool.map(one, paths), strict=True))


def page(example: Example) -> str:
    """The example as markdown."""
    parts = [f"# {example.title}", example.text]
    if example.folder is None:
        parts.append("*Not run in this build: output and pictures are missing.*")
    for one in example.cells:
        parts.append(one["text"])
        if one["code"]:
            parts.append(f"```python\n{one['code']}\n```")
        if output := one.get("output", "").strip():
            parts.append(f"```{{ .text .output }}\n{output}\n```")
        for picture in one.get("pictures", []):
            parts.append(f"![{picture['alt'] or example.title}]({picture['file']})")
    if example.error:
        parts.append(f"```{{ .text .output }}\n{example.error}\n```")
    parts.append(f"---\n\nThe whole script: [{example.name}.py]({example.name}.py){{ download }}")
    return "\n\n".join(part for part in parts if part) + "\n"


def cards(examples: list[Example]) -> str:
    """A card for each: a picture, the title, the first paragraph."""
    lines = ['<div class="grid cards gallery" markdown>', ""]
    for example in examples:
        picture = "".join(f"![]({one['file']})" for one in example.pictures[:1])
        first = " ".join(example.text.split("\n\n")[0].split())
        parts = [picture, f"**[{example.title}]({example.name}.md)**", first]
        lines += ["-   " + "\n\n    ".join(part for part in parts if part), ""]
    return "\n".join([*lines, "</div>"])


found: dict[str, Example] = {}


def on_files(files, *, config):
    """Adds the pages of the examples and their pictures."""
    found.clear()
    found.update(all_examples())
    for name, example in found.items():
        files.append(File.generated(config, f"gallery/{name}.md", content=page(example)))
        for picture in example.pictures:
            source = str(example.folder / picture["file"])
            files.append(File.generated(config, f"gallery/{picture['file']}", abs_src_path=source))
    return files


def on_page_markdown(markdown, *, page, config, files):
    """Fills in the cards and the first picture of an example; links to a script lead to its page."""
    uri = page.file.src_uri
    if uri.startswith("gallery/") and uri != "gallery/index.md":
        return markdown
    listed = re.findall(r"gallery/(\w+)\.md", json.dumps(config["nav"]))
    examples = [found[name] for name in listed if name in found]
    markdown = markdown.replace("<!-- cards of all examples -->", cards(examples))

    def picture(match: re.Match) -> str:
        pictures = found[match[1]].pictures
        return f"![{pictures[0]['alt']}](gallery/{pictures[0]['file']})" if pictures else ""

    markdown = re.sub(r"<!-- picture of gallery/(\w+)\.py -->", picture, markdown)
    return re.sub(r"\]\((gallery/\w+)\.py\)", r"](\1.md)", markdown)
