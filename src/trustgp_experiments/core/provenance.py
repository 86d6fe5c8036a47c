"""Which code made this: its commit, its versions, and a digest of its source."""

from __future__ import annotations

import hashlib
import os
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import trustgp

PACKAGES = ("trustgp", "torch", "numpy", "scikit-learn", "laplace-torch", "matplotlib")
VARIABLE = "TRUSTGP_COMMIT"
SOURCE = Path(__file__).parents[1]
LIBRARY = Path(trustgp.__file__).parent


def commit() -> str | None:
    """The commit of the source, with "+" where files differ from it.

    Where the source is no checkout (a copy elsewhere), what the variable TRUSTGP_COMMIT says, or None.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(SOURCE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # an installed copy may lie inside somebody else's checkout, which does not know our files
        git("ls-files", "--error-unmatch", "__init__.py")
        changed = git("status", "--porcelain", ".", str(LIBRARY))
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get(VARIABLE)


@cache
def source_digest() -> str:
    """SHA-256 of the source of the library and of the experiments: names and contents."""
    digest = hashlib.sha256()
    for folder in (LIBRARY, SOURCE):
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder.parent)).encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of the packages that figures may depend on, where they are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
