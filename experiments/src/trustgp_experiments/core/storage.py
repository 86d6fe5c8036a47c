"""Numbers of a result as a small compressed file: rounded, the same bytes for the same numbers."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from trustgp.data.atomic_file import atomic_file

NUMBERS = "numbers.json.gz"
DIGITS = 4  # that are kept of a number; the parts of a study have all of them
MAX_BYTES = 2**26  # of a file when it is unpacked


def rounded(value: Any) -> Any:
    """Every number within lists and mappings to `DIGITS` digits, as JSON gives it back."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {str(key): rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def write_numbers(folder: Path, numbers: Any) -> Path:
    """Whole or not at all; NaN and infinity are refused."""
    text = json.dumps(numbers, separators=(",", ":"), allow_nan=False)
    with atomic_file(folder / NUMBERS) as temporary:
        temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder / NUMBERS


def read_numbers(folder: Path) -> Any:
    """As they were written; a ValueError where the file is missing, damaged or too large."""
    try:
        with gzip.open(folder / NUMBERS) as file:
            text = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"its {NUMBERS} cannot be read: {error}") from error
    if len(text) > MAX_BYTES:
        raise ValueError(f"its {NUMBERS} has more than {MAX_BYTES} bytes.")
    return json.loads(text)
