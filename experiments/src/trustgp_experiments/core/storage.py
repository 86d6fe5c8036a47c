"""Numbers of a result in a small compressed file: rounded, with the same bytes for the same numbers."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from trustgp.data.atomic_file import atomic_file

NUMBERS = "numbers.json.gz"
DIGITS = 4  # significant digits of a stored number; the parts of a study keep all
MAX_BYTES = 2**26  # of a file when it is unpacked


def rounded(value: Any) -> Any:
    """Copy of a value with floats rounded to `DIGITS` significant digits, in the types of a JSON file."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {str(key): rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def write_numbers(folder: Path, numbers: Any) -> Path:
    """Write numbers atomically; raise ValueError for NaN and infinity."""
    text = json.dumps(numbers, separators=(",", ":"), allow_nan=False)
    with atomic_file(folder / NUMBERS) as temporary:
        temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder / NUMBERS


def read_numbers(folder: Path) -> Any:
    """Numbers as they were written; raise ValueError if the file is missing, damaged or too large."""
    try:
        with gzip.open(folder / NUMBERS) as file:
            text = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"its {NUMBERS} cannot be read: {error}") from error
    if len(text) > MAX_BYTES:
        raise ValueError(f"its {NUMBERS} has more than {MAX_BYTES} bytes.")
    return json.loads(text)
