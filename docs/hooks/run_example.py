"""Runs the cells of one gallery example in the current folder, and writes what each printed and its pictures.

    python run_example.py EXAMPLE.py < cells.json

Cells are [{"line": 12, "code": "..."}]. Each gets its "output" and "pictures", a list of {"file", "alt"};
the result goes to result.json, with "error", a traceback or None. The example runs as `__main__`.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType


def written(stem: str, count: int, before: set[Path]) -> list[dict[str, str]]:
    """The pictures that a cell has written, by other names; the alternative text is the name of the file."""
    pictures = []
    for place, found in enumerate(sorted(set(Path().glob("*.png")) - before)):
        file = f"{stem}-{count + place + 1}.png"
        pictures.append({"file": found.rename(file).name, "alt": found.stem.replace("_", " ")})
    return pictures


def run(path: str, cells: list[dict]) -> str | None:
    """Runs cell after cell, up to the first that fails: its traceback, or None."""
    stem, count = Path(path).stem, 0
    # a module of its own, without a file: worker processes must not run the example, or this, again
    sys.modules["__main__"] = main = ModuleType("__main__")
    for cell in cells:
        printed, before = io.StringIO(), set(Path().glob("*.png"))
        code = "\n" * (cell["line"] - 1) + cell["code"]  # so that a traceback has the lines of the file
        try:
            with redirect_stdout(printed):
                exec(compile(code, path, "exec"), main.__dict__)
        except BaseException:
            return traceback.format_exc()
        cell["output"] = printed.getvalue()
        cell["pictures"] = written(stem, count, before)
        count += len(cell["pictures"])
    return None


if __name__ == "__main__":
    given = json.load(sys.stdin)
    failure = run(sys.argv[1], given)
    Path("result.json").write_text(json.dumps({"cells": given, "error": failure}))
