"""Files that are whole or not there."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_json(file: Path, value: Any) -> Path:
    """The value as JSON; NaN and infinity are refused."""
    return write_text(file, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(file: Path, text: str) -> Path:
    """The text as UTF-8: a temporary file beside it, fsync, rename."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return file
