"""The last line of a benchmark: its figures as JSON, with the commit of the code that measured them."""

import json
import os
from typing import Any

from .result import COMMIT_VARIABLE, commit


def print_figures(**figures: Any) -> None:
    """Print figures as JSON; `commit` is TRUSTGP_COMMIT (for a copy without git), else the checkout's commit,
    with "+" if files differ from it, else null."""
    print(json.dumps({**figures, "commit": os.environ.get(COMMIT_VARIABLE) or commit()}))
