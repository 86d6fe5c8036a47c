"""For pyright, which would read all of transformers for half a minute."""

from typing import Any

def __getattr__(name: str) -> Any: ...
