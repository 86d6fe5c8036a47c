"""Files outside docs/ on the site: pages of the root and of the experiments, and pictures."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
NAMES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
FILES = [*(ROOT / name for name in NAMES), *sorted((ROOT / "experiments" / "docs").glob("*.md"))]
PAGES = {file.name.lower(): file.relative_to(ROOT).as_posix() for file in FILES if file.exists()}
"""By address on the site, the file in the repository."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^):#\s]+)(#[^)]*)?\)")


def on_files(files, *, config):
    """Adds the pages, and each picture outside docs/ that a page shows."""
    for uri, name in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    for file in [file for file in files if file.is_documentation_page()]:
        for _, target in outside(file.src_uri, file.content_string):
            if target.suffix in (".png", ".gif", ".svg") and files.get_file_from_path(str(target)) is None:
                files.append(File.generated(config, str(target), abs_src_path=str(ROOT / target)))
    return files


def place(uri: str) -> PurePosixPath:
    """The folder of the repository that links of a page start from."""
    return PurePosixPath(PAGES.get(uri, f"docs/{uri}")).parent


def target_of(uri: str, link: str) -> PurePosixPath | None:
    """The file of a relative link, from the root of the repository; None: there is no such file."""
    path = (ROOT / place(uri) / link).resolve()
    inside = path.exists() and path.is_relative_to(ROOT)
    return PurePosixPath(path.relative_to(ROOT).as_posix()) if inside else None


def outside(uri: str, markdown: str) -> list[tuple[str, PurePosixPath]]:
    """The links of a page that lead to files of the repository outside docs/."""
    links = [(match[3], target_of(uri, match[3])) for match in LINK.finditer(markdown)]
    return [(link, target) for link, target in links if target and target.parts[:1] != ("docs",)]


def on_page_markdown(markdown, *, page, config, files):
    """Links lead to the address on the site; a file that is not on the site is named instead."""
    uri = page.file.src_uri
    up = "../" * uri.count("/")
    roots = {name: there for there, name in PAGES.items()}

    def changed(match: re.Match) -> str:
        target = target_of(uri, match[3])
        if target is None:
            return match[0]
        if target.parts[0] == "docs" or str(target) in roots:
            address = roots.get(str(target), str(target).removeprefix("docs/"))
            return f"{match[1]}[{match[2]}]({up}{address}{match[4] or ''})"
        if match[1]:
            return f"![{match[2]}]({up}{target})"
        return (
            match[2] if match[2].strip("`") == str(target) else f"{match[2]} (`{target}` in the repository)"
        )

    return LINK.sub(changed, markdown)
