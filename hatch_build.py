"""The metadata of a release: README links that work on a package index, and the project's addresses.

The repository's address is in TRUSTGP_REPOSITORY, which the release workflow sets: that of a fork is another.
Without it a package has no addresses, and relative links, which would lead nowhere, become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")
PAGES = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}


def absolute(text: str, repository: str, tag: str) -> str:
    """A page with its relative links at a tag of the repository; without one, their text."""

    def link(match: re.Match[str]) -> str:
        picture, title, target = match.groups()
        if not repository:
            return "" if picture else title
        return f"{picture}[{title}]({repository}/{'raw' if picture else 'blob'}/{tag}/{target})"

    return LINK.sub(link, text)


class ReleaseMetadata(MetadataHookInterface):
    """Fills in what pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository, tag = os.environ.get("TRUSTGP_REPOSITORY", "").rstrip("/"), f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository, tag)}
        if repository:
            pages = {name: f"{repository}/blob/{tag}/{page}" for name, page in PAGES.items()}
            metadata["urls"] = {"Source": repository, "Issues": f"{repository}/issues", **pages}
