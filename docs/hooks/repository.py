"""Files outside docs/ on the site: pages of the repository's root, and pictures that a page shows."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PAGES = {"contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md", "changelog.md": "CHANGELOG.md"}
TITLES = {"contributing.md": "Contributing", "security.md": "Security", "changelog.md": "Changes"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^):#\s]+)(#[^)]*)?\)")


def on_config(config):
    """Those pages of the root that are there go into the last section of the navigation."""
    (section,) = config["nav"][-1].values()
    section += [{TITLES[uri]: uri} for uri, name in PAGES.items() if (ROOT / name).exists()]
    return config


def on_files(files, *, config):
    """Adds the pages of the root, and each picture outside docs/ that a page shows."""
    for uri, name in PAGES.items():
        if (ROOT / name).exists():
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    for file in [file for file in files if file.is_documentation_page()]:
        for _, target in outside(file.src_uri, file.content_string):
            if target.suffix in (".png", ".gif", ".svg") and files.get_file_from_path(str(target)) is None:
                files.append(File.generated(config, str(target), abs_src_path=str(ROOT / target)))
    return files


def place(uri: str) -> PurePosixPath:
    """The folder of the repository that links of a page start from."""
    return PurePosixPath() if uri in PAGES else PurePosixPath("docs") / PurePosixPath(uri).parent


def target_of(uri: str, link: str) -> PurePosixPath | None:
    """What a relative link leads to, from the root of the repository; None: nothing that is there."""
    path = (ROOT / place(uri) / link).resolve()
    return (
        PurePosixPath(path.relative_to(ROOT).as_posix())
        if path.exists() and path.is_relative_to(ROOT)
        else None
    )


def outside(uri: str, markdown: str) -> list[tuple[str, PurePosixPath]]:
    """The links of a page that lead to files of the repository outside docs/."""
    links = [(match[3], target_of(uri, match[3])) for match in LINK.finditer(markdown)]
    return [(link, target) for link, target in links if target and target.parts[:1] != ("docs",)]


def on_page_markdown(markdown, *, page, config, files):
    """Links to files outside docs/ lead to where these are on the site; others are named."""
    uri = page.file.src_uri
    up = "../" * uri.count("/")
    roots = {name: there for there, name in PAGES.items()}

    def changed(match: re.Match) -> str:
        target = target_of(uri, match[3])
        if target is None:
            return match[0]
        if target.parts[0] == "docs":
            inner = up + str(target.relative_to("docs")) if uri in PAGES else match[3]
            return f"{match[1]}[{match[2]}]({inner}{match[4] or ''})"
        if str(target) in roots:
            return f"[{match[2]}]({up}{roots[str(target)]}{match[4] or ''})"
        if match[1]:
            return f"![{match[2]}]({up}{target})"
        return (
            match[2] if match[2].strip("`") == str(target) else f"{match[2]} (`{target}` in the repository)"
        )

    return LINK.sub(changed, markdown)
