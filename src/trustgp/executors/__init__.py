"""Where the experts are solved: one interface, one file per way."""

from .base import Executor
from .threads import Threads

__all__ = ["Executor", "Threads"]
